"""The planted effects: from observed numbers to logit terms to true probabilities.

Pure functions. The simulator draws its labels from them, and a probe calls the same ones on a history it has
changed in one place.
"""

from dataclasses import dataclass

import numpy as np

from opengem.data.synth.catalogue import FloatArray, IntArray
from opengem.data.synth.config import MS_DAY, MS_HOUR, SURFACES
from opengem.data.synth.history import BURST_SPAN_MS, Observed
from opengem.data.synth.parameters import (
    HISTORY_TERMS,
    HOUR_BANDS,
    OWN_WARM_DAYS,
    PRICE_CENTRE,
    STATIC_TERMS,
    TASKS,
    Parameters,
)

RECENCY_TERMS = ("recency_minutes", "recency_day", "recency_fortnight")
BURST_TOUCHES = 4


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The features of examples that are not history, each (B,).

    Args:
        surface: index into `SURFACES`.
        time: Unix ms of the request.
        age: index into `AGE_BANDS`.
        device: index into `DEVICES`.
        ad: row of the ad.
        advertiser: its advertiser.
        category: its category.
        format: index into `FORMATS`.
        price: its price, above 0.
        created_ms: Unix ms of the midnight at which it was created.
    """

    surface: IntArray
    time: IntArray
    age: IntArray
    device: IntArray
    ad: IntArray
    advertiser: IntArray
    category: IntArray
    format: IntArray
    price: FloatArray
    created_ms: IntArray


def history_values(observed: Observed, setting: Setting) -> dict[str, FloatArray]:
    """Turn observed counts into the values of the history terms.

    Formula: lasting `ln(1 + days) / ln 11`; curiosity `[touches >= 4, all within 1 h] 0.5^(age / 2 d)`;
    recency `S / (1 + S)` for 10 min and 1 day, `ln(1 + S) / ln 11` for 14 days; fatigue
    `0.6 ln(1 + shown) + 0.5^(gap / 6 h)`; order `min(views after search, 2) / 2`; taste, the cosine; context
    `ln(1 + likes) / ln 3` on reels, `ln(1 + searches) / ln 3` on messaging, else 0.

    Args:
        observed: numbers from `observe`.
        setting: for the surface.

    Returns:
        Term to (B,) value before coefficients.

    Source:
        Our reconstruction; the list of effects follows what Meta's texts say histories must show.
    """
    burst_span = observed.first_touch_ms - observed.last_touch_ms
    burst = (observed.touches >= BURST_TOUCHES) & (burst_span <= BURST_SPAN_MS)
    reels = setting.surface == SURFACES.index("reels")
    messaging = setting.surface == SURFACES.index("messaging")
    meant = np.where(reels, observed.recent_likes, np.where(messaging, observed.recent_searches, 0.0))
    return {
        "lasting": np.log1p(observed.touched_days) / np.log(11),
        "curiosity": np.where(burst, np.exp2(-observed.last_touch_ms / (2 * MS_DAY)), 0.0),
        **recency_values(observed.recent),
        "fatigue": 0.6 * np.log1p(observed.shown) + np.exp2(-observed.last_shown_ms / (6 * MS_HOUR)),
        "order": np.minimum(observed.ordered, 2) / 2,
        "taste": observed.taste,
        "context": np.log1p(meant) / np.log(3),
    }


def recency_values(recent: FloatArray) -> dict[str, FloatArray]:
    """Turn decayed counts into the values of the three recency terms.

    Args:
        recent: (B, 3) decayed counts, as in `Observed`.

    Returns:
        Term to (B,) value before coefficients.
    """
    minutes, day, fortnight = recent.T
    values = (minutes / (1 + minutes), day / (1 + day), np.log1p(fortnight) / np.log(11))
    return dict(zip(RECENCY_TERMS, values, strict=True))


def static_values(setting: Setting, parameters: Parameters) -> dict[str, FloatArray]:
    """Give the values of the terms that need no history.

    Formula: cross terms are table cells, hour bands are 6 UTC hours; ad `advertiser + category + format + own
    min(1, age / 7 d)`, so that a new ad is what its family is; price `ln(price) - 3`.

    Args:
        setting: features of the examples.
        parameters: the tables.

    Returns:
        Term to (B,) value before coefficients.
    """
    band = setting.time % MS_DAY // (MS_DAY // HOUR_BANDS)
    age_days = (setting.time - setting.created_ms) / MS_DAY
    own = parameters.own[setting.ad] * np.clip(age_days / OWN_WARM_DAYS, 0.0, 1.0)
    family = (
        parameters.advertiser[setting.advertiser]
        + parameters.category[setting.category]
        + parameters.format[setting.format]
    )
    return {
        "cross_age_category": parameters.age_category[setting.age, setting.category],
        "cross_device_format": parameters.device_format[setting.device, setting.format],
        "cross_hour_surface": parameters.hour_surface[band, setting.surface],
        "cross_age_format_surface": parameters.age_format_surface[
            setting.age, setting.format, setting.surface
        ],
        "ad": family + own,
        "price": np.log(setting.price) - PRICE_CENTRE,
    }


def logit_terms(
    values: dict[str, FloatArray], setting: Setting, parameters: Parameters
) -> dict[str, dict[str, FloatArray]]:
    """Weigh the values for each task; the terms of a task add up to its logit.

    Formula: `term = coefficient[task] * factor(surface, day) * value`, and `base[task][surface]`.

    Args:
        values: from `history_values` and `static_values`, or some of them.
        setting: for surface and day.
        parameters: the constants.

    Returns:
        Task to term to (B,); `base` first, then the terms of the task that are in `values`.
    """
    day = (setting.time - parameters.start_ms) // MS_DAY
    factor = {term: parameters.factor(term, setting.surface, day) for term in values}
    terms: dict[str, dict[str, FloatArray]] = {}
    for task in TASKS:
        strength = parameters.coefficient[task]
        terms[task] = {"base": np.asarray(parameters.base[task])[setting.surface]}
        for term in (*HISTORY_TERMS, *STATIC_TERMS):
            if term in strength and term in values:
                terms[task][term] = strength[term] * factor[term] * values[term]
    return terms


def probabilities(terms: dict[str, dict[str, FloatArray]], parameters: Parameters) -> dict[str, FloatArray]:
    """Add up the terms.

    Formula: `p = sigmoid(sum of terms)`, for conversion times the share that comes within the window.

    Args:
        terms: from `logit_terms`.
        parameters: for the share.

    Returns:
        Task to (B,) probability; conversion is given a click and within the window; like means nothing on a
        surface without likes.
    """
    p = {task: sigmoid(np.sum(list(of_task.values()), axis=0)) for task, of_task in terms.items()}
    p["conversion"] = p["conversion"] * parameters.window_share
    return p


def sigmoid(logit: FloatArray) -> FloatArray:
    """Turn log odds into probability.

    Args:
        logit: any shape.

    Returns:
        `1 / (1 + exp(-logit))`.
    """
    return 1 / (1 + np.exp(-logit))
