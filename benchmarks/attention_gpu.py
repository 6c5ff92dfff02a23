"""Attention on a GPU at Meta's published shapes: shares of the device's own matmul roof, beside rivals.

Useful work only: `4 H K` FLOPs a pair of query and key that see each other, 3.5 times that for forward and backward
(scores are computed anew in the backward pass; the products of padding are not counted). The roof, a product of square
matrices of the same dtype, is measured beside every shape. Sparsity s is that of the published benchmarks: lengths are
uniform between (2 s - 1) times the longest and the longest, so s is their mean over the longest.

Rivals: FBGEMM's jagged flash attention where it is installed, on operands laid out for it beforehand, and the same
operation padded and compiled whole for each shape, without a mask where no row is shorter. What a system computes is
held against the reference before it is timed. A row is one JSON line on standard output; the table follows on standard
error.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from attention_gpu_systems import SYSTEMS, Call, Problem, Shape, gap
from provenance import emit

LONGEST = {
    "jagged attention": (256, 512, 1024, 2048),
    "GDPA": (200, 400, 800),
    "block attention": (512, 2048),
}
ROOF_SIZE = 8192
ALLOWED = 0.05
"""Largest difference from the reference, in units of its largest value: roundings of 16 bits."""


def shapes(operation: str, longest: int, sparsity: float) -> Shape:
    """Return the published shape of an operation; block attention, of which none is, has that of jagged attention."""
    if operation == "GDPA":
        return Shape(operation, rows=2048, heads=4, width=64, longest=longest, sparsity=sparsity, keys=256)
    return Shape(operation, rows=1152, heads=4, width=128, longest=longest, sparsity=sparsity)


@dataclass(frozen=True)
class Timing:
    """Median seconds of a call, distance of the quartiles over it, number of calls, peak MiB beyond what was held."""

    seconds: float
    spread: float
    calls: int
    mib: float


def timed(function: Callable[[], object], budget: float) -> Timing:
    """Time calls one by one on the device, after three that are not timed, until `budget` seconds or 100 calls."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < budget and len(times) < 100):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    middle = statistics.median(times)
    spread = (np.quantile(times, 0.75) - np.quantile(times, 0.25)) / middle
    return Timing(middle, float(spread), len(times), (torch.cuda.max_memory_allocated() - held) / 2**20)


def roof(dtype: torch.dtype, budget: float) -> float:
    """Return the median rate of a product of square matrices, in FLOP/s."""
    a, b, out = (torch.randn(ROOF_SIZE, ROOF_SIZE, device="cuda", dtype=dtype) for _ in range(3))
    return 2.0 * ROOF_SIZE**3 / timed(lambda: torch.mm(a, b, out=out), budget).seconds


def step(call: Call, both: bool) -> Callable[[], object]:
    """Return one step: a forward pass without gradients, or forward and backward."""
    leaves = [x.detach().requires_grad_(both) for x in call.tensors]
    with torch.no_grad():
        grad = torch.ones_like(call.run(*leaves))

    def run() -> None:
        with torch.set_grad_enabled(both):
            out = call.run(*leaves)
        if both:
            torch.autograd.grad(out, leaves, grad)

    return run


def measured(shape: Shape, dtype: torch.dtype, budget: float) -> Iterator[dict]:
    """Measure every system on one shape; yield a row for each and each pass.

    A rival that fails is a row that says why; this project's own failure is raised.
    """
    made = Problem.draw(shape, "cuda", dtype)
    rate = roof(dtype, budget)
    for name, build in SYSTEMS[shape.operation].items():
        row = {
            "benchmark": "attention, GPU",
            **shape.described(),
            "dtype": str(dtype).removeprefix("torch."),
            "device": torch.cuda.get_device_name(),
            "system": name,
            "roof_tflops": round(rate / 1e12, 1),
        }
        try:
            call = build(made)
            if (found := gap(made, call)) > ALLOWED:
                raise AssertionError(f"it is off by {found:.3f} of the largest value")
            for both in (False, True):
                timing = timed(step(call, both), budget)
                yield {**row, **figures(timing, shape.flops(made.lengths, both), rate, both)}
        except Exception as reason:
            if name == "triton" and not isinstance(reason, torch.cuda.OutOfMemoryError):
                raise
            yield {**row, "not_run": f"{type(reason).__name__}: {reason}"[:300]}
        torch.cuda.empty_cache()


def figures(timing: Timing, flops: float, rate: float, both: bool) -> dict:
    """Return what is reported of a timing."""
    return {
        "pass": "both" if both else "forward",
        "share": round(flops / timing.seconds / rate, 3),
        "tflops": round(flops / timing.seconds / 1e12, 1),
        "milliseconds": round(timing.seconds * 1e3, 3),
        "spread": round(timing.spread, 3),
        "calls": timing.calls,
        "peak_mib": round(timing.mib, 1),
    }


def table(rows: list[dict]) -> str:
    """Return shares of the roof, forward / both, as text: a line a shape, a column a system."""
    names = list(dict.fromkeys(r["system"] for r in rows))
    lines = [" ".join([f"{'share of the roof, forward / both':44}", *(f"{n:>18}" for n in names)])]
    by_shape: dict[str, dict[tuple[str, str], dict]] = {}
    for r in rows:
        title = f"{r['operation']}, up to {r['longest']}, sparsity {r['sparsity']}"
        by_shape.setdefault(title, {})[r["system"], r.get("pass", "")] = r
    for title, found in by_shape.items():
        cells = []
        for name in names:
            shares = [found.get((name, p), {}).get("share") for p in ("forward", "both")]
            cells.append(" / ".join("-" if s is None else f"{s:.2f}" for s in shares))
        lines.append(" ".join([f"{title:44}", *(f"{c:>18}" for c in cells)]))
    return "\n".join(lines)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(LONGEST), help="one operation of three")
    parser.add_argument("--longest", type=int, nargs="+", help="longest rows, in place of the published ones")
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.5, 1.0], help="0.5 to 1")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of calls for each figure")
    options = parser.parse_args(words)
    if not all(0.5 <= s <= 1 for s in options.sparsity):
        parser.error(f"--sparsity must be from 0.5 to 1, got {options.sparsity}")
    if options.longest and min(options.longest) < 1:
        parser.error(f"--longest must be at least 1, got {options.longest}")
    return options


def main() -> None:
    """Run the benchmark."""
    options = arguments()
    if not torch.cuda.is_available():
        raise SystemExit(
            "this benchmark measures a GPU, and torch sees none here "
            f"(torch {torch.__version__}): run it where torch.cuda.is_available() holds"
        )
    dtype = getattr(torch, options.dtype)
    rows: list[dict] = []
    for operation in [options.only] if options.only else LONGEST:
        for longest in options.longest or LONGEST[operation]:
            for sparsity in options.sparsity:
                for row in measured(shapes(operation, longest, sparsity), dtype, options.budget):
                    rows.append(row)
                    emit(row)
                torch.cuda.empty_cache()
    print(table(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
