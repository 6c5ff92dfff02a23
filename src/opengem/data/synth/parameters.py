"""The constants of the planted truth: coefficients, tables and their drift, drawn once from the seed."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opengem.data.synth.catalogue import Catalogue, FloatArray
from opengem.data.synth.config import (
    AGE_BANDS,
    CATEGORIES,
    CATEGORY_GROUPS,
    CONVERSION_WINDOW_DAYS,
    DEVICES,
    FORMATS,
    SURFACES,
    SynthConfig,
)

TASKS = ("click", "conversion", "like")
LIKE_SURFACES = ("feed", "reels")
HOUR_BANDS = 4

HISTORY_TERMS = (
    "lasting",
    "curiosity",
    "recency_minutes",
    "recency_day",
    "recency_fortnight",
    "fatigue",
    "order",
    "taste",
    "context",
)
STATIC_TERMS = (
    "cross_age_category",
    "cross_device_format",
    "cross_hour_surface",
    "cross_age_format_surface",
    "ad",
    "price",
)
EFFECT_OF_TERM = {
    **{name: name.split("_")[0] for name in (*HISTORY_TERMS, *STATIC_TERMS)},
    "ad": "cold",
    "price": "cold",
}
# Strength of each term on each task before weights, surfaces and drift; a term left out is not in the task.
_COEFFICIENT = {
    "click": {
        "lasting": 0.85,
        "curiosity": 1.1,
        "recency_minutes": 0.55,
        "recency_day": 0.3,
        "recency_fortnight": 0.15,
        "fatigue": -0.55,
        "order": 0.85,
        "taste": 0.65,
        "context": 0.55,
        "cross_age_category": 0.36,
        "cross_device_format": 0.27,
        "cross_hour_surface": 0.24,
        "cross_age_format_surface": 0.36,
        "ad": 0.75,
    },
    "conversion": {
        "lasting": 1.1,
        "curiosity": -1.5,
        "recency_day": 0.5,
        "taste": 0.5,
        "cross_device_format": 0.3,
        "ad": 0.7,
        "price": -0.4,
    },
    "like": {"lasting": 0.5, "taste": 1.7, "cross_age_format_surface": 0.5, "ad": 0.7},
}
# How much each surface adds to or takes from a term at weight 1 of the `surface` effect.
_SURFACE_SHIFT = {
    "lasting": (0.2, -0.35, 0.3, -0.45),
    "curiosity": (0.0, 0.4, 0.1, -0.3),
    "recency_minutes": (-0.3, 0.5, 0.3, -0.3),
    "recency_day": (0.2, -0.2, 0.3, -0.4),
    "recency_fortnight": (0.4, -0.4, 0.0, -0.4),
    "fatigue": (0.2, -0.3, 0.4, 0.0),
    "order": (0.3, -0.4, -0.2, 0.5),
    "taste": (-0.25, 0.5, 0.4, -0.5),
}
_TARGET_SHARE = {"conversion": 0.09, "like": 0.07}
_SURFACE_RATE = (1.0, 0.85, 1.1, 1.7)
DELAY_MEDIAN_HOURS = 18.0
DELAY_SPREAD = 1.3
OWN_WARM_DAYS = 7.0
PRICE_CENTRE = 3.0
_DRIFT_SWING = 0.15
_DRIFT_JUMP = 0.2


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Every constant the true probabilities need besides the logs.

    Args:
        coefficient: task to term to strength, weight of the effect included.
        surface_factor: term to (4,) factor for each surface.
        drift_swing, drift_phase, drift_jump: term to the slow swing, its phase and the step at the jump.
        days, jump_day, start_ms: the clock of the drift.
        base: task to (4,) intercept for each surface, solved so that rates meet their targets.
        age_category, device_format, hour_surface, age_format_surface: tables of the cross features.
        advertiser, category, format, own: parts of an ad's quality; `own` grows over the first 7 days.
        window_share: share of conversions that come within the label window.
    """

    coefficient: dict[str, dict[str, float]]
    surface_factor: dict[str, list[float]]
    drift_swing: dict[str, float]
    drift_phase: dict[str, float]
    drift_jump: dict[str, float]
    days: int
    jump_day: int
    start_ms: int
    base: dict[str, list[float]]
    age_category: FloatArray
    device_format: FloatArray
    hour_surface: FloatArray
    age_format_surface: FloatArray
    advertiser: FloatArray
    category: FloatArray
    format: FloatArray
    own: FloatArray
    window_share: float

    def factor(self, term: str, surface: np.ndarray, day: np.ndarray) -> FloatArray:
        """Say how surface and day scale a term.

        Formula: `surface_factor * max(0.1, 1 + swing sin(2 pi day / days + phase) + jump [day >= jump_day])`.

        Args:
            term: a name in `coefficient`.
            surface: (B,) index of the surface.
            day: (B,) whole days since the start.

        Returns:
            (B,) factor.
        """
        swing = self.drift_swing[term] * np.sin(2 * np.pi * day / self.days + self.drift_phase[term])
        level = 1 + swing + self.drift_jump[term] * (day >= self.jump_day)
        return np.asarray(self.surface_factor[term])[surface] * np.maximum(0.1, level)

    def with_base(self, base: dict[str, list[float]]) -> "Parameters":
        """Replace the intercepts.

        Args:
            base: task to intercept of each surface.

        Returns:
            New parameters.
        """
        return dataclasses.replace(self, base=base)

    def save(self, path: Path) -> None:
        """Write the parameters as JSON, exactly.

        Args:
            path: file to write.
        """
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(self).items()}
        path.write_text(json.dumps(plain) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Parameters":
        """Read parameters that `save` wrote.

        Args:
            path: file to read.

        Returns:
            The parameters.
        """
        plain: dict[str, Any] = json.loads(path.read_text())
        arrays = {f.name for f in dataclasses.fields(cls) if f.type is FloatArray}
        plain.update({name: np.asarray(plain[name]) for name in arrays})
        return cls(**plain)


def target_rate(config: SynthConfig, task: str, surface: int) -> float:
    """Give the rate a surface should show.

    Args:
        config: for the click rate.
        task: one of `TASKS`.
        surface: index of the surface.

    Returns:
        Clicks or likes an impression, conversions a click.
    """
    if task == "click":
        return min(0.6, config.click_rate * _SURFACE_RATE[surface])
    return _TARGET_SHARE[task]


def draw_parameters(config: SynthConfig, catalogue: Catalogue) -> Parameters:
    """Draw the constants of a world.

    Args:
        config: settings; seed, days and effects are read.
        catalogue: for the number of ads and advertisers.

    Returns:
        Parameters with first guesses as intercepts.

    Source:
        Our reconstruction.
    """
    rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(2,)))
    terms = (*HISTORY_TERMS, *STATIC_TERMS)
    surface = config.weight("surface")
    drift = config.weight("drift")
    # Signs alternate, so that the jump re-ranks ads instead of only lifting all rates.
    signs = rng.permutation(np.resize((1.0, -1.0), len(terms)))
    group = rng.normal(0, 0.3, CATEGORY_GROUPS)
    ads = catalogue.num_ads
    delay = math.log(CONVERSION_WINDOW_DAYS * 24 / DELAY_MEDIAN_HOURS) / DELAY_SPREAD
    return Parameters(
        coefficient={
            task: {term: value * config.weight(EFFECT_OF_TERM[term]) for term, value in terms_of.items()}
            for task, terms_of in _COEFFICIENT.items()
        },
        surface_factor={
            term: [
                max(0.0, 1 + surface * shift) for shift in _SURFACE_SHIFT.get(term, (0.0,) * len(SURFACES))
            ]
            for term in terms
        },
        drift_swing=dict.fromkeys(terms, drift * _DRIFT_SWING),
        drift_phase=dict(zip(terms, rng.uniform(0, 2 * np.pi, len(terms)).tolist(), strict=True)),
        drift_jump=dict(zip(terms, (drift * _DRIFT_JUMP * signs).tolist(), strict=True)),
        days=config.days,
        jump_day=config.jump_day,
        start_ms=config.start_ms,
        base={task: [_logit(target_rate(config, task, s)) for s in range(len(SURFACES))] for task in TASKS},
        age_category=_interaction(rng, (len(AGE_BANDS), CATEGORIES)),
        device_format=_interaction(rng, (len(DEVICES), len(FORMATS))),
        hour_surface=_interaction(rng, (HOUR_BANDS, len(SURFACES))),
        age_format_surface=_interaction(rng, (len(AGE_BANDS), len(FORMATS), len(SURFACES))),
        advertiser=rng.normal(0, 0.35, config.num_advertisers),
        category=group[np.arange(CATEGORIES) // (CATEGORIES // CATEGORY_GROUPS)]
        + rng.normal(0, 0.2, CATEGORIES),
        format=rng.normal(0, 0.2, len(FORMATS)),
        own=rng.normal(0, 0.35, ads),
        window_share=0.5 * (1 + math.erf(delay / math.sqrt(2))),
    )


def _logit(rate: float) -> float:
    """Log odds."""
    return math.log(rate / (1 - rate))


def _interaction(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Draw a table of unit spread whose every margin is zero: only the full crossing says anything."""
    table = rng.normal(size=shape)
    for axis in range(len(shape)):
        table -= table.mean(axis=axis, keepdims=True)
    return table / table.std()
