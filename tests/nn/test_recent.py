import torch

from opengem.jagged import offsets_of
from opengem.nn.recent import recent_events


def test_takes_the_newest_and_masks_the_rest():
    lengths = torch.tensor([0, 2, 5, 3])
    x = torch.arange(10.0)[:, None]
    block, mask = recent_events(x, offsets_of(lengths), 3)
    assert block.squeeze(2).tolist() == [[0, 0, 0], [0, 0, 1], [4, 5, 6], [7, 8, 9]]
    assert mask.tolist() == [[False] * 3, [False, True, True], [True] * 3, [True] * 3]


def test_no_event_at_all():
    block, mask = recent_events(torch.zeros(0, 4), torch.zeros(3, dtype=torch.int64), 5)
    assert block.shape == (2, 5, 4)
    assert not mask.any()
    assert not block.any()
