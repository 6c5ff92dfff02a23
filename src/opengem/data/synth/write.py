"""The world as files: a shard's logs by day, the catalogue, the users, the schema.

Logs look like any other: nothing in them but `truth/` says that they were made up.
"""

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from opengem.data.synth.catalogue import Catalogue
from opengem.data.synth.config import (
    AGE_BANDS,
    CATEGORIES,
    CATEGORY_GROUPS,
    COUNTRIES,
    CREATIVE_WIDTH,
    DEVICES,
    FORMATS,
    MS_DAY,
    SURFACES,
    ZONES,
    SynthConfig,
)
from opengem.data.synth.history import CLICK, CONVERSION, EVENT_TYPES, IMPRESSION
from opengem.data.synth.parameters import LIKE_SURFACES, TASKS
from opengem.data.synth.simulate import Block

_ID_BITS = 34
_NONE = -1


def write_shard(
    config: SynthConfig, catalogue: Catalogue, blocks: list[Block], shard: int, out: Path
) -> dict[str, int]:
    """Write the logs and the truth of one shard, one file a table and day.

    Args:
        config: settings.
        catalogue: for category and advertiser of ads and items.
        blocks: the simulated users of the shard, in order.
        shard: number of the shard; identifiers start at `shard << 34`, so that shards never meet.
        out: world folder.

    Returns:
        Counts: impressions, events, clicks, conversions (those that the log reaches), likes.
    """
    impressions, order = _impressions(blocks, shard)
    events = _events(config, catalogue, blocks, impressions, order, shard)
    truth = _truth(blocks, impressions, order)
    suffix = "" if config.users <= config.users_of_shard else f".part-{shard:05d}"
    for name, columns in (("impressions", impressions), ("events", events), ("truth", truth)):
        time = events["time"] if name == "events" else impressions["time"]
        _write_days(config, columns, time, out / name, suffix)
    return {
        "impressions": len(order),
        "events": len(events["time"]),
        "clicks": int(impressions["click"].sum()),
        "conversions": int((events["type"] == CONVERSION).sum()),
        "likes": int(impressions["like"].sum()),
    }


def write_catalogue(config: SynthConfig, catalogue: Catalogue, path: Path) -> None:
    """Write ads and organic items, one row each; items have neither advertiser nor price.

    Args:
        config: for the first day.
        catalogue: ads and items.
        path: file to write.
    """
    item = np.arange(len(catalogue.category)) >= catalogue.num_ads
    width = CATEGORIES // CATEGORY_GROUPS
    days = (config.start - datetime.date(1970, 1, 1)).days + catalogue.created
    table = pa.table(
        {
            "ad_id": pa.array(np.arange(len(item))),
            "advertiser": pa.array(catalogue.advertiser, mask=item),
            "category": pa.array(catalogue.category),
            "category_group": pa.array(catalogue.category // width),
            "format": _words((*FORMATS, "organic"), np.where(item, len(FORMATS), catalogue.format)),
            "price": pa.array(catalogue.price, mask=item),
            "created": pa.array(days.astype("datetime64[D]")),
            "creative": pa.FixedSizeListArray.from_arrays(
                pa.array(catalogue.creative.ravel()), CREATIVE_WIDTH
            ),
        }
    )
    pq.write_table(table, path)


def write_users(age: np.ndarray, country: np.ndarray, path: Path) -> None:
    """Write what the logs know of users.

    Args:
        age: (U,) index into the age bands, row is `user_id`.
        country: (U,) index into the countries.
        path: file to write.
    """
    zones = tuple(
        f"UTC{'+' if zone >= 0 else '-'}{abs(int(zone)):02d}:{int(abs(zone) % 1 * 60):02d}" for zone in ZONES
    )
    table = pa.table(
        {
            "user_id": pa.array(np.arange(len(age))),
            "age_band": _words(AGE_BANDS, age),
            "country": _words(COUNTRIES, country),
            "time_zone": _words(zones, country),
        }
    )
    pq.write_table(table, path)


def _words(words: tuple[str, ...], index: np.ndarray) -> pa.Array:
    """Spell out an index, as plain strings."""
    return pa.array(words).take(pa.array(index))


def _stack(parts: list[np.ndarray]) -> np.ndarray:
    """Put the blocks after one another."""
    return np.concatenate(parts)


def _impressions(blocks: list[Block], shard: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Collect the ads shown in time order; return the order too."""
    pages = np.cumsum([0] + [len(block.requests.time) for block in blocks])
    request = _stack([b.requests.request + first for b, first in zip(blocks, pages, strict=False)])
    page_time = _stack([b.requests.time for b in blocks])
    page_user = _stack([b.requests.user + b.users.first for b in blocks])
    page_order = np.lexsort((page_user, page_time))
    page_id = np.empty(len(page_order), dtype=np.int64)
    page_id[page_order] = np.arange(len(page_order)) + (shard << _ID_BITS)
    position = _stack([b.position for b in blocks])
    order = np.lexsort((position, page_id[request]))
    request = request[order]
    surface = _stack([b.requests.surface for b in blocks])[request]
    return {
        "impression_id": np.arange(len(order)) + (shard << _ID_BITS),
        "request_id": page_id[request],
        "user_id": page_user[request],
        "ad_id": _stack([b.requests.ad for b in blocks])[order],
        "surface": surface,
        "time": page_time[request],
        "device": _stack([b.requests.device for b in blocks])[request],
        "position": position[order],
        "click": (_stack([b.clicked_at for b in blocks])[order] > 0).astype(np.int8),
        "like": _stack([b.liked for b in blocks])[order].astype(np.int8),
    }, order


def _events(
    config: SynthConfig,
    catalogue: Catalogue,
    blocks: list[Block],
    impressions: dict[str, np.ndarray],
    order: np.ndarray,
    shard: int,
) -> dict[str, np.ndarray]:
    """Collect everything that happened in one time-ordered log."""
    clicked = _stack([b.clicked_at for b in blocks])[order]
    converted = _stack([b.converted_at for b in blocks])[order]
    end = config.start_ms + config.log_days * MS_DAY
    organic = {
        "user_id": _stack([b.organic.user + b.users.first for b in blocks]),
        "type": _stack([b.organic.kind for b in blocks]),
        "surface": _stack([b.organic_surface for b in blocks]),
        "item_id": _stack([b.organic.item for b in blocks]),
        "category": _stack([b.organic.category for b in blocks]),
        "advertiser": _stack([b.organic.advertiser for b in blocks]),
        "time": _stack([b.organic.time for b in blocks]),
        "request_id": _stack([np.full(len(b.organic), _NONE) for b in blocks]),
    }
    parts = [organic]
    for kind, time in ((IMPRESSION, impressions["time"]), (CLICK, clicked), (CONVERSION, converted)):
        # What comes after the last day of the log was not yet known when it was written.
        rows = np.flatnonzero((time > 0) & (time < end))
        ad = impressions["ad_id"][rows]
        parts.append(
            {
                "user_id": impressions["user_id"][rows],
                "type": np.full(len(rows), kind),
                "surface": impressions["surface"][rows],
                "item_id": ad,
                "category": catalogue.category[ad],
                "advertiser": catalogue.advertiser[ad],
                "time": time[rows],
                "request_id": impressions["request_id"][rows],
            }
        )
    merged = {name: _stack([part[name] for part in parts]) for name in organic}
    by_time = np.lexsort((merged["type"], merged["user_id"], merged["time"]))
    rows = {name: column[by_time] for name, column in merged.items()}
    return {"event_id": np.arange(len(by_time)) + (shard << _ID_BITS), **rows}


def _truth(
    blocks: list[Block], impressions: dict[str, np.ndarray], order: np.ndarray
) -> dict[str, np.ndarray]:
    """Collect probabilities and terms beside the impressions."""
    truth = {"impression_id": impressions["impression_id"]}
    for task in TASKS:
        truth[f"p_{task}"] = _stack([b.probability[task] for b in blocks])[order]
    for task in TASKS:
        for term in blocks[0].terms[task]:
            truth[f"{task}_{term}"] = _stack([b.terms[task][term] for b in blocks])[order]
    exists = np.isin(impressions["surface"], [SURFACES.index(name) for name in LIKE_SURFACES])
    return {k: np.where(exists, v, np.nan) if k == "p_like" else v for k, v in truth.items()}


_SPELLED = {"surface": SURFACES, "device": DEVICES, "type": EVENT_TYPES}


def _write_days(
    config: SynthConfig, columns: dict[str, np.ndarray], time: np.ndarray, folder: Path, suffix: str
) -> None:
    """Write one file for each UTC day that has rows."""
    folder.mkdir(parents=True, exist_ok=True)
    edges = np.searchsorted(time, config.start_ms + np.arange(config.log_days + 1) * MS_DAY)
    for day in range(config.log_days):
        rows = slice(edges[day], edges[day + 1])
        if rows.start == rows.stop:
            continue
        part = {name: column[rows] for name, column in columns.items()}
        table = pa.table({name: _arrow(name, column, part) for name, column in part.items()})
        pq.write_table(table, folder / f"day={config.day(day).isoformat()}{suffix}.parquet")


def _arrow(name: str, column: np.ndarray, part: dict[str, np.ndarray]) -> pa.Array:
    """Give a column its type in the log: words spelled out, missing values null."""
    if name in _SPELLED:
        return _words(_SPELLED[name], column)
    if name in ("item_id", "category", "advertiser", "request_id"):
        return pa.array(column, mask=column == _NONE)
    if name == "position":
        return pa.array(column.astype(np.int32))
    if name == "like":
        absent = ~np.isin(part["surface"], [SURFACES.index(surface) for surface in LIKE_SURFACES])
        return pa.array(column, mask=absent)
    if name == "p_like":
        return pa.array(column, mask=np.isnan(column))
    if column.dtype == np.float64 and not name.startswith("p_"):
        return pa.array(column.astype(np.float32))
    return pa.array(column)
