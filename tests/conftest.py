import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def small_world(tmp_path_factory):
    """A small synthetic world: the folder of its logs."""
    from opengem.data.synth import SynthConfig, synth

    out = tmp_path_factory.mktemp("small") / "world"
    synth(SynthConfig(users=120, days=20, seed=3), out)
    return out


@pytest.fixture(scope="session")
def small_data(small_world, tmp_path_factory):
    """The small world, ingested: the folder of the data set."""
    from opengem.data import ingest
    from opengem.schema import load_schema

    out = tmp_path_factory.mktemp("small_data") / "dataset"
    ingest(load_schema(small_world / "schema.toml"), out)
    return out
