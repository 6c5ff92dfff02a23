import os

import pytest

from opengem.errors import ConfigError
from opengem.training.run_lock import only_here


def test_one_holder_at_a_time_who_is_named(tmp_path):
    file = tmp_path / "run.lock"
    with (
        only_here(file),
        pytest.raises(ConfigError, match=rf"process {os.getpid()} \(since 20"),
        only_here(file),
    ):
        pass
    with only_here(file):
        pass


def test_a_child_does_not_hold_what_its_parent_held(tmp_path):
    file = tmp_path / "run.lock"
    reading, writing = os.pipe()
    with only_here(file):
        child = os.fork()
        if child == 0:  # as a process that reads batches: it lives on
            os.read(reading, 1)
            os._exit(0)
    try:
        with only_here(file):
            pass
    finally:
        os.write(writing, b"x")
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
