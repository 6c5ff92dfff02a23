"""What was found of a column, weighed: a sure sign that it is known only after the example, or a likely one."""

from dataclasses import dataclass
from typing import Literal

from opengem.data.checking.leaks.later import Later, LaterTimes
from opengem.data.checking.leaks.names import Named
from opengem.data.checking.leaks.own_row import STRONG, WEAK, OwnRow, Telling
from opengem.data.checking.leaks.whole_log import WholeLog, WindowGap
from opengem.data.checking.report import percent

Strength = Literal["sure", "likely", "name"]
SURE_GAP, LIKELY_GAP = 0.2, 0.1
"""AUC of the own row above that of the past, or of one window above the other, less three standard errors.

What was known before tells less than what follows from the label; yet in the synthetic world the true click rate
itself lies 0.2 above its past, so a good score of another model may look like a leak.
"""
SURE_ALONE, LIKELY_ALONE = 0.9, 0.75
"""AUC of the own row less three standard errors, where users and ads are seen once and there is no past."""
SURE_GAIN, LIKELY_GAIN, SURE_RATE = 1.5, 0.7, 0.5
"""Log odds of telling levels above those of the past, and rate of sure ones, both less three standard errors."""
SURE_Z, LIKELY_Z, LEAST_CORRELATION = -4.5, -3.5, -0.1
"""Standard score and size of a negative correlation between an owner's halves."""
AFTER, NEARER = 0.6, 1.6
"""Least rank correlation with what comes after, and how many times nearer 1 it must be than that with the past."""
LATER_SHARE, LATER_ROWS = 0.05, 20
"""Least share and number of times that lie after the example."""


@dataclass(frozen=True)
class Evidence:
    """One sign that a column is known only after the example.

    Attributes:
        kind: How it was found.
        strength: `sure`, `likely`, or `name` where only the column's name speaks.
        text: In words, with numbers.
    """

    kind: Literal["own row", "levels", "whole log", "later", "later times", "use", "name"]
    strength: Strength
    text: str


def by_name(found: Named | None) -> Evidence | None:
    """Weigh what the schema or the name says."""
    if found is None:
        return None
    return Evidence("use", "sure", found.why) if found.sure else Evidence("name", "name", found.why)


def by_times(found: LaterTimes | None, owner: str) -> Evidence | None:
    """Weigh times after the example; those of a user or ad, as an end date is, may have been set before."""
    if found is None or found.rows < LATER_ROWS or found.later < LATER_SHARE:
        return None
    text = f"{percent(found.later, 1)} of its times ({found.unit}) lie after the example"
    if owner:
        return Evidence(
            "later times", "likely", f"{text}; that is good only where they were set before, as an end date"
        )
    return Evidence("later times", "sure", text)


def by_own_row(task: str, found: OwnRow) -> Evidence | None:
    """Weigh the AUC of the own row against that of the past."""
    text = f"it tells {task} with AUC {found.own:.2f} in the example's own row"
    if not found.compared:
        if found.own - 3 * found.error < LIKELY_ALONE:
            return None
        sure = found.own - 3 * found.error >= SURE_ALONE
        return Evidence(
            "own row", "sure" if sure else "likely", f"{text}, and there is no past to compare with"
        )
    gap = found.own - found.past - 3 * found.error
    if gap < LIKELY_GAP:
        return None
    text = f"{text}, its past values with {found.past:.2f}"
    return Evidence("own row", "sure" if gap >= SURE_GAP else "likely", text)


def by_levels(task: str, found: OwnRow) -> Evidence | None:
    """Weigh the levels at which almost all examples are positive, or far more or fewer than expected."""
    likely: Telling | None = None
    for t in found.telling:
        gain = (t.gain if t.lift > 0 else -t.gain) - 3 * t.error
        if t.lift >= STRONG and gain >= SURE_GAIN and t.low >= SURE_RATE:
            return Evidence("levels", "sure", _levels(task, t))
        if abs(t.lift) >= WEAK and gain >= LIKELY_GAIN and likely is None:
            likely = t
    return Evidence("levels", "likely", _levels(task, likely)) if likely else None


def _levels(task: str, t: Telling) -> str:
    return (
        f"where it is {t.words} or alike ({t.rows:,} examples), {percent(t.rate, 1)} have {task}, against "
        f"{percent(t.expected, 1)} expected, and a past value tells far less"
    )


def by_later(found: Later | None) -> Evidence | None:
    """Weigh the rank correlation with what comes after."""
    if found is None or found.after < AFTER or 1 - found.before < NEARER * (1 - found.after):
        return None
    text = f"its rank correlation with {found.words} is {found.after:.2f}, and at most {found.before:.2f} with the same"
    return Evidence("later", "sure", f"{text} before the example or in all")


def by_whole_log(found: WholeLog) -> Evidence | None:
    """Weigh a negative correlation between the halves of an owner's labels."""
    far = found.z - max(found.before, 0.0)
    if found.correlation > LEAST_CORRELATION or found.z > LIKELY_Z or far > LIKELY_Z - 1:
        return None
    days = {"all": "the whole log", "train": "the training days", "after": "the days after training"}[
        found.window
    ]
    owner = found.owner
    text = (
        f"it holds the {found.task} labels of {days}: among {owner}s of like value, what one half of the {owner}'s "
        f"requests has too much the other lacks (correlation {found.correlation:.2f} over {found.owners:,} {owner}s, "
        f"z {found.z:.1f})"
    )
    return Evidence("whole log", "sure" if found.z <= SURE_Z else "likely", text)


def by_windows(found: WindowGap) -> Evidence | None:
    """Weigh how much better an owner's value tells one window than the other."""
    gap = abs(found.after - found.train) - 3 * found.error
    if gap < LIKELY_GAP:
        return None
    text = (
        f"as a value of the {found.owner}, it tells {found.task} with AUC {found.train:.2f} in training and "
        f"{found.after:.2f} after it"
    )
    return Evidence("whole log", "sure" if gap >= SURE_GAP else "likely", text)
