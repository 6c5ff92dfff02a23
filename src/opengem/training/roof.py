"""The machine's measured peak, which MFU is a share of."""

import time

import torch


def matmul_roof(size: int = 1024, repeats: int = 5) -> float:
    """Return the best measured rate of a square fp32 matrix product, in FLOP/s.

    Args:
        size: Side of the matrices.
        repeats: Products that are timed, after one that is not; the fastest counts.
    """
    generator = torch.Generator().manual_seed(0)  # not the global one: a run's random state is its own
    a, b = torch.randn(2, size, size, generator=generator)
    best = float("inf")
    with torch.no_grad():
        torch.mm(a, b)
        for _ in range(repeats):
            began = time.perf_counter()
            torch.mm(a, b)
            best = min(best, time.perf_counter() - began)
    return 2.0 * size**3 / best
