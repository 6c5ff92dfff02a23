import contextlib
import os

import pytest

from opengem.errors import ConfigError
from opengem.training import run_lock
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


def test_a_child_does_not_hold_what_its_parent_holds(tmp_path):
    """As a process that reads batches, which may outlive a trainer that was killed."""
    file = tmp_path / "run.lock"
    with only_here(file):
        held = list(run_lock._held)
        child = os.fork()
        if child == 0:
            still_open = 0
            for descriptor in held:
                with contextlib.suppress(OSError):
                    os.fstat(descriptor)
                    still_open += 1
            os._exit(still_open)
        _, status = os.waitpid(child, 0)
        assert len(held) == 1
        assert os.waitstatus_to_exitcode(status) == 0
        with pytest.raises(ConfigError), only_here(file):  # and the child's end has not let it go
            pass
