"""The transfer ratio: how much of the teacher's lead a student keeps."""

import numpy as np

from opengem.errors import DataError
from opengem.evaluation import Interval, PredictionTable
from opengem.evaluation.interval import SliceStatistic, bootstrap, percentile_interval


def transfer_ratio(
    teacher: PredictionTable,
    student: PredictionTable,
    alone: PredictionTable,
    *,
    replicates: int = 200,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return for each task `(NE_alone - NE_student) / (NE_alone - NE_teacher)`, paired over users.

    1 means that the student keeps all of the teacher's lead over the same student without a teacher, 0 none. Where the
    teacher does not lead, the ratio means nothing and is NaN.

    Args:
        teacher: Predictions of the teacher.
        student: Predictions of the taught student.
        alone: Predictions of the same student trained without a teacher.
        replicates: Bootstrap replicates over users.
        seed: Seed of the bootstrap.

    Raises:
        DataError: The three do not hold the same examples in the same order.

    Source: ExFM (2502.17494).
    """
    for other in (student, alone):
        if not np.array_equal(teacher.example_id, other.example_id):
            raise DataError(
                "the predictions of teacher and students must hold the same examples in the same order"
            )
    users, codes = np.unique(teacher.user, return_inverse=True)
    ratios = {}
    for task in teacher.tasks:
        kept = teacher.labelled(task)
        statistics = [SliceStatistic(t.rows(task), codes[kept]) for t in (teacher, student, alone)]
        values = bootstrap(statistics, len(users), replicates=replicates, seed=seed)[:, :, 0]
        lead = values[:, 2] - values[:, 0]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(lead > 0, (values[:, 2] - values[:, 1]) / lead, np.nan)
        ratios[task] = percentile_interval(ratio, users=len(users))
    return ratios
