"""The words of a schema file: tables, features, streams, tasks and splits, as frozen dataclasses (no torch)."""

from dataclasses import dataclass, field
from typing import Literal

Owner = Literal["user", "ad", "context"]
Kind = Literal["id", "ids", "number", "vector"]
TimeUnit = Literal["s", "ms", "us", "ns", "iso8601", "timestamp"]


@dataclass(frozen=True, kw_only=True)
class TimeColumn:
    """A column that holds a time, and how it is written.

    Attributes:
        column: Name of the column.
        unit: `s`, `ms`, `us`, `ns` since 1970-01-01 UTC; `iso8601` text; or `timestamp`, a Parquet timestamp.
        zone: Zone of text and timestamps that carry none (an IANA name). Without it such times are refused.
    """

    column: str
    unit: TimeUnit = "ms"
    zone: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of the user's logs: a Parquet file, a folder of them, or a glob.

    Attributes:
        path: File, folder or glob, relative to the schema's root.
        key: Primary key (users, ads); for impressions the request that the row belongs to.
        id: Impressions only: a unique int64 that names the row in label stores and predictions.
        user: Column of the user who acted.
        ad: Impressions only: column of the ad that was shown.
        item: Event tables only: column of the item acted on; it joins the ads table by key.
        type: Event tables only: column of the event's type.
        request: Event tables only: column of the request that an event belongs to.
        surface: Impressions only: column of the surface.
        time: When it happened.
        arrival: When the row could first be read; the event's own time if not given.
        where: Keep only the rows whose column holds one of the listed values.
        span: Keep only the rows whose time lies in `[start, end)`, Unix ms (written like a split); rows
            outside, such as those of a broken clock, are quarantined.
        deduplicate: Drop rows equal to an earlier row in every column (counted in the report).
    """

    path: str
    key: str | None = None
    id: str | None = None
    user: str | None = None
    ad: str | None = None
    item: str | None = None
    type: str | None = None
    request: str | None = None
    surface: str | None = None
    time: TimeColumn | None = None
    arrival: TimeColumn | None = None
    where: dict[str, list[str | int | float | bool]] = field(default_factory=dict)
    span: tuple[int, int] | None = None
    deduplicate: bool = False


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One input of the model that stands beside the histories.

    Attributes:
        name: Name of the feature, unique.
        owner: Whose it is: `user` (held once a request), `ad`, or `context` (of the example).
        kind: `id` (one id), `ids` (a list of them), `number`, or `vector` (a list of floats of one length).
        column: Column it is read from; the feature's name by default.
        table: Embedding table that it reads (ids only); the feature's name by default. Tables can be shared.
        derive: Context ids only: `hour` or `weekday` (UTC, 0 is Monday) of the example's own time, instead of a
            column.
        separator: `ids` only: the column is text, and this stands between its ids.
        optional: A file may lack the column; its rows are missing.
        cast: Numbers only: read them from text; rows whose text is no number are quarantined.
    """

    name: str
    owner: Owner
    kind: Kind
    column: str = ""
    table: str = ""
    derive: Literal["", "hour", "weekday"] = ""
    separator: str = ""
    optional: bool = False
    cast: bool = False


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """One column of an event. It is read from the stream's own table, else from the ads table by the event's item.

    Attributes:
        name: Name of the attribute, unique in its stream.
        kind: `id` or `number`.
        column: Column it is read from; the attribute's name by default.
        table: Embedding table that it reads (ids only); the attribute's name by default.
        separator: The column is text that holds several ids; the first of them is read.
        optional: A file may lack the column; its rows are missing.
    """

    name: str
    kind: Literal["id", "number"] = "id"
    column: str = ""
    table: str = ""
    separator: str = ""
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class ReadyHistory:
    """Ready-made histories: a table with one row a user and list columns, oldest first.

    Attributes:
        path: Parquet file, folder or glob.
        user: Column of the user.
        lists: Event attribute -> list column. Attributes that are missing here are read from the ads table
            when `lists` names the item, and are null otherwise.
        members: Event attribute -> list column of items: 1 where the event's item is in the user's list, 0 where it is
            not, null where the user has no such list. For feedback that is kept as lists of items.
        times: List column of the times, if there is one; without it events keep their order, count as
            older than all of the log, and carry a missing time.
    """

    path: str
    user: str
    lists: dict[str, str]
    members: dict[str, str] = field(default_factory=dict)
    times: TimeColumn | None = None


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What one history is made of: events of one table, or the impressions themselves.

    Attributes:
        name: Name of the stream.
        from_table: Table (`from` in the file): an event table, or `impressions`.
        types: Keep only these event types.
        attributes: What the model sees of each event.
        ready: Ready-made histories that come before the stream's own events.
    """

    name: str
    from_table: str
    types: tuple[str, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    ready: ReadyHistory | None = None


@dataclass(frozen=True, kw_only=True)
class EventLabel:
    """A label made by a later event of the same user and ad, within a window `(t, t + within]`.

    Attributes:
        table: Event table.
        type: The event type that makes the label positive (any type if the table has no type column).
        within_ms: Length of the window in milliseconds (`within = "7d"` in the file).
        attribution: `last` credits only the user's last impression of the ad (in the same request, where
            both tables carry one) before the event; `any` credits each impression whose window holds it.
    """

    table: str
    within_ms: int
    type: str = ""
    attribution: Literal["last", "any"] = "last"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One thing to predict.

    Attributes:
        name: Name of the task.
        label: Label column of impressions with 0, 1 or null (null is masked).
        event: Or the event that makes the label.
        given: The task it is conditional on: p(task) = p(given) p(task | given).
        surfaces: Surfaces in which it exists; empty means all.
    """

    name: str
    label: str = ""
    event: EventLabel | None = None
    given: str = ""
    surfaces: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Which requests are for training, validation and test: by their time, or by a column of impressions.

    Attributes:
        train: Time range `[start, end)` in Unix milliseconds UTC; the file gives inclusive UTC days or ISO times.
        validation: The same; an empty range if the schema has none.
        test: The same; an empty range if the schema has none.
        column: Column of impressions that names the split, instead of the time; the ranges are then (0, 0).
        values: Split -> the values of that column.
    """

    train: tuple[int, int]
    validation: tuple[int, int]
    test: tuple[int, int]
    column: str = ""
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """How many ids of an embedding table get a row of their own; all others share the unseen row.

    Attributes:
        min_count: Least number of times that an id is seen in the training window.
        limit: Greatest number of ids, most frequent first (ties: smaller text first); 0 is no limit.
    """

    min_count: int = 1
    limit: int = 0


@dataclass(frozen=True, kw_only=True)
class Schema:
    """All that OpenGEM knows of a user's logs. Made by `load_schema`.

    `fingerprint` goes into every artefact: it stands for what columns, features, streams and tasks mean, not for
    where the logs lie or how they are split. `text` is the file as it was written.
    """

    name: str
    root: str
    tables: dict[str, Table]
    features: tuple[Feature, ...]
    streams: tuple[Stream, ...]
    tasks: tuple[Task, ...]
    splits: Splits
    fingerprint: str
    vocabularies: dict[str, Vocabulary] = field(default_factory=dict)
    text: str = field(default="", repr=False, compare=False)

    @property
    def impressions(self) -> Table:
        """The table of impressions, which every schema has."""
        return self.tables["impressions"]
