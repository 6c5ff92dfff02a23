"""Columns that are known only after the example by what the schema does with them, or by their names."""

import re
from dataclasses import dataclass

from opengem.data.checking.leaks.columns import Column
from opengem.schema.words import Schema

FEEDBACK = frozenset(
    {
        "bought", "bounce", "bounced", "buy", "cart", "click", "clicked", "clicks", "comment", "commented",
        "complete", "completed", "conversion", "conversions", "convert", "converted", "dislike", "dwell",
        "engaged", "engagement", "enter", "entered", "exit", "feedback", "finish", "finished", "follow",
        "followed", "forward", "forwarded", "hate", "hated", "hidden", "hide", "install", "installed",
        "label", "like", "liked", "likes", "order", "ordered", "outcome", "play", "played", "purchase",
        "purchased", "rated", "rating", "report", "reported", "response", "reward", "share", "shared",
        "skip", "skipped", "stay", "target", "view", "viewed", "watch", "watched",
    }
)  # fmt: skip
"""Words that name what a user does with what was shown."""
_PLAIN = ("has", "was", "did", "num", "the", "user", "item", "event", "time", "long", "short", "with")


@dataclass(frozen=True)
class Named:
    """Why a column is feedback by the schema's own words, or may be by its name.

    Attributes:
        why: In words.
        sure: Whether the schema itself says so.
    """

    why: str
    sure: bool


def feedback_words(schema: Schema) -> frozenset[str]:
    """Return the words that name feedback here: the known ones, and those of tasks, labels and event types."""
    named = [text for t in schema.tasks for text in (t.name, t.label, t.event.type if t.event else "")]
    own = {word for text in named for word in _words(text) if len(word) > 2 and word not in _PLAIN}
    return FEEDBACK | own


def named(column: Column, schema: Schema, words: frozenset[str]) -> Named | None:
    """Return why a column is known only after the example, by use or by name.

    By use: it is a task's label; or it stands beside the impressions, the schema reads it into histories, and neither
    as a feature nor as a key. By name: one of its words names feedback.

    Args:
        column: The column.
        schema: The schema.
        words: From `feedback_words`.
    """
    roles = role_columns(schema, column.table)
    if column.table == "impressions":
        for task in schema.tasks:
            if task.label == column.name:
                return Named(f"it is the label of tasks.{task.name}", True)
        features = {f.column for f in schema.features if not f.derive}
        for stream in schema.streams:
            read = {a.column for a in stream.attributes}
            if stream.from_table == "impressions" and column.name in read - features - roles:
                return Named(f"the schema reads it only of the past, in streams.{stream.name}", True)
    found = [] if column.name in roles else [w for w in _words(column.name) if w in words]
    return Named(f'its name speaks of feedback ("{found[0]}")', False) if found else None


def clock_columns(schema: Schema, table: str) -> set[str]:
    """Return the columns that the schema declares as the time and arrival of a table's rows."""
    words = schema.tables[table]
    return {t.column for t in (words.time, words.arrival) if t}


def role_columns(schema: Schema, table: str) -> set[str]:
    """Return the columns of a table that are its keys, times, surface or split."""
    words = schema.tables[table]
    roles = {words.key, words.id, words.user, words.ad, words.item, words.type, words.request, words.surface}
    roles |= clock_columns(schema, table)
    if table == "impressions" and schema.splits.column:
        roles.add(schema.splits.column)
    return {r for r in roles if r}


def _words(name: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return [w for w in re.split(r"[^a-z]+", spaced.lower()) if w]
