"""Columns that are known only after the example: each is measured, judged, and reported."""

from dataclasses import asdict, dataclass, field

from opengem.data.checking.leaks.columns import Column, read_columns
from opengem.data.checking.leaks.evidence import (
    Evidence,
    Strength,
    by_later,
    by_levels,
    by_name,
    by_own_row,
    by_times,
    by_whole_log,
    by_windows,
)
from opengem.data.checking.leaks.later import later_outcomes, measure_later, measure_times
from opengem.data.checking.leaks.names import clock_columns, feedback_words, named
from opengem.data.checking.leaks.own_row import ENOUGH, measure_own_row
from opengem.data.checking.leaks.sample import Sample, draw_sample
from opengem.data.checking.leaks.whole_log import (
    halve_labels,
    label_windows,
    measure_whole_log,
    measure_windows,
    owner_of,
)
from opengem.data.checking.logs import Logs
from opengem.data.checking.report import DataCheck
from opengem.errors import ConfigError, nearest

_STRENGTHS: tuple[Strength, ...] = ("sure", "likely", "name")


@dataclass
class Judged:
    """A column and the signs against it.

    Attributes:
        table: Its table.
        column: Its name.
        features: Features that read it.
        evidence: The signs, strongest first.
        auc: Task -> AUC in the own row, of the past, and the standard error of their difference.
    """

    table: str
    column: str
    features: list[str]
    evidence: list[Evidence] = field(default_factory=list)
    auc: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def strength(self) -> Strength | None:
        """The strongest of the signs."""
        return self.evidence[0].strength if self.evidence else None


def check_leaks(logs: Logs, check: DataCheck, known: frozenset[str]) -> None:
    """Look for columns that are known only after the example.

    All columns of impressions, users and ads are measured, whether a feature reads them or not. A sure leak that a
    feature reads is an error, a likely one a warning; of columns that none reads, both are notes.

    Args:
        logs: The logs, joined.
        check: Gets the fact `leaks`, and the findings.
        known: Columns, as `TABLE.COLUMN` or `COLUMN`, that the user knows to be there before the example: what is
            measured of them is told, and is no error.

    Raises:
        ConfigError: A known column is in no table.
    """
    _check_known(logs, known)
    sample = draw_sample(logs)
    outcomes = later_outcomes(logs, sample)
    halves, windows = halve_labels(logs, sample), label_windows(sample)
    words = feedback_words(logs.schema)
    skipped: dict[str, str] = {}
    judged: list[Judged] = []
    for column in read_columns(logs, sample, skipped):
        one = Judged(column.table, column.name, _features(logs, column))
        found = [by_name(named(column, logs.schema, words))]
        if one.features or column.name not in clock_columns(logs.schema, column.table):
            found.append(by_times(measure_times(column, sample), owner_of(column)))
        labels = {
            t.name for t in logs.schema.tasks if t.label == column.name and column.table == "impressions"
        }
        for task, measured in (measure_own_row(column, sample) if column.past else {}).items():
            one.auc[task] = {"own_row": measured.own, "past": measured.past, "error": measured.error}
            if task not in labels:
                found += [by_own_row(task, measured), by_levels(task, measured)]
        if column.is_number and column.table == "impressions":
            found.append(by_later(measure_later(column, outcomes)))
        found += [by_whole_log(m) for m in measure_whole_log(column, sample, halves)]
        found += [by_windows(m) for m in measure_windows(column, sample, windows)]
        signs = [e for e in found if e is not None]
        one.evidence = sorted(signs, key=lambda e: _STRENGTHS.index(e.strength))
        judged.append(one)
    for one in judged:
        _report(one, known, check)
    _report_measured(logs, sample, skipped, check)
    check.facts["leaks"] = {
        "sampled": sample.rows,
        "of": sample.total,
        "not_measured": skipped,
        "columns": [{**asdict(one), "strength": one.strength} for one in judged],
    }


def _check_known(logs: Logs, known: frozenset[str]) -> None:
    names = {
        name
        for table in logs.schema.tables
        for c in logs.sources[table].columns
        for name in (c, f"{table}.{c}")
    }
    for name in sorted(known - names):
        raise ConfigError(f'known must name columns of the tables{nearest(name, names)}. Received: "{name}"')


def _features(logs: Logs, column: Column) -> list[str]:
    """Return the features that read a column of a table."""
    found = []
    for feature in logs.schema.features:
        if feature.derive:
            continue
        place = logs.plan.place[feature.name]
        read = next(u.column for u in logs.plan.uses[place] if u.name == f"f_{feature.name}")
        if (place, read) == (column.table, column.name):
            found.append(feature.name)
    return found


def _report(one: Judged, known: frozenset[str], check: DataCheck) -> None:
    if one.strength is None:
        return
    column, why = f"{one.table}.{one.column}", "; ".join(e.text for e in one.evidence)
    read = f"Read by {', '.join(f'features.{f}' for f in one.features)}"
    if one.strength == "name":
        if one.features:
            check.note("leak", column, f"{why}; nothing that was measured says that it leaks. {read}")
        elif one.table == "impressions":
            never = "If it is known only after the exposure, never use it as a feature"
            check.note("leak", column, f"{why}; what was measured says nothing. {never}")
        return
    if one.features and {column, one.column} & known:
        check.note("leak", column, f"said to be known before the example, though {why}. {read}")
        return
    sure = one.strength == "sure"
    if one.features:
        fix = "Remove it, or read it as an attribute of a stream; if it is known before the example, declare it known"
        text = f"{'is' if sure else 'may be'} known only after the example: {why}. {read}. {fix}"
        (check.error if sure else check.warn)("leak", column, text)
    elif sure:
        check.note("leak", column, f"known only after the exposure, never use as a feature: {why}")
    else:
        check.note("leak", column, f"may be known only after the exposure, so better no feature: {why}")


def _report_measured(logs: Logs, sample: Sample, skipped: dict[str, str], check: DataCheck) -> None:
    if sample.rows < sample.total:
        rows = f"{sample.rows:,} of {sample.total:,} labelled examples"
        check.note("leak", "impressions", f"columns were measured on {rows}, the same ones each time")
    for task in logs.schema.tasks:
        labels = sample.labels[task.name]
        positives, negatives = int((labels == 1).sum()), int((labels == 0).sum())
        if min(positives, negatives) < ENOUGH:
            found = f"{positives:,} positives and {negatives:,} negatives, and {ENOUGH} of each are needed"
            check.note("leak", f"tasks.{task.name}", f"columns could not be measured against it: {found}")
    for column, kind in skipped.items():
        check.note("leak", column, f"cannot be measured: its type is {kind}")
