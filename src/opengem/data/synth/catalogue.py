"""What can be shown and viewed: ads and organic items in one id space and one category tree."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opengem.data.synth.config import CATEGORIES, CATEGORY_GROUPS, CREATIVE_WIDTH, FORMATS, SynthConfig

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

STYLES = 4
_OLDEST_DAY = -60
_MEAN_LIFE_DAYS = 25.0


class GroupedSampler:
    """Draws a weighted member of a named group, many draws at once."""

    def __init__(self, group: IntArray, member: IntArray, weight: FloatArray, groups: int) -> None:
        order = np.argsort(group, kind="stable")
        self._member = member[order]
        self._total = np.concatenate([[0.0], np.cumsum(weight[order])])
        self._offset = np.searchsorted(group[order], np.arange(groups + 1))

    def sample(self, group: IntArray, uniform: FloatArray) -> IntArray:
        """Draw one member for each named group.

        Args:
            group: (N,) group of each draw, every group named must have a member.
            uniform: (N,) draws from [0, 1).

        Returns:
            (N,) members, each in proportion to its weight.
        """
        low, high = self._offset[group], self._offset[group + 1]
        point = self._total[low] + uniform * (self._total[high] - self._total[low])
        # Rounding may put the point on the far edge of the group.
        place = np.clip(np.searchsorted(self._total, point, side="right") - 1, low, high - 1)
        return self._member[place]


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Ads first, organic items after them; row number is `ad_id` and `item_id`.

    Args:
        num_ads: rows that are ads.
        category: (N,) category.
        advertiser: (N,) advertiser, -1 for organic items.
        format: (N,) index into `FORMATS`, -1 for organic items.
        price: (N,) currency units, NaN for organic items.
        created: (N,) day of creation, counted from the first day, may be negative.
        creative: (N, 32) unit vectors, float32.
        ads_by_day: draws an ad alive on a day from a category, group `day * CATEGORIES + category`.
        items_by_category: draws an organic item of a category.
        category_cdf: (CATEGORIES,) cumulative share of each category in the background.
        style_basis: (STYLES, 32) directions the creatives vary along.
    """

    num_ads: int
    category: IntArray
    advertiser: IntArray
    format: IntArray
    price: FloatArray
    created: IntArray
    creative: npt.NDArray[np.float32]
    ads_by_day: GroupedSampler
    items_by_category: GroupedSampler
    category_cdf: FloatArray
    style_basis: FloatArray


def build_catalogue(config: SynthConfig) -> Catalogue:
    """Draw the ads and organic items of a world.

    Args:
        config: settings; only sizes, days and seed are read.

    Returns:
        The catalogue, the same for the same settings.

    Source:
        Our reconstruction.
    """
    rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(1,)))
    ads, items = config.num_ads, config.num_items
    popularity = rng.permutation(_zipf(CATEGORIES, 0.6))
    category_cdf = np.cumsum(popularity)
    category_cdf[-1] = 1.0

    advertiser, ad_category = _advertisers(rng, config, category_cdf)
    item_category = np.searchsorted(category_cdf, rng.random(items), side="right")
    # The first rows of each kind cover every category, so that no group is empty on any day.
    ad_category[:CATEGORIES] = np.arange(CATEGORIES)
    item_category[:CATEGORIES] = np.arange(CATEGORIES)
    category = np.concatenate([ad_category, item_category]).astype(np.int64)

    created, dead = _lives(rng, ads, config.days)
    weight = rng.permutation(_zipf(ads, 0.7))
    first, last = np.maximum(created, 0), np.minimum(dead, config.days)
    alive = np.maximum(last - first, 0)
    ad = np.repeat(np.arange(ads), alive)
    day = np.arange(len(ad)) - np.repeat(np.cumsum(alive) - alive, alive) + first[ad]
    creative, basis = _creatives(rng, category)
    blank = np.full(items, -1, dtype=np.int64)
    return Catalogue(
        num_ads=ads,
        category=category,
        advertiser=np.concatenate([advertiser, blank]),
        format=np.concatenate([rng.choice(len(FORMATS), ads, p=(0.3, 0.3, 0.15, 0.15, 0.1)), blank]),
        price=np.concatenate([np.round(np.exp(rng.normal(3.0, 0.8, ads)), 2), np.full(items, np.nan)]),
        created=np.concatenate([created, rng.integers(_OLDEST_DAY, 0, items)]),
        creative=creative,
        ads_by_day=GroupedSampler(day * CATEGORIES + category[ad], ad, weight[ad], config.days * CATEGORIES),
        items_by_category=GroupedSampler(
            category[ads:], ads + np.arange(items), rng.permutation(_zipf(items, 0.7)), CATEGORIES
        ),
        category_cdf=category_cdf,
        style_basis=basis,
    )


def _zipf(size: int, power: float) -> FloatArray:
    """Shares that fall with the power of the rank."""
    share = np.arange(1, size + 1, dtype=np.float64) ** -power
    return share / share.sum()


def _advertisers(
    rng: np.random.Generator, config: SynthConfig, category_cdf: FloatArray
) -> tuple[IntArray, IntArray]:
    """Give each ad an advertiser and one of that advertiser's three categories, all in one group."""
    count = config.num_advertisers
    home = np.searchsorted(category_cdf, rng.random(count), side="right")
    width = CATEGORIES // CATEGORY_GROUPS
    near = home // width * width
    of_advertiser = np.stack([home, near + rng.integers(0, width, count), home], axis=1)
    advertiser = rng.choice(count, config.num_ads, p=_zipf(count, 0.6)).astype(np.int64)
    return advertiser, of_advertiser[advertiser, rng.integers(0, 3, config.num_ads)]


def _lives(rng: np.random.Generator, ads: int, days: int) -> tuple[IntArray, IntArray]:
    """Draw the day each ad is created and the day it is gone."""
    old = rng.random(ads) < 0.45
    created = np.where(old, rng.integers(_OLDEST_DAY // 4, 1, ads), rng.integers(0, days, ads))
    dead = created + 3 + np.floor(rng.exponential(_MEAN_LIFE_DAYS, ads)).astype(np.int64)
    created[:CATEGORIES], dead[:CATEGORIES] = _OLDEST_DAY, days
    return created.astype(np.int64), dead


def _creatives(rng: np.random.Generator, category: IntArray) -> tuple[npt.NDArray[np.float32], FloatArray]:
    """Draw unit vectors: a style, a touch of the category, and noise."""
    basis = np.linalg.qr(rng.normal(size=(CREATIVE_WIDTH, STYLES)))[0].T
    centre = rng.normal(size=(CATEGORIES, CREATIVE_WIDTH)) / np.sqrt(CREATIVE_WIDTH)
    style = rng.normal(size=(len(category), STYLES))
    noise = rng.normal(size=(len(category), CREATIVE_WIDTH)) / np.sqrt(CREATIVE_WIDTH)
    vector = style @ basis + 0.5 * centre[category] + 0.6 * noise
    vector /= np.linalg.norm(vector, axis=1, keepdims=True)
    return vector.astype(np.float32), basis
