"""What a model must know of its inputs: tables, features, streams and tasks after ingest (no torch)."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

PADDING_ROW = 0
"""Row of every embedding table for a missing value (null)."""

UNSEEN_ROW = 1
"""Row of every embedding table that all ids unseen in the training window share."""

MISSING_TIME = -(2**62)
"""Time, in Unix milliseconds, of an event that has none (ready-made histories)."""


@dataclass(frozen=True, kw_only=True)
class TableInput:
    """An embedding table: its name and number of rows, the two reserved rows included."""

    name: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class FeatureInput:
    """A feature as the model sees it. `table` for ids, `size` for vectors, else empty and 1."""

    name: str
    owner: Literal["user", "ad", "context"]
    kind: Literal["id", "ids", "number", "vector"]
    table: str = ""
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class AttributeInput:
    """An event attribute as the model sees it."""

    name: str
    kind: Literal["id", "number"]
    table: str = ""


@dataclass(frozen=True, kw_only=True)
class StreamInput:
    """A history stream as the model sees it. `item` names the attribute that holds the item, if any."""

    name: str
    attributes: tuple[AttributeInput, ...]
    item: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskInput:
    """A task as the model sees it; `base_rate` is that of the training window."""

    name: str
    given: str = ""
    base_rate: float = 0.5


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """All that a model must know to be built for a data set.

    Attributes:
        tables: Embedding tables.
        features: Features beside the histories, in schema order.
        streams: History streams, in schema order.
        tasks: Tasks, in schema order (a task's `given` stands before it).
        surfaces: Names of the surfaces; surface i has index i + 1, index 0 is any other.
        ad_feature: Name of the feature that holds the ad's own id, if there is one: events that read the
            same table can be compared with it.
        fingerprint: Fingerprint of the schema.
    """

    tables: tuple[TableInput, ...]
    features: tuple[FeatureInput, ...]
    streams: tuple[StreamInput, ...]
    tasks: tuple[TaskInput, ...]
    surfaces: tuple[str, ...]
    ad_feature: str = ""
    fingerprint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dictionaries, strings and numbers."""
        return asdict(self)

    def layout(self) -> dict[str, Any]:
        """Return all but the base rates, from which a model is only begun: one model fits all inputs of one layout."""
        tasks = [{"name": t.name, "given": t.given} for t in self.tasks]
        return self.to_dict() | {"tasks": tasks}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "InputSpec":
        """Build from what `to_dict` made (also after a trip through JSON)."""
        return cls(
            tables=tuple(TableInput(**t) for t in data["tables"]),
            features=tuple(FeatureInput(**f) for f in data["features"]),
            streams=tuple(
                StreamInput(
                    name=s["name"],
                    attributes=tuple(AttributeInput(**a) for a in s["attributes"]),
                    item=s["item"],
                )
                for s in data["streams"]
            ),
            tasks=tuple(TaskInput(**t) for t in data["tasks"]),
            surfaces=tuple(data["surfaces"]),
            ad_feature=data["ad_feature"],
            fingerprint=data["fingerprint"],
        )

    def table_rows(self, name: str) -> int:
        """Return the number of rows of the table `name`."""
        return next(t.rows for t in self.tables if t.name == name)

    def features_of(self, owners: tuple[str, ...], kinds: tuple[str, ...]) -> tuple[FeatureInput, ...]:
        """Return the features of these owners and kinds, in schema order."""
        return tuple(f for f in self.features if f.owner in owners and f.kind in kinds)
