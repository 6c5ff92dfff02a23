"""Who the users are: what the logs show of them, and the hidden interests that only make events."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opengem.data.synth.catalogue import STYLES, Catalogue, FloatArray, IntArray
from opengem.data.synth.config import AGE_BANDS, CATEGORIES, COUNTRIES, DEVICES, SynthConfig

INTERESTS = 4
_SWITCH_SHARE = 0.15


@dataclass(frozen=True, kw_only=True)
class Users:
    """A block of users; everything below `device` is hidden and never reaches a label.

    Args:
        first: `user_id` of row 0; rows are consecutive users.
        age: (U,) index into `AGE_BANDS`.
        country: (U,) index into `COUNTRIES`, gives the time zone as well.
        device: (U,) index into `DEVICES` of the usual device.
        activity: (U,) expected organic events over the whole log.
        interest: (U, 4) categories of lasting interest.
        later: (U, 4) category that replaces an interest from `switch_day` on.
        switch_day: (U, 4) day of a lasting switch, past the end for most.
        strength: (U, 4) log weight of each interest.
        phase: (U, 4) phase of the slow drift of the weights.
        taste: (U, 32) direction of the creatives the user likes.
    """

    first: int
    age: IntArray
    country: IntArray
    device: IntArray
    activity: FloatArray
    interest: IntArray
    later: IntArray
    switch_day: FloatArray
    strength: FloatArray
    phase: FloatArray
    taste: FloatArray

    def __len__(self) -> int:
        return len(self.age)

    def interest_at(self, user: IntArray, day: npt.NDArray, rng: np.random.Generator) -> IntArray:
        """Draw a category from the lasting interests users have on a day.

        Args:
            user: (N,) row in the block.
            day: (N,) days since the start.
            rng: source of the draws.

        Returns:
            (N,) category.
        """
        swing = 0.8 * np.sin(2 * np.pi * day[:, None] / 45.0 + self.phase[user])
        weight = np.exp(self.strength[user] + swing)
        cdf = np.cumsum(weight, axis=1)
        slot = (rng.random((len(user), 1)) * cdf[:, -1:] >= cdf).sum(axis=1).clip(max=INTERESTS - 1)
        switched = day >= self.switch_day[user, slot]
        return np.where(switched, self.later[user, slot], self.interest[user, slot])


def draw_users(
    config: SynthConfig, catalogue: Catalogue, first: int, count: int, rng: np.random.Generator
) -> Users:
    """Draw a block of users.

    Args:
        config: settings; activity dials and days are read.
        catalogue: for the share of each category and the directions of taste.
        first: `user_id` of the first.
        count: users to draw.
        rng: source of the draws.

    Returns:
        The users.
    """
    activity = config.history_events * np.exp(config.activity_spread * rng.normal(size=count))
    shape = (count, INTERESTS)
    switch_day = np.where(rng.random(shape) < _SWITCH_SHARE, rng.random(shape) * config.days, math.inf)
    style = rng.normal(size=(count, STYLES))
    taste = style @ catalogue.style_basis
    return Users(
        first=first,
        age=rng.choice(len(AGE_BANDS), count, p=(0.08, 0.24, 0.26, 0.18, 0.13, 0.11)),
        country=rng.choice(len(COUNTRIES), count, p=(0.24, 0.2, 0.14, 0.12, 0.1, 0.08, 0.07, 0.05)),
        device=rng.choice(len(DEVICES), count, p=(0.5, 0.28, 0.16, 0.06)),
        activity=np.maximum(activity, config.history_minimum),
        interest=_category(catalogue, rng, shape),
        later=_category(catalogue, rng, shape),
        switch_day=switch_day,
        strength=rng.normal(size=shape),
        phase=rng.random(shape) * 2 * np.pi,
        taste=taste / np.linalg.norm(taste, axis=1, keepdims=True),
    )


def _category(catalogue: Catalogue, rng: np.random.Generator, shape: tuple[int, int]) -> IntArray:
    """Half by popularity, half uniform, so that small categories have their lovers too."""
    popular = np.searchsorted(catalogue.category_cdf, rng.random(shape), side="right")
    return np.where(rng.random(shape) < 0.5, popular, rng.integers(0, CATEGORIES, shape)).astype(np.int64)
