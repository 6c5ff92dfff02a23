"""What a page is made of: sections of figures, tables, verdicts and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Tone = Literal["good", "bad", "open"]


class Cell(NamedTuple):
    """One cell of a table: its text, a smaller text under it, and whether it is the best of its column."""

    text: str
    small: str = ""
    best: bool = False


class Verdict(NamedTuple):
    """A sentence with its tone: good, bad, or open (nothing shown either way)."""

    tone: Tone
    text: str


@dataclass(kw_only=True)
class Section:
    """A titled part of the page.

    Attributes:
        id: anchor.
        title: names the subject, never the finding.
        lead: one or two sentences before the parts.
        parts: what it shows, in order; see the methods.
    """

    id: str
    title: str
    lead: str = ""
    parts: list[dict[str, Any]] = field(default_factory=list)

    def figure(self, svg: str, caption: str) -> None:
        """Add a figure."""
        self.parts.append({"kind": "figure", "svg": svg, "caption": caption})

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Cell | str]], caption: str = "") -> None:
        """Add a table; the first column is text, the others are numbers."""
        cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
        self.parts.append({"kind": "table", "head": list(head), "rows": cells, "caption": caption})

    def verdicts(self, found: Sequence[Verdict]) -> None:
        """Add sentences with their tone."""
        self.parts.append({"kind": "verdicts", "verdicts": list(found)})

    def facts(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Add pairs of a name and a value."""
        self.parts.append({"kind": "facts", "facts": list(pairs)})

    def code(self, text: str, summary: str = "") -> None:
        """Add text as it stands; with a summary it is folded away."""
        self.parts.append({"kind": "code", "text": text, "summary": summary})

    def note(self, text: str) -> None:
        """Add a remark: mostly, what is missing and why."""
        self.parts.append({"kind": "note", "text": text})
