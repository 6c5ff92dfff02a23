"""How much of the evaluated rows a model knows: rows with unseen ids, missing values, or no history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opengem.schema.inputs import PADDING_ROW, UNSEEN_ROW, InputSpec

if TYPE_CHECKING:
    from opengem.jagged import Batch

MOST_NAMED = 5


class Coverage:
    """Counts over batches; ``to_dict`` is the part ``coverage`` of ``eval.json``.

    Args:
        inputs: What the model reads.
    """

    def __init__(self, inputs: InputSpec) -> None:
        self._inputs = inputs
        self.rows = 0
        self.unseen: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.no_history: Counter[str] = Counter()

    def add(self, batch: Batch) -> None:
        """Count the examples of a batch; what belongs to a request counts for each of its examples."""
        self.rows += batch.num_examples
        for f in self._inputs.features:
            if f.kind == "id":
                ids = batch.ids[f.name]
                ids = ids[batch.request_of_example] if f.owner == "user" else ids
                self.unseen[f.name] += int((ids == UNSEEN_ROW).sum())
                self.missing[f.name] += int((ids == PADDING_ROW).sum())
            elif f.kind == "number":
                gone = batch.missing[f.name]
                gone = gone[batch.request_of_example] if f.owner == "user" else gone
                self.missing[f.name] += int(gone.sum())
        for name, history in batch.history.items():
            empty = history.offsets[1:] == history.offsets[:-1]
            self.no_history[name] += int(empty[batch.request_of_example].sum())

    def to_dict(self) -> dict[str, Any]:
        """Give ``rows``, those with an unseen id and a missing value by feature, those without history by stream."""
        counts = {"unseen": self.unseen, "missing": self.missing, "no_history": self.no_history}
        return {"rows": self.rows} | {name: dict(found) for name, found in counts.items()}


def unseen_text(coverage: Mapping[str, Any]) -> str:
    """Say how many rows have an id that the training window did not hold, most frequent first; empty where none."""
    rows = coverage.get("rows", 0)
    found = Counter({k: n for k, n in coverage.get("unseen", {}).items() if n}).most_common(MOST_NAMED)
    return ", ".join(f"{name} in {n:,} of {rows:,} rows" for name, n in found)


def history_warnings(coverage: Mapping[str, Any]) -> list[str]:
    """Warn of streams of which no row has a history."""
    rows = coverage.get("rows", 0)
    return [
        f"100% of examples have no history ({name}): look at the units and zones of the times of events and "
        "impressions, and at whether events come before them"
        for name, n in coverage.get("no_history", {}).items()
        if rows and n == rows
    ]
