"""The words of the data: what a schema file says, and what a model must know of its inputs (no torch)."""

from opengem.schema.inputs import (
    MISSING_TIME,
    PADDING_ROW,
    UNSEEN_ROW,
    AttributeInput,
    FeatureInput,
    InputSpec,
    StreamInput,
    TableInput,
    TaskInput,
)
from opengem.schema.load import load_schema, parse_schema
from opengem.schema.words import (
    Attribute,
    EventLabel,
    Feature,
    ReadyHistory,
    Schema,
    Splits,
    Stream,
    Table,
    Task,
    TimeColumn,
    Vocabulary,
)

__all__ = [
    "MISSING_TIME",
    "PADDING_ROW",
    "UNSEEN_ROW",
    "Attribute",
    "AttributeInput",
    "EventLabel",
    "Feature",
    "FeatureInput",
    "InputSpec",
    "ReadyHistory",
    "Schema",
    "Splits",
    "Stream",
    "StreamInput",
    "Table",
    "TableInput",
    "Task",
    "TaskInput",
    "TimeColumn",
    "Vocabulary",
    "load_schema",
    "parse_schema",
]
