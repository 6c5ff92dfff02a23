"""A small synthetic world with columns added to its tables: leaks of many kinds, and innocent ones."""

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MINUTE, DAY = 60_000, 86_400_000


class World:
    """A copy of a world's files that columns and features can be added to."""

    def __init__(self, world: Path, folder: Path) -> None:
        self.folder = Path(shutil.copytree(world, folder, ignore=shutil.ignore_patterns("truth")))
        self.rows = _sorted(pq.read_table(world / "impressions"), "impression_id")
        self.events = pq.read_table(world / "events")
        truths = [str(path) for path in sorted((world / "truth").glob("*.parquet"))]
        truth = _sorted(pq.read_table(truths, columns=["impression_id", "p_click"]), "impression_id")
        self.p = truth["p_click"].to_numpy()
        self.click = self.rows["click"].to_numpy()
        self.user, self.ad = (self.rows[c].to_numpy() for c in ("user_id", "ad_id"))
        self.time = self.rows["time"].to_numpy()
        self.features = (folder / "schema.toml").read_text()

    def feature(self, name: str, owner: str, kind: str) -> None:
        """Declare a feature."""
        self.features += f'\n[[features]]\nname = "{name}"\nowner = "{owner}"\nkind = "{kind}"\n'
        (self.folder / "schema.toml").write_text(self.features)

    def add(self, columns: dict[str, pa.Array]) -> None:
        """Add columns to the impressions."""
        known = self.rows["impression_id"].to_numpy()
        for path in sorted((self.folder / "impressions").glob("*.parquet")):
            table = pq.read_table(path)
            at = pa.array(np.searchsorted(known, table["impression_id"].to_numpy()))
            for name, column in columns.items():
                table = table.append_column(name, column.take(at))
            pq.write_table(table, path)

    def add_to(self, table: str, key: str, name: str, values: dict[int, Any]) -> None:
        """Add a column to users or ads; keys without a value get null."""
        path = self.folder / f"{table}.parquet"
        read = pq.read_table(path)
        pq.write_table(
            read.append_column(name, pa.array([values.get(k) for k in read[key].to_pylist()])), path
        )

    def around(self, kinds: Iterable[str] | None, since: int, until: int) -> np.ndarray:
        """Count the user's events of some kinds in `(time + since, time + until]` of each impression."""
        kept = (
            self.events
            if kinds is None
            else self.events.filter(pc.is_in(self.events["type"], pa.array(kinds)))
        )
        times: dict[int, list[int]] = defaultdict(list)
        for user, time in zip(kept["user_id"].to_pylist(), kept["time"].to_pylist(), strict=True):
            times[user].append(time)
        arrays = {user: np.sort(t) for user, t in times.items()}
        empty = np.empty(0, np.int64)
        return np.array(
            [
                np.diff(np.searchsorted(arrays.get(u, empty), [t + since, t + until], "right"))[0]
                for u, t in zip(self.user.tolist(), self.time.tolist(), strict=True)
            ]
        )

    def rates(
        self, keys: np.ndarray, values: np.ndarray, which: np.ndarray | None = None
    ) -> dict[int, float]:
        """Return key -> mean of the values, over some of the impressions."""
        which = np.ones(len(keys), bool) if which is None else which
        return {int(k): float(values[which & (keys == k)].mean()) for k in np.unique(keys[which])}

    def next_of_user(self) -> np.ndarray:
        """Return the click of the user's next impression, as a shift in the wrong direction gives it."""
        order = np.lexsort((np.arange(len(self.user)), self.user))
        found = np.full(len(order), np.nan)
        same = self.user[order[1:]] == self.user[order[:-1]]
        found[order[:-1][same]] = self.click[order[1:][same]]
        return found

    def running(self, keys: np.ndarray, part: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
        """Return for each impression the mean click of some impressions of its key; NaN for none."""
        result = np.full(len(keys), np.nan)
        for key in np.unique(keys):
            own = np.flatnonzero(keys == key)
            for row in own:
                chosen = own[part(self.time[own], int(self.time[row]))]
                if len(chosen):
                    result[row] = self.click[chosen].mean()
        return result


def plant_leaks(world: World, seed: int = 0) -> dict[str, str]:
    """Plant a leak of each kind, each read by a feature, and one that none reads.

    Returns:
        `TABLE.COLUMN` -> the kind of evidence that must find it.
    """
    random = np.random.default_rng(seed)
    y, n = world.click, len(world.click)
    quality = np.where(
        y == 1, *(random.choice(4, n, p=p) for p in ([0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5]))
    )
    context: dict[str, tuple[Any, str, str]] = {
        "engaged": (y, "number", "own row"),
        "noisy": (np.where(np.where(random.random(n) < 0.15, 1 - y, y) == 1, "yes", "no"), "id", "own row"),
        "stay_ms": (random.lognormal(6 + 2 * y, 1, n).astype(int), "number", "own row"),
        "actions_after": (world.around(("click", "like"), 0, 30 * MINUTE), "number", "later"),
        "rounded": (np.round(2 * y + random.normal(size=n)), "number", "own row"),
        "quality": (np.array(["high", "good", "fair", "poor"])[quality], "id", "own row"),
        "later_events": (world.around(None, 0, 10**12), "number", "later"),
        "scroll": (pa.array(random.random(n), mask=(y == 0) & (random.random(n) < 0.9)), "number", "own row"),
        "token": (np.where(y == 1, np.char.add("t", random.integers(10**9, size=n).astype(str)), ""), "id", "own row"),
        "closed_at": (world.time + random.integers(5_000, 600_000, n), "number", "later times"),
        "rate_from_now": (world.running(world.ad, lambda t, now: t >= now), "number", "later"),
        "rare_flag": (((y == 1) & (random.random(n) < 0.2)).astype(int), "number", "levels"),
    }  # fmt: skip
    page = world.rows["request_id"].to_numpy()
    context["page_clicked"] = (np.isin(page, page[y == 1]).astype(int), "number", "own row")
    context["next_label"] = (world.next_of_user(), "number", "later")
    context["unused_ms"] = (context["stay_ms"][0] // 7, "", "own row")
    world.add({name: pa.array(column, from_pandas=True) for name, (column, _, _) in context.items()})
    for name, (_, kind, _) in context.items():
        if kind:
            world.feature(name, "context", kind)
    days = world.time >= np.quantile(world.time, 0.8)
    world.add_to("ads", "ad_id", "ad_rate", world.rates(world.ad, y))
    world.add_to("ads", "ad_id", "ad_rate_of_late_days", world.rates(world.ad, y, days))
    world.add_to("users", "user_id", "user_rate", world.rates(world.user, y))
    totals = {k: round(v * int((world.user == k).sum())) for k, v in world.rates(world.user, y).items()}
    world.add_to("users", "user_id", "user_clicks", totals)
    for owner, names in (("ad", ("ad_rate", "ad_rate_of_late_days")), ("user", ("user_rate", "user_clicks"))):
        for name in names:
            world.feature(name, owner, "number")
    found = {f"impressions.{name}": how for name, (_, _, how) in context.items()}
    return found | dict.fromkeys(
        ("ads.ad_rate", "ads.ad_rate_of_late_days", "users.user_rate", "users.user_clicks"), "whole log"
    )


def add_innocents(world: World, seed: int = 0) -> list[str]:
    """Add columns that are known before the example, each read by a feature; some tell much of the label."""
    random = np.random.default_rng(seed)
    n = len(world.click)
    past = 10**12
    context: dict[str, Any] = {
        "noise": random.normal(size=n),
        "coin": random.integers(0, 2, n),
        "day": world.time // DAY,
        "ad_rate_before": world.running(world.ad, lambda t, now: t < now),
        "user_rate_before": world.running(world.user, lambda t, now: t < now),
        "events_before": world.around(None, -past, -1),
        "events_in_the_hour_before": world.around(None, -60 * MINUTE, -1),
        "clicks_before": world.around(("click",), -past, -1),
        "guess": world.p * np.exp(1.5 * random.normal(size=n)),
    }
    world.add({name: pa.array(column, from_pandas=True) for name, column in context.items()})
    for name in context:
        world.feature(name, "context", "number")
    names = [f"impressions.{name}" for name in context]
    for owner, table, keys in (("ad", "ads", world.ad), ("user", "users", world.user)):
        every = np.unique(keys).tolist()
        early = world.time < np.quantile(world.time, 0.1)
        world.add_to(table, f"{owner}_id", f"{owner}_true_rate", world.rates(keys, world.p))
        world.add_to(
            table,
            f"{owner}_id",
            f"{owner}_noise",
            dict(zip(every, random.normal(size=len(every)), strict=True)),
        )
        world.add_to(table, f"{owner}_id", f"{owner}_early_share", world.rates(keys, early * 1.0))
        for name in ("true_rate", "noise", "early_share"):
            world.feature(f"{owner}_{name}", owner, "number")
            names.append(f"{table}.{owner}_{name}")
    return names


def _sorted(table: pa.Table, key: str) -> pa.Table:
    return table.sort_by(key).combine_chunks()
