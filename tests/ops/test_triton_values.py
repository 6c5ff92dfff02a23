"""Values and gradients of the Triton kernels, in the interpreter: the conformance suite in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason='triton is not installed: pip install "opengem[kernels]"')


def conform(select, *more):
    # whether kernels are interpreted is settled where they are defined, so it cannot be switched in this process
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            *more,
            "-k",
            select,
            "tests/ops/test_conformance.py",
        ],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = done.stdout.rsplit(" passed", 1)[0].split()[-1]
    return int(passed)


def test_mixed_lengths_are_near_the_reference():
    assert conform("triton and mixed") >= 20


@pytest.mark.slow
def test_every_form_and_length_is_near_the_reference():
    assert conform("triton") >= 160
