"""Values and gradients of the Triton backends: in the interpreter, and on a device where there is one.

Whether Triton interprets is settled where kernels are defined, so each suite runs in a process of its own. By hand:
`TRITON_INTERPRET=1 python -m pytest tests/ops/triton_values/gdpa.py`, and without the variable on a device.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
FILES = ("jagged_attention.py", "block_attention.py", "gdpa.py")

pytest.importorskip("triton", reason='triton is not installed: pip install "opengem[kernels]"')


def passed(interpret, file, *more):
    """Run a file of tests; return how many passed."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    done = subprocess.run(
        [*command, *more, str(HERE / file)],
        cwd=HERE.parents[1],
        env={**os.environ, "TRITON_INTERPRET": interpret},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return int(re.findall(r"(\d+) passed", done.stdout)[-1])


@pytest.mark.parametrize("file", FILES)
def test_interpreter(file):
    assert passed("1", f"triton_values/{file}") >= 30


@pytest.mark.slow
def test_conformance_suite_in_the_interpreter():
    assert passed("1", "test_conformance.py", "-k", "triton") >= 160


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("file", FILES)
def test_device(file):
    assert passed("0", f"triton_values/{file}") >= 30
