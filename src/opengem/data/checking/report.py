"""What a check of logs found: facts, and findings that are errors, warnings or notes."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["error", "warning", "note"]
_LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing to know about the logs.

    Attributes:
        level: `error` fails the check, `warning` wants a look, `note` says how things are.
        topic: What it is about: `rows`, `time`, `keys`, `labels`, `surfaces`, `features`, `drift`, `history` or `leak`.
        where: Table, column, task or feature that it is about, dotted.
        text: What was found, with numbers, and what to change.
    """

    level: Level
    topic: str
    where: str
    text: str


@dataclass
class DataCheck:
    """What a check of logs found.

    Attributes:
        schema: Name of the schema.
        facts: Section -> plain numbers and text, ready for JSON: `tables`, `keys`, `early`, `labels`, `histories`,
            `features`, `drift`, `leaks`.
        findings: All findings, in the order in which they were made.
    """

    schema: str
    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def error(self, topic: str, where: str, text: str) -> None:
        """Add an error."""
        self.findings.append(Finding("error", topic, where, text))

    def warn(self, topic: str, where: str, text: str) -> None:
        """Add a warning."""
        self.findings.append(Finding("warning", topic, where, text))

    def note(self, topic: str, where: str, text: str) -> None:
        """Add a note."""
        self.findings.append(Finding("note", topic, where, text))

    def of(self, level: Level, topic: str = "") -> list[Finding]:
        """Return the findings of a level, and of a topic where one is given."""
        return [f for f in self.findings if f.level == level and topic in ("", f.topic)]

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.of("error")

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        counts = {f"{level}s": len(self.of(level)) for level in _LEVELS}
        return {
            "schema": self.schema,
            "ok": self.ok,
            **counts,
            "findings": [asdict(f) for level in _LEVELS for f in self.of(level)],
            **self.facts,
        }

    def lines(self) -> list[str]:
        """Return the report in words: the tables, then the findings, errors first."""
        lines = [
            f"{name}: {t['rows']:,} rows in {t['files']:,} files" + _range(t)
            for name, t in self.facts.get("tables", {}).items()
        ]
        for level in _LEVELS:
            lines += [f"{level} ({f.topic}): {f.where}: {f.text}" for f in self.of(level)]
        counts = ", ".join(_count(len(self.of(level)), level) for level in _LEVELS)
        return [*lines, f"{'good' if self.ok else 'not good'}: {counts}"]


def percent(part: float, whole: float) -> str:
    """Return a share in words: "0%" and "100%" only where nothing or all is meant."""
    if not whole:
        return "0%"
    share = 100 * part / whole
    if 0 < share < 0.1 or 99.9 < share < 100:
        return "below 0.1%" if share < 50 else "over 99.9%"
    return f"{share:.1f}%".replace(".0%", "%")


def _range(table: dict[str, Any]) -> str:
    if table.get("first") is None:
        return ""
    return f", {table['first']} to {table['last']} ({table['zone']})"


def _count(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"
