"""Reading the truth beside a world: the best reachable NE, and what is left without history.

No stage that trains, labels or serves may read these files.
"""

import datetime
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from opengem.data.synth.effects import sigmoid
from opengem.data.synth.parameters import HISTORY_TERMS, TASKS, Parameters
from opengem.errors import DataError

PARAMETERS_FILE = "truth/parameters.json"
_MOST_EXAMPLES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class TaskTruth:
    """What the true probabilities of a task allow.

    Args:
        examples: examples that count: all, for conversion weighted by the probability of a click.
        rate: mean true probability.
        best_ne: expected NE of the true probabilities; nothing can do better.
        no_history_ne: expected NE when the history terms are one constant a surface, the best one.
        logit_sd: standard deviation of the sum of terms.
        history_share: variance of the summed history terms over the variance of the logit.
        term_sd: standard deviation of each term.
    """

    examples: float
    rate: float
    best_ne: float
    no_history_ne: float
    logit_sd: float
    history_share: float
    term_sd: dict[str, float]


def load_truth(
    world: Path, first: datetime.date | None = None, last: datetime.date | None = None
) -> pa.Table:
    """Read the true probabilities and terms.

    Args:
        world: folder that `synth` wrote.
        first: first UTC day to read, the start by default.
        last: last UTC day to read, the end by default.

    Returns:
        Table with `impression_id`, `p_click`, `p_conversion`, `p_like` (null where the surface has no likes) and
        a column for each term, `TASK_TERM`, in logits, surface and drift factors included.

    Raises:
        DataError: the folder has no truth for these days.
    """
    return pa.concat_tables(pq.read_table(path) for path in _files(world, first, last))


def load_parameters(world: Path) -> Parameters:
    """Read the constants of the truth, for probes.

    Args:
        world: folder that `synth` wrote.

    Returns:
        The parameters.

    Raises:
        DataError: the folder has none.
    """
    path = world / PARAMETERS_FILE
    if not path.is_file():
        raise DataError(f"{path}: must exist; {world} is not a folder that `opengem data synth` wrote.")
    return Parameters.load(path)


def measure_truth(
    world: Path, first: datetime.date | None = None, last: datetime.date | None = None
) -> dict[str, TaskTruth]:
    """Measure what is reachable on a span of days.

    Formula: `NE = mean_w H(p, q) / H(mean_w p)` with `H(p, q) = -p ln q - (1 - p) ln(1 - q)`, `q = p` for the best,
    `w = p_click` for conversion (an expectation over clicks) and 1 otherwise.

    Args:
        world: folder that `synth` wrote.
        first: first UTC day, the start by default.
        last: last UTC day, the end by default.

    Returns:
        Task to measurements, without tasks that have no examples; of more than about a million examples, an
        even selection of files is read.

    Raises:
        DataError: the folder has no truth for these days.
    """
    paths = _files(world, first, last)
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    table = pa.concat_tables(pq.read_table(path) for path in paths[:: -(-rows // _MOST_EXAMPLES) or 1])
    share = load_parameters(world).window_share
    return {
        task: _measure(table, task, share if task == "conversion" else 1.0)
        for task in TASKS
        if table[f"p_{task}"].null_count < table.num_rows
    }


def _files(world: Path, first: datetime.date | None, last: datetime.date | None) -> list[Path]:
    """Truth files of a span of days, in order."""
    low, high = first or datetime.date.min, last or datetime.date.max
    paths = [p for p in sorted((world / "truth").glob("day=*.parquet")) if low <= _day(p) <= high]
    if not paths:
        raise DataError(
            f"{world / 'truth'}: must hold day=YYYY-MM-DD.parquet files between {low} and {high}, found none."
        )
    return paths


def _day(path: Path) -> datetime.date:
    """UTC day in a file name."""
    return datetime.date.fromisoformat(path.name.removeprefix("day=")[:10])


def _measure(table: pa.Table, task: str, share: float) -> TaskTruth:
    """Measure one task: the truth itself, then the truth without its history terms."""
    p = table[f"p_{task}"].to_numpy()
    exists = ~np.isnan(p)
    p = p[exists]
    weight = table["p_click"].to_numpy()[exists] if task == "conversion" else np.ones(len(p))
    prefix = f"{task}_"
    terms = {
        name.removeprefix(prefix): table[name].to_numpy()[exists].astype(np.float64)
        for name in table.column_names
        if name.startswith(prefix)
    }
    logit = np.sum(list(terms.values()), axis=0)
    history = logit - np.sum([value for name, value in terms.items() if name not in HISTORY_TERMS], axis=0)
    static = _refit(logit - history, terms["base"], p, weight, share)

    def mean(values: np.ndarray) -> float:
        return float(np.average(values, weights=weight))

    def variance(values: np.ndarray) -> float:
        return mean((values - mean(values)) ** 2)

    rate = np.array(mean(p))
    entropy = float(_cross_entropy(rate, rate))
    return TaskTruth(
        examples=float(weight.sum()),
        rate=float(rate),
        best_ne=mean(_cross_entropy(p, p)) / entropy,
        no_history_ne=mean(_cross_entropy(p, static)) / entropy,
        logit_sd=variance(logit) ** 0.5,
        history_share=variance(history) / max(variance(logit), 1e-300),
        term_sd={name: variance(value) ** 0.5 for name, value in terms.items()},
    )


def _refit(
    logit: np.ndarray, base: np.ndarray, p: np.ndarray, weight: np.ndarray, share: float
) -> np.ndarray:
    """Find the constant of each surface (the intercept names it) that makes the answers calibrated."""
    answer = np.empty_like(p)
    for level in np.unique(base):
        rows = base == level
        target = np.average(p[rows], weights=weight[rows])
        low, high = -30.0, 30.0
        for _ in range(50):
            middle = (low + high) / 2
            given = np.average(share * sigmoid(logit[rows] + middle), weights=weight[rows])
            low, high = (middle, high) if given < target else (low, middle)
        answer[rows] = share * sigmoid(logit[rows] + (low + high) / 2)
    return answer


def _cross_entropy(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Expected log loss of the answer q where the truth is p."""
    return -p * np.log(q) - (1 - p) * np.log1p(-q)
