"""What can be tested of the GPU benchmark without a GPU: its shapes, its count of FLOPs, what its systems compute."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import attention_gpu  # noqa: E402
from attention_gpu_systems import Call, Problem, Shape, Unavailable, fbgemm, gap, ours, padded  # noqa: E402

OPERATIONS = ("jagged attention", "GDPA", "block attention")


def small(operation, longest=70, sparsity=0.5, rows=5):
    keys = 6 if operation == "GDPA" else 0
    return Shape(operation, rows, heads=2, width=16, longest=longest, sparsity=sparsity, keys=keys)


def test_published_shapes():
    jagged = attention_gpu.shapes("jagged attention", 2048, 0.5)
    assert (jagged.rows, jagged.heads, jagged.width) == (1152, 4, 128)
    cross = attention_gpu.shapes("GDPA", 800, 1.0)
    assert (cross.rows, cross.width, cross.keys) == (2048, 64, 256)
    assert attention_gpu.LONGEST["jagged attention"] == (256, 512, 1024, 2048)
    assert max(attention_gpu.LONGEST["GDPA"]) == 800


@pytest.mark.parametrize("sparsity", [0.5, 0.75, 1.0])
def test_lengths_are_uniform_with_the_sparsity_as_mean(sparsity):
    lengths = attention_gpu.shapes("jagged attention", 1024, sparsity).lengths()
    assert lengths.min() >= (2 * sparsity - 1) * 1024
    assert lengths.max() <= 1024
    assert abs(lengths.mean() / 1024 - sparsity) < 0.02
    assert abs(np.median(lengths) / 1024 - sparsity) < 0.04


@pytest.mark.parametrize("operation", OPERATIONS)
def test_flops_count_the_pairs_that_see_each_other(operation):
    shape = small(operation)
    lengths = shape.lengths()
    pairs = 0
    for n in lengths.tolist():
        for i in range(n):
            seen = {
                "jagged attention": n,
                "GDPA": shape.keys,
                "block attention": min(n, i // 64 * 64 + 64) - i // 64 * 64,
            }
            pairs += seen[operation]
    assert shape.flops(lengths, both=False) == 4 * shape.heads * shape.width * pairs
    assert shape.flops(lengths, both=True) == 14 * shape.heads * shape.width * pairs


@pytest.mark.parametrize("operation", OPERATIONS)
def test_flops_of_full_rows_are_those_that_torch_counts(operation):
    shape = small(operation, longest=128, sparsity=1.0)
    made = Problem.draw(shape, "cpu", torch.float32)
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        padded(made)(*made.tensors)
    assert counter.get_total_flops() == shape.flops(made.lengths, both=False)


@pytest.mark.parametrize("sparsity", [0.5, 1.0])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_systems_compute_the_same_function(operation, sparsity):
    made = Problem.draw(small(operation, sparsity=sparsity), "cpu", torch.float32)
    assert len(made.lengths) == made.shape.rows
    for call in (Call(made.tensors, padded(made)), ours(made, "reference")):
        assert gap(made, call) < 1e-5


def test_a_wrong_answer_shows():
    made = Problem.draw(small("jagged attention"), "cpu", torch.float32)
    right = padded(made)
    assert gap(made, Call(made.tensors, right, lambda out: out * 1.2)) > attention_gpu.ALLOWED


def test_last_rows_are_those_of_the_whole():
    made = Problem.draw(small("jagged attention", rows=12), "cpu", torch.float32)
    few = made.last_rows()
    bounds = few.offsets.tolist()
    assert [b - a for a, b in pairwise(bounds)] == made.lengths[-8:].tolist()
    assert torch.equal(few.tensors[0], made.tensors[0][-bounds[-1] :].double())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_fbgemm_says_why_it_cannot_run():
    with pytest.raises(Unavailable, match="fbgemm_gpu"):
        fbgemm(Problem.draw(small("jagged attention"), "cpu", torch.float32))


def test_arguments():
    chosen = attention_gpu.arguments([])
    assert (chosen.only, chosen.longest, chosen.sparsity) == (None, None, [0.5, 1.0])
    chosen = attention_gpu.arguments(["--only", "GDPA", "--longest", "100", "200", "--dtype", "float16"])
    assert (chosen.only, chosen.longest, chosen.dtype) == ("GDPA", [100, 200], "float16")
    for wrong in (["--sparsity", "0.3"], ["--longest", "0"], ["--only", "all"]):
        with pytest.raises(SystemExit):
            attention_gpu.arguments(wrong)


def test_table_shows_what_was_not_run():
    row = {"operation": "GDPA", "longest": 200, "sparsity": 0.5}
    rows = [
        {**row, "system": "triton", "pass": "forward", "share": 0.5},
        {**row, "system": "triton", "pass": "both", "share": 0.25},
        {**row, "system": "FBGEMM", "not_run": "fbgemm_gpu is not installed"},
    ]
    head, line = attention_gpu.table(rows).splitlines()
    assert head.split()[-2:] == ["triton", "FBGEMM"]
    assert line.split()[-6:] == ["0.50", "/", "0.25", "-", "/", "-"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_refuses_in_words():
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "attention_gpu.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "this benchmark measures a GPU, and torch sees none here" in done.stderr
    assert done.stdout == ""
