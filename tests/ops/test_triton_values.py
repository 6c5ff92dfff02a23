"""Values and gradients of the Triton backends: in the interpreter, and on a device where there is one.

Whether Triton interprets is settled when it is imported, so each file of `triton_values` runs in a process of its own.
By hand: `TRITON_INTERPRET=1 python -m pytest tests/ops/triton_values/gdpa.py`, and without the variable on a device.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
FILES = ("jagged_attention.py", "block_attention.py", "gdpa.py")


@pytest.fixture(autouse=True)
def _installed():
    pytest.importorskip("triton", reason='triton is not installed: pip install "opengem[kernels]"')


def run(file, interpret):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    done = subprocess.run(
        [*command, str(HERE / "triton_values" / file)],
        cwd=HERE.parents[1],
        env={**os.environ, "TRITON_INTERPRET": interpret},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize("file", FILES)
def test_interpreter(file):
    run(file, "1")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("file", FILES)
def test_device(file):
    run(file, "0")
