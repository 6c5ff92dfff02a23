import logging

import pytest
import torch

from opengem.errors import BackendUnavailable, ConfigError
from opengem.ops.backend import Backend, call
from opengem.ops.jagged_layout import pad
from tests.ops.rows import offsets_of


def backends():
    return (
        Backend("gpu", lambda x: x + 100, lambda x: "no CUDA device"),
        Backend("long", lambda x: x + 10, suits=lambda x: x > 5),
        Backend("reference", lambda x: x + 1),
    )


def test_auto_takes_the_first_that_can_and_suits():
    assert call("f", backends(), "auto", 6) == 16
    assert call("f", backends(), "auto", 3) == 4


def test_named_backend_runs_or_says_why_not():
    assert call("f", backends(), "long", 3) == 13
    with pytest.raises(BackendUnavailable, match="no CUDA device"):
        call("f", backends(), "gpu", 3)


def test_unknown_backend_names_the_nearest():
    with pytest.raises(ConfigError, match='did you mean "reference"'):
        pad(torch.zeros(1), offsets_of([1]), 1, backend="refrence")


def test_auto_says_once_what_runs(caplog):
    with caplog.at_level(logging.INFO, logger="opengem.ops.backend"):
        call("said_once", backends(), "auto", 3)
        call("said_once", backends(), "auto", 3)
    assert [r.getMessage() for r in caplog.records] == ["said_once runs on backend reference"]
