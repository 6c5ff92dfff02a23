"""Row lengths on which every backend of every operation must agree with the reference."""

import torch

LENGTHS = {
    "mixed": [3, 0, 70, 1, 64, 65, 128],
    "one": [1],
    "all empty": [0, 0, 0],
    "no rows": [],
    "one past a block": [65],
    "empty at both ends": [0, 5, 0],
}


def offsets_of(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)


def rotation(length, pairs, dtype=torch.float64):
    angle = torch.arange(length, dtype=dtype)[:, None] / 10.0 ** torch.arange(pairs, dtype=dtype)
    return torch.stack([angle.cos(), angle.sin()], dim=-1)
