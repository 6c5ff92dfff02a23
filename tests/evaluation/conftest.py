"""A table of predictions whose rows of one user hang together."""

import numpy as np
import pytest

from opengem.evaluation import PredictionTable


def make_table(rows=3000, users=200, *, seed=0, noise=0.6, shift=0.0, model="model", masked=0.1):
    """Clicks from a known logit; the model sees the logit with noise. Same seed, same examples and labels."""
    random = np.random.default_rng(seed)
    user = np.sort(random.integers(0, users, rows)) + 1000
    taste = random.normal(0, 1, users)
    logit = -1.2 + taste[user - 1000] + random.normal(0, 1, rows)
    labels = {"click": (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)}
    labels["like"] = (random.random(rows) < 1 / (1 + np.exp(1.5 - logit))).astype(np.float32)
    labels["like"][random.random(rows) < masked] = np.nan
    surface = np.array(["feed", "reels", "explore"])[random.integers(0, 3, rows)]
    own = np.random.default_rng([seed, sum(model.encode())])
    predictions = {
        task: (1 / (1 + np.exp(-(logit + shift + own.normal(0, noise, rows))))).astype(np.float32)
        for task in labels
    }
    ids = np.arange(rows, dtype=np.int64)
    return PredictionTable(
        example_id=ids + 5,
        request=ids // 2,
        user=user,
        surface=surface,
        time=1_767_225_600_000 + ids * 1000,
        predictions=predictions,
        labels=labels,
        model=model,
        schema_fingerprint="abc123",
        split="test",
    )


@pytest.fixture
def table():
    return make_table()


@pytest.fixture
def build():
    return make_table
