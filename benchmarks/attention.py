"""Attention on a CPU: each operation as a share of the matmul roof, beside its rivals, on two threads, and its memory.

Useful work only: `4 H K` FLOPs a pair of query and key that see each other, 3.5 times that for forward and backward
(scores are computed anew in the backward pass; the products of the padding are not counted). One thread, float32, 4
heads, 64 rows of log-normal lengths. The roof, a product of square matrices, is measured beside every operation. A
rival that pads and would take more than a few seconds at the roof itself is not run: its row then holds the share that
it cannot exceed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from attention_rivals import BLOCK, RIVALS
from opengem.ops.block_attention import block_attention
from opengem.ops.gdpa import gdpa
from opengem.ops.jagged_attention import jagged_attention
from provenance import emit

HEADS, ROWS, ROUNDS = 4, 64, 3
TOO_LONG = 3.0
"""Seconds at the roof from which a rival that pads is not run."""
GOALS = {  # operation -> width -> (torch alone, compiled), forward and both: shares to reach, less a tenth
    "block of 64, rotary": {32: ((0.24, 0.24), (0.56, 0.58)), 64: ((0.30, 0.30), (0.58, 0.53))},
    "GDPA, 64 keys": {32: ((0.34, 0.34), (0.55, 0.60)), 64: ((0.46, 0.46), (0.66, 0.62))},
    "GDPA, 256 keys": {32: ((0.48, 0.48), (0.69, 0.68)), 64: ((0.60, 0.53), (0.82, 0.83))},
    "softmax, up to 512": {32: ((0.51, 0.57), (0.78, 0.81)), 64: ((0.61, 0.65), (0.90, 0.89))},
    "softmax, up to 4,096": {32: ((0.65, 0.63), (0.92, 0.96)), 64: ((0.81, 0.74), (0.99, 0.95))},
    "window of 100": {32: ((0.29, 0.36), (0.62, 0.66)), 64: ((0.39, 0.46), (0.72, 0.72))},
}


@dataclass
class Problem:
    """Inputs of one operation and how to call it."""

    operation: str
    kind: str
    lengths: np.ndarray
    tensors: list[Tensor]
    offsets: Tensor
    window: int | None = None
    rotation: Tensor | None = None
    pairs: int = 0
    padded_pairs: int = 0
    grad: Tensor = field(default_factory=lambda: torch.empty(0))

    def ours(self, backend: str) -> Callable[..., Tensor]:
        """Return this project's operation on a backend."""
        if self.kind == "block":
            return lambda qkv: block_attention(qkv, self.offsets, self.rotation, block=BLOCK, backend=backend)
        if self.kind == "gdpa":
            return lambda q, k, v: gdpa(q, k, v, q_offsets=self.offsets, alpha=0.1, backend=backend)
        return lambda q, k, v: jagged_attention(q, k, v, self.offsets, window=self.window, backend=backend)

    def flops(self, width: int, both: bool) -> float:
        """Return the useful FLOPs of a call."""
        return 4.0 * HEADS * width * self.pairs * (3.5 if both else 1)


def lengths_up_to(longest: int, rows: int) -> np.ndarray:
    """Return log-normal lengths of mean 0.3 times the longest; one row is that long."""
    drawn = np.random.default_rng(0).lognormal(np.log(0.215 * longest), 0.9, rows)
    lengths = drawn.astype(int).clip(1, longest)
    lengths[0] = longest
    return lengths


def problem(operation: str, width: int, rows: int = ROWS) -> Problem:
    """Return an operation's inputs at the sizes of this benchmark."""
    torch.manual_seed(0)
    longest = 4096 if "4,096" in operation else 512
    n = lengths_up_to(longest, rows)
    total = int(n.sum())
    offsets = torch.tensor(np.concatenate([[0], n.cumsum()]))
    if operation.startswith("block"):
        position = torch.cat([torch.arange(int(i)) for i in n])
        angle = position[:, None] / 1e4 ** (torch.arange(width // 2) / (width // 2))
        made = Problem(operation, "block", n, [torch.randn(total, 3, HEADS, width)], offsets)
        made.rotation = torch.stack([angle.cos(), angle.sin()], dim=-1)
        made.pairs = int((n // BLOCK * BLOCK**2 + (n % BLOCK) ** 2).sum())
        made.padded_pairs = rows * longest * BLOCK
    elif operation.startswith("GDPA"):
        keys = int(operation.split()[1])
        tensors = [torch.randn(total, HEADS, width), *torch.randn(2, rows, keys, HEADS, width)]
        made = Problem(operation, "gdpa", n, tensors, offsets)
        made.pairs, made.padded_pairs = total * keys, rows * longest * keys
    else:
        made = Problem(operation, "jagged", n, list(torch.randn(3, total, HEADS, width)), offsets)
        made.window = 100 if operation.startswith("window") else None
        made.pairs = int((n**2).sum())
        if made.window is not None:
            outside = np.maximum(n - 1 - made.window, 0)
            made.pairs -= int((outside * (outside + 1)).sum())
        made.padded_pairs = rows * longest**2
    made.grad = torch.randn(total, HEADS, width)
    return made


def seconds(function: Callable[[], object], budget: float = 0.6) -> list[float]:
    """Time calls, after one that is not timed, until the budget is spent or 25 have run."""
    function()
    times: list[float] = []
    while not times or (sum(times) < budget and len(times) < 25):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return times


def roof() -> float:
    """Return the median rate of a product of square matrices, in FLOP/s."""
    a, b = torch.randn(2, 1024, 1024)
    out = torch.empty(1024, 1024)
    return 2.0 * 1024**3 / statistics.median(seconds(lambda: torch.mm(a, b, out=out), 0.2))


def caller(made: Problem, call: Callable[..., Tensor], both: bool) -> Callable[[], object]:
    """Return one step: a forward pass without gradients, or forward and backward."""
    leaves = [x.clone().requires_grad_(both) for x in made.tensors]

    def step() -> None:
        with torch.set_grad_enabled(both):
            out = call(*leaves)
        if both:
            for leaf in leaves:
                leaf.grad = None
            out.backward(made.grad)

    return step


def measured(operation: str, width: int) -> Iterator[dict]:
    """Measure every system on one operation; yield a row for each."""
    made = problem(operation, width)
    exact = made.ours("reference")(*made.tensors)
    systems = {name: made.ours(name) for name in ("native", "cpu")}
    for name, rival in RIVALS.items():
        if made.kind in rival.kinds and not (name == "nested" and made.window is not None):
            systems[name] = rival.build(made)
    for both in (False, True):
        flops, rate = made.flops(width, both), roof()
        row = {"benchmark": "attention", "operation": operation, "width": width}
        row |= {"pass": "both" if both else "forward", "threads": torch.get_num_threads()}
        steps = {}
        for name, system in systems.items():
            pads = name in RIVALS and RIVALS[name].pads
            if pads and flops * made.padded_pairs / made.pairs / rate > TOO_LONG:
                yield {**row, "system": name, "share_at_most": round(made.pairs / made.padded_pairs, 3)}
                continue
            if not both:
                error = float((system(*made.tensors) - exact).abs().max())
                assert error < 1e-3, f"{name} is off by {error} on {operation}"
            steps[name] = caller(made, system, both)
        times, rates = {name: [] for name in steps}, [rate]
        for _ in range(ROUNDS):  # in turns, so that what else the machine does falls on all alike
            for name, step in steps.items():
                times[name] += seconds(step, 0.6 / ROUNDS)
            rates.append(roof())
        rate = statistics.median(rates)
        for name, taken in times.items():
            middle = statistics.median(taken)
            yield {
                **row,
                "system": name,
                "roof_gflops": round(rate / 1e9, 1),
                "share": round(flops / middle / rate, 3),
                "seconds": round(middle, 5),
                "spread": round((np.quantile(taken, 0.75) - np.quantile(taken, 0.25)) / middle, 3),
                "calls": len(taken),
            }


def speedup(operation: str, width: int) -> dict:
    """Time the native backend on one thread and on two, in turns."""
    made = problem(operation, width)
    row = {"benchmark": "attention, two threads", "operation": operation, "width": width}
    for both in (False, True):
        step, times = caller(made, made.ours("native"), both), ([], [])
        for _ in range(3):
            for threads in (1, 2):
                torch.set_num_threads(threads)
                times[threads - 1].extend(seconds(step, 0.2))
        row["both" if both else "forward"] = round(
            statistics.median(times[0]) / statistics.median(times[1]), 2
        )
    torch.set_num_threads(1)
    return row


def peak(operation: str, width: int, backend: str, rows: int) -> None:
    """Print in MiB what a forward and backward pass holds at most beyond its inputs, and the mean of q, k and v."""
    torch.set_num_threads(1)
    caller(problem(operation, width, 2), problem(operation, width, 2).ours(backend), True)()  # code and pools
    made = problem(operation, width, rows)
    leaves = [x.requires_grad_() for x in made.tensors]
    call = made.ours(backend)
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # the high-water mark begins anew
    before = _status("VmRSS")
    call(*leaves).backward(made.grad)
    size = sum(x.numel() for x in made.tensors) / 3 * 4 / 2**20
    print(_status("VmHWM") - before, size)


def _status(name: str) -> float:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def memory(operation: str, width: int, backend: str) -> dict:
    """Measure peak memory at 1, 4 and 16 times the rows, each in a process of its own."""
    row: dict = {"benchmark": "attention, memory", "operation": operation, "width": width, "system": backend}
    for times in (1, 4, 16):
        words = [sys.executable, __file__, "--peak", operation, str(width), backend, str(ROWS * times)]
        out = subprocess.run(words, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
        held, size = map(float, out.split())
        row[f"mib_{times}x"] = round(held, 1)
        row[f"tensor_mib_{times}x"] = round(size, 1)
        row[f"allowed_mib_{times}x"] = round(5 * size + 8, 1)
    return row


def table(rows: list[dict]) -> str:
    """Return shares of the roof as text: forward / both, a line for each operation and width."""
    names = ["native", "cpu", *RIVALS]
    lines = [
        " ".join([f"{'share of the roof, forward / both':38}", *(f"{n:>15}" for n in names), "goals n; c"])
    ]
    for operation, widths in GOALS.items():
        for width, goals in widths.items():
            found = {
                (r["system"], r["pass"]): r
                for r in rows
                if r["benchmark"] == "attention" and (r["operation"], r["width"]) == (operation, width)
            }
            if not found:
                continue
            cells = [" / ".join(_cell(found.get((n, p))) for p in ("forward", "both")) for n in names]
            wanted = "; ".join("/".join(f"{0.9 * share:.2f}" for share in goal) for goal in reversed(goals))
            lines.append(" ".join([f"{operation + f', K={width}':38}", *(f"{c:>15}" for c in cells), wanted]))
    return "\n".join(lines)


def _cell(row: dict | None) -> str:
    if row is None:
        return "-"
    return f"{row['share']:.2f}" if "share" in row else f"<{row['share_at_most']:.2f}"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="operations whose name begins so")
    parser.add_argument("--part", choices=("shares", "threads", "memory"), help="one part of three")
    parser.add_argument("--peak", nargs=4, metavar="X", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        operation, width, backend, rows = options.peak
        peak(operation, int(width), backend, int(rows))
        return
    torch.set_num_threads(1)
    rows: list[dict] = []

    def note(row: dict) -> None:
        rows.append(row)
        emit(row)

    operations = [o for o in GOALS if o.startswith(options.only)]
    for operation in operations:
        for width in GOALS[operation]:
            if options.part in (None, "shares"):
                for row in measured(operation, width):
                    note(row)
            if options.part in (None, "threads"):
                note(speedup(operation, width))
    if options.part in (None, "memory"):
        for operation in operations:
            if "4,096" not in operation:  # the formula is that of "up to 512"
                for backend in ("native", "cpu"):
                    note(memory(operation, 32, backend))
    print(table(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
