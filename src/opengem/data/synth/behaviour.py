"""What users do and what they are shown: sessions, organic events, requests and their candidate ads.

Hidden interests rule here. Nothing in this file knows a label.
"""

from dataclasses import dataclass

import numpy as np

from opengem.data.synth.catalogue import Catalogue, FloatArray, IntArray
from opengem.data.synth.config import (
    CATEGORIES,
    DEVICES,
    MS_DAY,
    MS_HOUR,
    MS_MINUTE,
    MS_SECOND,
    SURFACES,
    ZONES,
    SynthConfig,
)
from opengem.data.synth.history import LIKE, MESSAGE, SEARCH, VIEW, Log
from opengem.data.synth.users import Users

_SURFACE_SHARE = np.array((0.44, 0.30, 0.16, 0.10))
_MEAN_REQUEST = np.array((7.0, 4.5, 5.0, 2.5))
# Share of each format a surface takes without asking for a second proposal.
_FORMAT_FIT = np.array(
    (
        (0.9, 0.6, 0.9, 0.4, 0.7),
        (0.2, 1.0, 0.3, 0.4, 0.1),
        (0.6, 0.8, 0.3, 1.0, 0.2),
        (0.5, 0.2, 0.2, 0.6, 1.0),
    )
)
_MEAN_SESSION = 6.5
_LONGEST_SESSION = 60
_LARGEST_REQUEST = 20
_BURST_SHARE = 0.10
_SEARCH_SHARE = 0.35
_BURST_MEMORY_DAYS = 4
REQUEST_GAP_MS = 5 * MS_SECOND


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """Visits of a block of users, ordered by user and time; `focus` and `burst` are hidden.

    Args:
        user: (S,) row in the block.
        start: (S,) Unix ms.
        span: (S,) ms from the first to the last organic event.
        surface: (S,) index into `SURFACES`.
        focus: (S,) category most events belong to.
        burst: (S,) whether it is an hour of curiosity.
    """

    user: IntArray
    start: IntArray
    span: IntArray
    surface: IntArray
    focus: IntArray
    burst: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Page views with ads, ordered by user and time, times of one user at least 5 s apart.

    Args:
        user: (R,) row in the block.
        time: (R,) Unix ms.
        surface: (R,) index into `SURFACES`.
        device: (R,) index into `DEVICES`.
        request: (B,) request of each example, ascending.
        ad: (B,) catalogue row of each example, no ad twice in a request.
    """

    user: IntArray
    time: IntArray
    surface: IntArray
    device: IntArray
    request: IntArray
    ad: IntArray


def draw_behaviour(
    config: SynthConfig, catalogue: Catalogue, users: Users, rng: np.random.Generator
) -> tuple[Log, IntArray, Requests]:
    """Draw all organic events and all requests of a block of users.

    Args:
        config: settings.
        catalogue: what can be shown.
        users: the block.
        rng: source of the draws.

    Returns:
        Organic events ordered by user and time; their surface (L,); the requests with their ads.
    """
    session, length = _sessions(config, users, rng)
    log, surface, span = _organic(config, catalogue, users, session, length, rng)
    visits = Sessions(
        user=session["user"],
        start=session["start"],
        span=span,
        surface=session["surface"],
        focus=session["focus"],
        burst=session["burst"],
    )
    return log, surface, _requests(config, catalogue, users, visits, rng)


def _sessions(
    config: SynthConfig, users: Users, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], IntArray]:
    """Draw when each visit begins, where, and about what."""
    count = np.maximum(1, rng.poisson(users.activity / _MEAN_SESSION))
    user = np.repeat(np.arange(len(users)), count)
    n = len(user)
    # Local hours around breakfast, noon and evening; few visits in the night.
    part = rng.choice(3, n, p=(0.22, 0.28, 0.5))
    hour = rng.normal(np.array((8.0, 13.0, 20.5))[part], np.array((1.3, 2.0, 2.0))[part])
    local_ms = (
        rng.integers(0, config.log_days, n) * 24 + hour - np.array(ZONES)[users.country[user]]
    ) * MS_HOUR
    start = np.floor(local_ms).astype(np.int64) % (config.log_days * MS_DAY) + config.start_ms
    order = np.lexsort((start, user))
    start = start[order]
    day = (start - config.start_ms) // MS_DAY
    surface = rng.choice(len(SURFACES), n, p=_SURFACE_SHARE)
    surface = np.where((surface == SURFACES.index("messaging")) & (day < config.messaging_day), 0, surface)
    burst = rng.random(n) < _BURST_SHARE
    focus = np.where(burst, rng.integers(0, CATEGORIES, n), users.interest_at(user, day, rng))
    length = np.ceil(rng.exponential(_MEAN_SESSION - 0.5, n)).astype(np.int64).clip(1, _LONGEST_SESSION)
    length = np.where(burst, 5 + rng.poisson(4.0, n), length)
    return {"user": user, "start": start, "surface": surface, "focus": focus, "burst": burst}, length


def _organic(
    config: SynthConfig,
    catalogue: Catalogue,
    users: Users,
    session: dict[str, np.ndarray],
    length: IntArray,
    rng: np.random.Generator,
) -> tuple[Log, IntArray, IntArray]:
    """Fill the visits with views, likes, searches and messages."""
    visit = np.repeat(np.arange(len(length)), length)
    n = len(visit)
    head = np.cumsum(length) - length
    place = np.arange(n) - head[visit]
    burst = session["burst"][visit]
    gap = np.exp(rng.normal(np.where(burst, 3.9, 3.2), 0.8)) * MS_SECOND
    gap = np.floor(np.where(place == 0, 0, np.minimum(gap, 6 * MS_MINUTE))).astype(np.int64) + (place > 0)
    passed = np.cumsum(gap)
    time = session["start"][visit] + passed - passed[head[visit]]
    span = time[head + length - 1] - session["start"]

    kind = rng.choice(np.array((VIEW, LIKE, MESSAGE)), n, p=(0.79, 0.16, 0.05))
    kind = np.where(burst & (kind == MESSAGE), VIEW, kind)
    # One search a visit, first or last with equal chance: order alone tells the two apart.
    searched = (rng.random(len(length)) < _SEARCH_SHARE) & (length > 1) & ~session["burst"]
    at_end = rng.random(len(length)) < 0.5
    search = searched[visit] & (place == np.where(at_end, length - 1, 0)[visit])
    kind = np.where(search, SEARCH, kind)

    category = _event_category(catalogue, users, session, visit, search, rng, config.start_ms)
    item = _event_item(catalogue, users.taste[session["user"][visit]], kind, category, rng)
    category = np.where(kind == MESSAGE, -1, category)

    keep = time < config.start_ms + config.log_days * MS_DAY
    user = session["user"][visit]
    order = np.lexsort((time, user))
    order = order[keep[order]]
    blank = np.full(len(order), -1, dtype=np.int64)
    log = Log(
        user=user[order],
        time=time[order],
        kind=kind[order],
        category=category[order],
        item=item[order],
        advertiser=blank,
    )
    return log, session["surface"][visit][order], span


def _event_category(
    catalogue: Catalogue,
    users: Users,
    session: dict[str, np.ndarray],
    visit: IntArray,
    search: np.ndarray,
    rng: np.random.Generator,
    start_ms: int,
) -> IntArray:
    """Mostly the focus of the visit, sometimes another interest, sometimes anything."""
    user = session["user"][visit]
    day = (session["start"][visit] - start_ms) // MS_DAY
    draw = rng.random(len(visit))
    other = users.interest_at(user, day, rng)
    background = np.searchsorted(catalogue.category_cdf, rng.random(len(visit)), side="right")
    category = np.where(draw < 0.72, session["focus"][visit], np.where(draw < 0.88, other, background))
    return np.where(search | session["burst"][visit], session["focus"][visit], category)


def _event_item(
    catalogue: Catalogue, taste: FloatArray, kind: IntArray, category: IntArray, rng: np.random.Generator
) -> IntArray:
    """Views take what is popular; likes take the nearest to the user's taste of four."""
    proposals = 4
    item = np.full(len(kind), -1, dtype=np.int64)
    view, like = kind == VIEW, kind == LIKE
    item[view] = catalogue.items_by_category.sample(category[view], rng.random(view.sum()))
    offered = catalogue.items_by_category.sample(
        np.repeat(category[like], proposals), rng.random(like.sum() * proposals)
    ).reshape(-1, proposals)
    fit = np.einsum("npe,ne->np", catalogue.creative[offered].astype(np.float64), taste[like])
    item[like] = offered[np.arange(len(offered)), fit.argmax(axis=1)]
    return item


def _requests(
    config: SynthConfig, catalogue: Catalogue, users: Users, visits: Sessions, rng: np.random.Generator
) -> Requests:
    """Draw the page views of each visit and fill them with ads."""
    expected_visits = config.mean_history / _MEAN_SESSION * config.days / config.log_days
    share = _SURFACE_SHARE @ _MEAN_REQUEST
    rate = config.impressions_per_user / (expected_visits * share * 0.87)
    visit = np.repeat(np.arange(len(visits.user)), rng.poisson(rate, len(visits.user)))
    depth = np.sqrt(rng.random(len(visit)))
    time = visits.start[visit] + np.floor(depth * (visits.span[visit] + 2 * MS_MINUTE)).astype(np.int64)
    user = visits.user[visit]
    order = np.lexsort((time, user))
    visit, user, time = visit[order], user[order], _spaced(user[order], time[order])
    keep = time < config.start_ms + config.days * MS_DAY
    visit, user, time = visit[keep], user[keep], time[keep]
    surface = visits.surface[visit]
    other = rng.random(len(user)) < 0.15
    device = np.where(other, rng.integers(0, len(DEVICES), len(user)), users.device[user])
    size = np.ceil(rng.exponential(_MEAN_REQUEST[surface] - 0.5)).astype(np.int64).clip(1, _LARGEST_REQUEST)
    request = np.repeat(np.arange(len(user)), size)
    day = (time - config.start_ms) // MS_DAY
    ad = _candidates(catalogue, users, visits, (visit, user, day, surface), request, rng)
    # An ad proposed twice on one page is shown once.
    place = np.unique(request * catalogue.num_ads + ad, return_index=True)[1]
    place.sort()
    return Requests(
        user=user, time=time, surface=surface, device=device, request=request[place], ad=ad[place]
    )


def _spaced(user: IntArray, time: IntArray) -> IntArray:
    """Push requests of one user later until they are 5 s apart."""
    rank = np.arange(len(user))
    lift = user * (1 << 44)
    return np.maximum.accumulate(time - REQUEST_GAP_MS * rank + lift) + REQUEST_GAP_MS * rank - lift


def _candidates(
    catalogue: Catalogue,
    users: Users,
    visits: Sessions,
    page: tuple[IntArray, IntArray, IntArray, IntArray],
    request: IntArray,
    rng: np.random.Generator,
) -> IntArray:
    """Propose ads that fit the hidden interests in part, as an earlier stage of ranking would."""
    visit, user, day, surface = (column[request] for column in page)
    latest = _latest_burst(visits)[visit]
    fresh = (latest >= 0) & (visits.start[visit] - visits.start[latest] < _BURST_MEMORY_DAYS * MS_DAY)
    draw = rng.random(len(request))
    background = np.searchsorted(catalogue.category_cdf, rng.random(len(request)), side="right")
    category = np.where(draw < 0.34, users.interest_at(user, day, rng), background)
    category = np.where((draw > 0.34) & (draw < 0.54), visits.focus[visit], category)
    category = np.where((draw > 0.54) & (draw < 0.70) & fresh, visits.focus[latest], category)
    group = day * CATEGORIES + category
    first = catalogue.ads_by_day.sample(group, rng.random(len(request)))
    second = catalogue.ads_by_day.sample(group, rng.random(len(request)))
    fits = rng.random(len(request)) < _FORMAT_FIT[surface, catalogue.format[first]]
    return np.where(fits, first, second)


def _latest_burst(visits: Sessions) -> IntArray:
    """Row of the user's latest visit of curiosity at or before each visit, -1 where none."""
    row = np.arange(len(visits.user))
    latest = np.maximum.accumulate(np.where(visits.burst, row, -1))
    return np.where((latest >= 0) & (visits.user[latest] == visits.user), latest, -1)
