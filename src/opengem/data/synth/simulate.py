"""One block of users from nothing to rows: behaviour, observed history, true probabilities, labels."""

from dataclasses import dataclass, replace

import numpy as np

from opengem.data.synth.behaviour import Requests, draw_behaviour
from opengem.data.synth.catalogue import Catalogue, FloatArray, IntArray
from opengem.data.synth.config import MS_DAY, MS_HOUR, MS_MINUTE, SURFACES, SynthConfig
from opengem.data.synth.effects import (
    RECENCY_TERMS,
    Setting,
    history_values,
    logit_terms,
    probabilities,
    recency_values,
    sigmoid,
    static_values,
)
from opengem.data.synth.history import HALF_LIVES_MS, IMPRESSION, Log, Observed, Shown, observe
from opengem.data.synth.parameters import (
    DELAY_MEDIAN_HOURS,
    DELAY_SPREAD,
    LIKE_SURFACES,
    TASKS,
    Parameters,
    draw_parameters,
    target_rate,
)
from opengem.data.synth.users import Users, draw_users

_PILOT_USERS = 384
_PILOT_ROUNDS = 3
_FASTEST_CLICK_MS = 500
_SLOWEST_CLICK_MS = 25_000
_FASTEST_CONVERSION_MS = MS_MINUTE


@dataclass(frozen=True, kw_only=True)
class World:
    """What all blocks share.

    Args:
        config: settings.
        catalogue: ads and items.
        parameters: constants of the truth.
    """

    config: SynthConfig
    catalogue: Catalogue
    parameters: Parameters


@dataclass(frozen=True, kw_only=True)
class Block:
    """Everything that happened to a block of users.

    Args:
        users: who they are.
        organic: organic events.
        organic_surface: (L,) their surface.
        requests: page views and the ads on them.
        position: (B,) place of each ad on its page, from 0.
        clicked_at: (B,) Unix ms of the click, 0 without.
        converted_at: (B,) Unix ms of the conversion, 0 without.
        liked: (B,) whether the ad was liked, false where the surface has no likes.
        probability: task to (B,).
        terms: task to term to (B,).
    """

    users: Users
    organic: Log
    organic_surface: IntArray
    requests: Requests
    position: IntArray
    clicked_at: IntArray
    converted_at: IntArray
    liked: np.ndarray
    probability: dict[str, FloatArray]
    terms: dict[str, dict[str, FloatArray]]


def simulate(world: World, first: int, count: int) -> Block:
    """Simulate consecutive users; the result depends on the seed and on which users, on nothing else.

    Args:
        world: what is shared.
        first: first user, a block's first.
        count: users.

    Returns:
        What happened.
    """
    rng = np.random.default_rng(np.random.SeedSequence(world.config.seed, spawn_key=(3, first)))
    return _simulate(world, first, count, rng)


def build_world(config: SynthConfig, catalogue: Catalogue) -> World:
    """Draw the constants and solve the intercepts on a pilot block, so that rates meet their targets.

    Args:
        config: settings.
        catalogue: ads and items.

    Returns:
        The world, ready for `simulate`.
    """
    world = World(config=config, catalogue=catalogue, parameters=draw_parameters(config, catalogue))
    for _ in range(_PILOT_ROUNDS):
        # The same users in each round; only the intercepts move.
        rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(4,)))
        pilot = _simulate(world, 0, min(_PILOT_USERS, config.users_of_block), rng)
        base = {task: _solve(config, pilot, task) for task in TASKS}
        world = replace(world, parameters=world.parameters.with_base(base))
    return world


def _simulate(world: World, first: int, count: int, rng: np.random.Generator) -> Block:
    """Draw behaviour, then labels."""
    config, catalogue, parameters = world.config, world.catalogue, world.parameters
    users = draw_users(config, catalogue, first, count, rng)
    organic, surface, requests = draw_behaviour(config, catalogue, users, rng)
    shown, setting = _examples(config, catalogue, users, requests)
    observed = observe(_with_impressions(organic, requests, shown), shown, catalogue.creative)
    clicked_at, recent = _click(observed, setting, requests, parameters, rng)
    observed = replace(observed, recent=recent)
    values = {**history_values(observed, setting), **static_values(setting, parameters)}
    terms = logit_terms(values, setting, parameters)
    probability = probabilities(terms, parameters)

    b = len(shown.time)
    certain = probability["conversion"] / parameters.window_share
    hours = DELAY_MEDIAN_HOURS * np.exp(DELAY_SPREAD * rng.normal(size=b))
    delay = np.maximum(np.floor(hours * MS_HOUR).astype(np.int64), _FASTEST_CONVERSION_MS)
    converted = (rng.random(b) < certain) & (clicked_at > 0)
    likes = np.isin(setting.surface, [SURFACES.index(name) for name in LIKE_SURFACES])
    head = np.searchsorted(requests.request, requests.request, side="left")
    return Block(
        users=users,
        organic=organic,
        organic_surface=surface,
        requests=requests,
        position=np.arange(b) - head,
        clicked_at=clicked_at,
        converted_at=np.where(converted, shown.time + delay, 0),
        liked=likes & (rng.random(b) < probability["like"]),
        probability=probability,
        terms=terms,
    )


def _examples(
    config: SynthConfig, catalogue: Catalogue, users: Users, requests: Requests
) -> tuple[Shown, Setting]:
    """Lay out the features of every ad shown."""
    request, ad = requests.request, requests.ad
    user, time = requests.user[request], requests.time[request]
    shown = Shown(
        user=user,
        time=time,
        category=catalogue.category[ad],
        advertiser=catalogue.advertiser[ad],
        creative=catalogue.creative[ad],
    )
    setting = Setting(
        surface=requests.surface[request],
        time=time,
        age=users.age[user],
        device=requests.device[request],
        ad=ad,
        advertiser=shown.advertiser,
        category=shown.category,
        format=catalogue.format[ad],
        price=catalogue.price[ad],
        created_ms=config.start_ms + catalogue.created[ad] * MS_DAY,
    )
    return shown, setting


def _with_impressions(organic: Log, requests: Requests, shown: Shown) -> Log:
    """Put the ads shown into the log; clicks come later, one request after the other."""
    ads = Log(
        user=shown.user,
        time=shown.time,
        kind=np.full(len(shown.user), IMPRESSION, dtype=np.int64),
        category=shown.category,
        item=requests.ad,
        advertiser=shown.advertiser,
    )
    return Log(**{name: np.concatenate([column, vars(ads)[name]]) for name, column in vars(organic).items()})


def _click(
    observed: Observed, setting: Setting, requests: Requests, parameters: Parameters, rng: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """Draw clicks in the order of each user's requests, as earlier clicks are history of later requests.

    All users take their first request together, then their second, and so on.
    """
    values = {**history_values(observed, setting), **static_values(setting, parameters)}
    rest = {term: value for term, value in values.items() if term not in RECENCY_TERMS}
    fixed = np.sum(list(logit_terms(rest, setting, parameters)["click"].values()), axis=0)
    day = (setting.time - parameters.start_ms) // MS_DAY
    strength = np.stack(
        [
            parameters.coefficient["click"][term] * parameters.factor(term, setting.surface, day)
            for term in RECENCY_TERMS
        ],
        axis=1,
    )
    b, request = len(setting.time), requests.request
    luck, quick = rng.random(b), rng.random(b)
    latest = _latest_click(requests)[request]
    wait = _FASTEST_CLICK_MS + np.floor(quick * (latest - _FASTEST_CLICK_MS)).astype(np.int64)

    half_lives = np.asarray(HALF_LIVES_MS, dtype=np.float64)
    users, categories = int(requests.user.max(initial=0)) + 1, len(parameters.category)
    state = np.zeros((users, categories, len(HALF_LIVES_MS)))
    clock = np.zeros(users, dtype=np.int64)
    recent, clicked_at = observed.recent.copy(), np.zeros(b, dtype=np.int64)
    for pages, rows in _waves(requests):
        page_user, now = requests.user[pages], requests.time[pages]
        state[page_user] *= np.exp2(-(now - clock[page_user])[:, None] / half_lives)[:, None, :]
        clock[page_user] = now
        user, category = requests.user[request[rows]], setting.category[rows]
        recent[rows] += state[user, category]
        value = np.stack(list(recency_values(recent[rows]).values()), axis=1)
        hit = luck[rows] < sigmoid(fixed[rows] + (strength[rows] * value).sum(axis=1))
        clicked = rows[hit]
        clicked_at[clicked] = setting.time[clicked] + wait[clicked]
        # Kept as of the request; a click comes a little after it, hence the growth.
        grown = np.exp2(wait[clicked][:, None] / half_lives)
        np.add.at(state, (user[hit], category[hit]), grown)
    return clicked_at, recent


def _latest_click(requests: Requests) -> IntArray:
    """Longest wait for a click that still comes before the user's next request, ms (R,)."""
    gap = np.full(len(requests.time), _SLOWEST_CLICK_MS, dtype=np.int64)
    same = requests.user[1:] == requests.user[:-1]
    gap[:-1][same] = np.diff(requests.time)[same] - _FASTEST_CLICK_MS
    return np.minimum(gap, _SLOWEST_CLICK_MS)


def _waves(requests: Requests):
    """Yield requests and their examples by rank of the request in its user's life."""
    user = requests.user
    head = np.searchsorted(user, user, side="left")
    rank = np.arange(len(user)) - head
    page_order = np.argsort(rank, kind="stable")
    row_rank = rank[requests.request]
    row_order = np.argsort(row_rank, kind="stable")
    waves = int(rank.max(initial=-1)) + 1
    page_edge = np.searchsorted(rank[page_order], np.arange(waves + 1))
    row_edge = np.searchsorted(row_rank[row_order], np.arange(waves + 1))
    for w in range(waves):
        yield page_order[page_edge[w] : page_edge[w + 1]], row_order[row_edge[w] : row_edge[w + 1]]


def _solve(config: SynthConfig, pilot: Block, task: str) -> list[float]:
    """Find the intercept of each surface that gives the target rate on the pilot."""
    surface = pilot.requests.surface[pilot.requests.request]
    of_task = pilot.terms[task]
    rest = np.sum([value for term, value in of_task.items() if term != "base"], axis=0)
    weight = pilot.probability["click"] if task == "conversion" else np.ones(len(surface))
    base = []
    for s in range(len(SURFACES)):
        rows = surface == s
        # Too few examples would follow chance: use all surfaces then.
        rows = rows if rows.sum() >= 200 else np.ones_like(rows)
        base.append(_bisect(rest[rows], weight[rows], target_rate(config, task, s)))
    return base


def _bisect(rest: FloatArray, weight: FloatArray, target: float) -> float:
    """Solve mean sigmoid(base + rest) = target."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if np.average(sigmoid(middle + rest), weights=weight) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2
