import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from opengem.errors import BackendUnavailable, ConfigError
from opengem.ops import triton_target as target
from opengem.ops.block_attention import block_attention
from opengem.ops.gdpa import gdpa
from opengem.ops.jagged_attention import jagged_attention
from opengem.ops.triton_target import Launch
from tests.ops.rows import offsets_of

OPERATIONS = {
    "jagged_attention": lambda x, bounds: jagged_attention(x, x, x, bounds, backend="triton"),
    "gdpa": lambda x, bounds: gdpa(x, x, x, q_offsets=bounds, k_offsets=bounds, backend="triton"),
    "block_attention": lambda x, bounds: block_attention(
        torch.stack([x] * 3, dim=1), bounds, backend="triton"
    ),
}


@pytest.mark.skipif(target.INTERPRETED, reason="the interpreter takes CPU tensors")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("installed", [True, False])
def test_cpu_tensors_are_refused_by_name_and_cause(monkeypatch, operation, installed):
    monkeypatch.setattr(target, "_INSTALLED", installed)
    cause = "it runs on CUDA tensors .* got cpu" if installed else r'pip install "opengem\[kernels\]"'
    with pytest.raises(BackendUnavailable, match=f'{operation}: backend "triton" cannot run: .*{cause}'):
        OPERATIONS[operation](torch.zeros(3, 1, 16), offsets_of([3]))


@pytest.mark.parametrize(
    ("has", "runs"), [((8, 0), True), ((8, 9), False), ((9, 0), True), ((10, 3), True), ((12, 0), False)]
)
def test_other_devices_are_refused_by_their_capability(monkeypatch, has, runs):
    monkeypatch.setattr(target, "_INSTALLED", True)
    monkeypatch.setattr(target, "INTERPRETED", False)
    monkeypatch.setattr(target, "_DTYPES", (torch.bfloat16,))
    monkeypatch.setattr(target, "capability", lambda device: has)
    operand = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, shape=(3, 1, 64))
    expected = (
        "" if runs else f"it is built for devices of compute capability 8.0, 9 and 10, got {has[0]}.{has[1]}"
    )
    assert target.obstacle(operand) == expected


def test_import_of_opengem_brings_neither_triton_nor_the_compiler():
    code = (
        "import sys, opengem, opengem.ops.jagged_attention, opengem.ops.gdpa, opengem.ops.block_attention;"
        "print([m for m in ('triton', 'torch._dynamo', 'torch._inductor') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_short_rows_get_short_tiles():
    launch = Launch(own=128, other=64)
    assert [launch.own_for(n) for n in (None, 0, 1, 16, 17, 64, 65, 5000)] == [
        128, 16, 16, 16, 32, 64, 128, 128,
    ]  # fmt: skip


def test_views_that_reach_too_far_are_copied_and_larger_tensors_refused():
    near = torch.zeros(4, 2, 16)[:, 0]
    assert target.addressable(near) is near
    assert target.addressable(torch.zeros(16, 4).t()).stride() == (16, 1)
    few = torch.empty(0, device="meta").as_strided((3, 16), (2**30, 1))
    assert target.addressable(few).stride() == (16, 1)
    with pytest.raises(ConfigError, match="at most 2147483647 elements a tensor, got 2147483648"):
        target.addressable(torch.empty(2**27, 16, device="meta"))
