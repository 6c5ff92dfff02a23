"""Settings of the planted world: one dial for its size, one weight for each planted effect."""

import datetime
import math
from dataclasses import dataclass, field
from statistics import NormalDist

from opengem.errors import ConfigError, nearest

MS_SECOND = 1_000
MS_MINUTE = 60_000
MS_HOUR = 3_600_000
MS_DAY = 86_400_000

SURFACES = ("feed", "reels", "stories", "messaging")
FORMATS = ("image", "video", "carousel", "card", "text")
DEVICES = ("android", "ios", "web", "tablet")
AGE_BANDS = ("13-17", "18-24", "25-34", "35-44", "45-54", "55+")
COUNTRIES = ("IN", "US", "BR", "ID", "DE", "NG", "JP", "GB")
# Hours east of Greenwich; one zone a country is enough to move the day.
ZONES = (5.5, -5.0, -3.0, 7.0, 1.0, 1.0, 9.0, 0.0)

CATEGORY_GROUPS = 8
CATEGORIES = 40
CREATIVE_WIDTH = 32

# Days of organic events after the last impression, so that every 7-day label window closes in the log.
TAIL_DAYS = 8
CONVERSION_WINDOW_DAYS = 7

EFFECTS = (
    "lasting",
    "curiosity",
    "recency",
    "fatigue",
    "order",
    "cross",
    "taste",
    "context",
    "surface",
    "drift",
    "cold",
)


def default_effects() -> dict[str, float]:
    """Give weight 1 to every planted effect, the world the rates and NE of the guide belong to.

    Returns:
        Effect name to weight.
    """
    return dict.fromkeys(EFFECTS, 1.0)


@dataclass(frozen=True, kw_only=True)
class SynthConfig:
    """Settings of one synthetic world.

    Args:
        users: number of users, the dial of size, at least 1.
        days: days with ads, 5 to 2,000; organic events run on for 8 days so that label windows close.
        seed: of every random draw; the same seed gives the same bytes at any number of workers.
        start: first UTC day.
        effects: weight of each planted effect, 0 switches it off, effects left out keep weight 1.
        workers: processes that simulate shards of users, at least 1.
        impressions_per_user: mean ads shown to a user over all days, above 0.
        history_events: median organic events of a user over all days, at least 1.
        history_minimum: least expected organic events of a user; with both at 1,000 most histories are long.
        activity_spread: standard deviation of log activity, 0 to 2; sets how heavy the tail of users is.
        click_rate: clicks an impression over all surfaces, 0.005 to 0.4.
        ads: number of ads; by default grows with the square root of users.
        items: number of organic items; by default grows with the square root of users.
        shard_users: users of one shard (one process, one set of files); by default about 4 million events.

    Raises:
        ConfigError: a value is out of range or an effect has an unknown name.
    """

    users: int = 2_000
    days: int = 60
    seed: int = 0
    start: datetime.date = datetime.date(2025, 1, 6)
    effects: dict[str, float] = field(default_factory=default_effects)
    workers: int = 1
    impressions_per_user: float = 35.0
    history_events: float = 34.0
    history_minimum: float = 0.0
    activity_spread: float = 1.2
    click_rate: float = 0.12
    ads: int | None = None
    items: int | None = None
    shard_users: int | None = None

    def __post_init__(self) -> None:
        _in_range("users", self.users, 1, 10**10)
        _in_range("days", self.days, 5, 2_000)
        _in_range("seed", self.seed, 0, 2**63)
        _in_range("workers", self.workers, 1, 4_096)
        _in_range("impressions_per_user", self.impressions_per_user, 0.1, 1e5)
        _in_range("history_events", self.history_events, 1, 1e6)
        _in_range("history_minimum", self.history_minimum, 0, 1e6)
        _in_range("activity_spread", self.activity_spread, 0, 2)
        _in_range("click_rate", self.click_rate, 0.005, 0.4)
        for name in ("ads", "items"):
            if getattr(self, name) is not None:
                _in_range(name, getattr(self, name), 2 * CATEGORIES, 10**8)
        if self.shard_users is not None:
            _in_range("shard_users", self.shard_users, 1, 10**10)
        for name, weight in self.effects.items():
            if name not in EFFECTS:
                raise ConfigError(
                    f'effects: unknown effect "{name}"{nearest(name, EFFECTS)}. Known: {", ".join(EFFECTS)}.'
                )
            if not math.isfinite(weight) or weight < 0:
                raise ConfigError(f"effects.{name}: must be a finite number of at least 0, got {weight!r}.")

    def weight(self, effect: str) -> float:
        """Look up the weight of an effect.

        Args:
            effect: one of `EFFECTS`.

        Returns:
            Its weight, 1 where `effects` does not name it.
        """
        return float(self.effects.get(effect, 1.0))

    @property
    def start_ms(self) -> int:
        """Unix time in ms of the first UTC midnight."""
        return (self.start - datetime.date(1970, 1, 1)).days * MS_DAY

    @property
    def log_days(self) -> int:
        """Days the event log covers, the tail included."""
        return self.days + TAIL_DAYS

    @property
    def jump_day(self) -> int:
        """Day on which the weights jump: three quarters of the way, day 45 of 60."""
        return (3 * self.days) // 4

    @property
    def messaging_day(self) -> int:
        """First day of the young surface."""
        return self.days // 4

    @property
    def mean_history(self) -> float:
        """Expected organic events of a user over the whole log: a log-normal, cut from below."""
        median, low, spread = self.history_events, self.history_minimum, self.activity_spread
        if spread == 0 or low == 0:
            return max(median * math.exp(spread**2 / 2), low)
        cut = math.log(low / median) / spread
        below, above = NormalDist().cdf(cut), NormalDist().cdf(spread - cut)
        return low * below + median * math.exp(spread**2 / 2) * above

    @property
    def num_ads(self) -> int:
        """Ads in the catalogue."""
        return self.ads or max(240, round(1_200 * math.sqrt(self.users / 2_000)))

    @property
    def num_items(self) -> int:
        """Organic items in the catalogue."""
        return self.items or max(400, round(2_400 * math.sqrt(self.users / 2_000)))

    @property
    def num_advertisers(self) -> int:
        """Advertisers that own the ads."""
        return min(16_384, max(30, self.num_ads // 20))

    @property
    def users_of_shard(self) -> int:
        """Users simulated and written together; never a function of `workers`."""
        per_user = self.mean_history + 1.3 * self.impressions_per_user
        return self.shard_users or max(256, int(4_000_000 / per_user))

    @property
    def users_of_block(self) -> int:
        """Users simulated in one go inside a shard; bounds the memory."""
        per_user = self.mean_history + 1.3 * self.impressions_per_user
        return int(min(1_024, max(16, 200_000 / per_user)))

    def splits(self) -> dict[str, tuple[datetime.date, datetime.date]]:
        """Cut the days into train, validation and test.

        The first days (7 of 60) only fill histories; the last fifth is the test.

        Returns:
            Split name to first and last UTC day, both inside.
        """
        test = round(0.8 * self.days)
        validation = test - max(1, round(self.days / 30))
        burn = min(round(self.days * 7 / 60), validation - 1)
        edges = {
            "train": (burn, validation - 1),
            "validation": (validation, test - 1),
            "test": (test, self.days - 1),
        }
        return {name: (self.day(first), self.day(last)) for name, (first, last) in edges.items()}

    def day(self, index: int) -> datetime.date:
        """Turn a day number into a date.

        Args:
            index: days since `start`.

        Returns:
            The UTC day.
        """
        return self.start + datetime.timedelta(days=index)


def _in_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a setting outside its range."""
    if not (math.isfinite(value) and low <= value <= high):
        raise ConfigError(f"{name}: must be between {low:g} and {high:g}, got {value!r}.")
