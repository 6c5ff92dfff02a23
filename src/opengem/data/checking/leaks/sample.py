"""The examples that columns are measured on, and for each the user's and the ad's example before it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from opengem.data.checking.logs import Logs

ROWS = 200_000
"""Most examples that columns are measured on; beyond it, those of the smallest hashes, the same each time."""
SURFACES = 200
"""Surfaces that are told apart, the most frequent; the others count as one."""
PAST = ("user", "ad")


@dataclass
class Sample:
    """Sampled examples; all arrays have one entry an example, in the order of time.

    Attributes:
        total: Examples that could have been sampled.
        row: Row of the example, int64.
        labels: Task -> float64 0, 1 or NaN.
        surface: int64 code of the surface, from 0.
        time: Unix ms of the request, int64.
        train: Whether it is a training example, bool.
        after: Whether it is one of validation or test, bool.
        half: 0 or 1 by a hash of the request, int64: the ads of one page stay together.
        entity: `user` and `ad` -> int64 code, from 0.
        keys: `user` and `ad` -> what the codes stand for.
        place: Table -> `own`, and for impressions `user` and `ad` -> int64 place of the row in the files, -1 for none;
            `user` is the newest example of the same user in an earlier request, `ad` the same of the ad.
    """

    total: int
    row: np.ndarray
    labels: dict[str, np.ndarray]
    surface: np.ndarray
    time: np.ndarray
    train: np.ndarray
    after: np.ndarray
    half: np.ndarray
    entity: dict[str, np.ndarray]
    keys: dict[str, np.ndarray]
    place: dict[str, dict[str, np.ndarray]]

    @property
    def rows(self) -> int:
        """Number of examples."""
        return len(self.row)


def draw_sample(logs: Logs, rows: int = ROWS) -> Sample:
    """Draw examples that carry a label.

    Args:
        logs: The logs, joined.
        rows: Most examples to draw.
    """
    con, schema = logs.con, logs.schema
    labelled = " OR ".join(f'"y_{t.name}" IS NOT NULL' for t in schema.tasks)
    (total,) = logs.one(f"SELECT count(*) FROM labelled_rows WHERE {labelled}")
    con.execute(
        f"CREATE TABLE sampled AS SELECT * FROM labelled_rows WHERE {labelled} ORDER BY hash(row), row LIMIT {rows}"
    )
    joins, columns = "", ""
    for name in PAST:
        joins += (
            f' ASOF LEFT JOIN (SELECT "{name}", request_time, max(src) AS src FROM labelled_rows GROUP BY ALL) '
            f'p_{name} ON p_{name}."{name}" = s."{name}" AND s.request_time > p_{name}.request_time'
        )
        columns += f", coalesce(p_{name}.src, -1) AS past_{name}"
    for name, row in (("users", "user_row"), ("ads", "ad_row")):
        if name in schema.tables:
            joins += f" LEFT JOIN {name} ON {name}.row = s.{row}"
            joins += f' LEFT JOIN "src_{name}" f_{name} ON f_{name}.key = {name}.key AND f_{name}.known = {name}.known'
            columns += f", coalesce(f_{name}.src, -1) AS in_{name}"
    found: Any = con.sql(
        f"SELECT s.*, hash(s.request) % 2 AS half{columns} FROM sampled s{joins} ORDER BY s.row"
    ).fetchnumpy()
    split = np.ma.filled(found["split"], "").astype(str)
    entity, keys = {}, {}
    for name in PAST:
        keys[name], entity[name] = np.unique(np.ma.filled(found[name], "").astype(str), return_inverse=True)
    place = {"impressions": {"own": _whole(found["src"])} | {n: _whole(found[f"past_{n}"]) for n in PAST}}
    place |= {n: {"own": _whole(found[f"in_{n}"])} for n in ("users", "ads") if n in schema.tables}
    return Sample(
        total=total,
        row=_whole(found["row"]),
        labels={t.name: np.ma.filled(found[f"y_{t.name}"].astype(np.float64), np.nan) for t in schema.tasks},
        surface=_frequent(np.ma.filled(found["surface"], "").astype(str)),
        time=_whole(found["request_time"]),
        train=split == "train",
        after=(split == "validation") | (split == "test"),
        half=_whole(found["half"]),
        entity=entity,
        keys=keys,
        place=place,
    )


def _whole(column: Any) -> np.ndarray:
    return np.ma.filled(column, -1).astype(np.int64)


def _frequent(values: np.ndarray) -> np.ndarray:
    """Return codes of values by falling frequency; the rare ones share one code."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return np.minimum(rank, SURFACES)[codes]
