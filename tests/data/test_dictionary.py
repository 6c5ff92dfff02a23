"""Admission to a vocabulary, by hand and against plain Python."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from opengem.data.arrow_sink import write_table
from opengem.data.dictionary import Dictionary, ids_file, readings_file
from opengem.data.encoder import Vocabulary
from opengem.data.segments import Segments
from opengem.schema.words import Vocabulary as VocabularyWords

WINDOW_IDS = ["w1", "w2"]
DAY = 20_000


def dictionary(folder: Path, *segments: tuple[list[str], list[tuple[int, str, int]]]) -> Dictionary:
    """Write segments of (new ids, readings as (day, id, n)), and return their dictionary."""
    known, records = list(WINDOW_IDS), []
    for number, (new, readings) in enumerate(segments):
        known += new
        name = f"segments/{number:05d}" if number else "."
        for kind in ("ids", "readings"):
            (folder / name / kind).mkdir(parents=True)
        write_table(folder / name / ids_file("t"), pa.table({"id": pa.array(new, pa.string())}))
        columns = {"day": [d for d, _, _ in readings], "code": [known.index(i) + 2 for _, i, _ in readings]}
        table = {n: pa.array(v, pa.int32()) for n, v in columns.items()}
        n = pa.array([n for _, _, n in readings], pa.int64())
        write_table(folder / name / readings_file("t"), pa.table({**table, "n": n}))
        records.append({"folder": name, "examples": 0, "requests": 0, "buckets": 1})
    return Dictionary(Segments(folder, {"segments": records}), "t", Vocabulary(pa.array(WINDOW_IDS)))


def admitted(found: Dictionary, until: int | None = None, **words: int) -> list[str]:
    ids = found.vocabulary(VocabularyWords(**words), until).ids.to_pylist()
    assert ids[: len(WINDOW_IDS)] == WINDOW_IDS
    return ids[len(WINDOW_IDS) :]


def test_an_id_is_admitted_at_the_end_of_the_day_by_which_it_was_seen_often_enough(tmp_path):
    found = dictionary(
        tmp_path,
        (["rare", "a"], [(0, "rare", 2), (DAY, "a", 1), (DAY, "rare", 1)]),
        (["b", "c", "d"], [(DAY, "a", 2), (DAY + 1, "b", 9), (DAY + 1, "c", 3), (DAY + 1, "d", 9)]),
    )
    # on the first day: rare has 2 + 1, a has 1 + 2 over two segments; then by count, then by text
    assert admitted(found, min_count=3) == ["a", "rare", "b", "d", "c"]
    assert admitted(found, until=DAY + 1, min_count=3) == ["a", "rare"]
    assert admitted(found, until=DAY, min_count=3) == []
    assert admitted(found, until=DAY, min_count=2) == ["rare"]
    assert admitted(found, min_count=10) == []
    assert admitted(found, min_count=3, limit=4) == ["a", "rare"]
    assert admitted(found, min_count=3, limit=2) == admitted(found, min_count=3, limit=1) == []


def test_rows_of_codes(tmp_path):
    found = dictionary(tmp_path, (["a", "b"], [(DAY, "b", 1)]), (["c"], [(DAY + 1, "c", 1)]))
    rows = found.rows(found.vocabulary(VocabularyWords(), None))
    assert rows.tolist() == [0, 1, 2, 3, 1, 4, 5]
    assert found.rows(found.vocabulary(VocabularyWords(), DAY + 1)).tolist() == [0, 1, 2, 3, 1, 4, 1]
    assert found.rows(Vocabulary(pa.array(["c", "w2", "gone"]))).tolist() == [0, 1, 1, 3, 1, 1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_against_plain_python_however_the_readings_are_divided(tmp_path, seed):
    random = np.random.default_rng(seed)
    ids = [f"i{k}" for k in range(12)]
    readings = [
        (int(day), str(random.choice(ids)), int(random.integers(1, 4)))
        for day in [0] * 4 + sorted(DAY + random.integers(0, 6, 40))
    ]
    cuts = sorted(random.integers(4, len(readings), 3))
    parts = [readings[a:b] for a, b in zip([0, *cuts], [*cuts, len(readings)], strict=True)]
    seen: set[str] = set()
    segments = []
    for part in parts:
        segments.append((sorted({i for _, i, _ in part} - seen), part))
        seen |= {i for _, i, _ in part}
    found = dictionary(tmp_path, *segments)
    for min_count in (1, 3, 8):
        for until in (None, DAY, DAY + 3):
            expected: list[str] = []
            counts: dict[str, int] = defaultdict(int)
            for day in sorted({d for d, _, _ in readings if until is None or d < until}):
                for d, i, n in readings:
                    counts[i] += n * (d == day)
                new = [i for i, n in counts.items() if n >= min_count and i not in expected]
                expected += sorted(new, key=lambda i: (-counts[i], i))
            assert admitted(found, until=until, min_count=min_count) == expected
