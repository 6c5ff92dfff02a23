"""The most recent events of each request, as a dense block with a mask."""

import torch
from torch import Tensor


def recent_events(x_LD: Tensor, offsets: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Take the last `count` events of each row, newest last, older places masked.

    Every size but `count` may be dynamic, so the function exports; all rows may be empty.

    Args:
        x_LD: Events, shape `(L, D)`.
        offsets: Shape `(R + 1,)` int64.
        count: Events to take, N.

    Returns:
        `x_RND`, zeros where masked, and `mask_RN` bool, true where there is an event.
    """
    places = torch.arange(count, device=x_LD.device)
    index_RN = offsets[1:, None] - count + places[None, :]
    mask_RN = index_RN >= offsets[:-1, None]
    # a zero row in front serves every masked place, and keeps the gather legal when there is no event at all
    padded = torch.cat([x_LD.new_zeros(1, x_LD.shape[1]), x_LD])
    return padded[torch.where(mask_RN, index_RN + 1, 0)], mask_RN
