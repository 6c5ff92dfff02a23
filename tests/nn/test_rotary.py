import math

import torch

from opengem.nn.rotary import Rotary
from opengem.ops.rotary_attention import rotate


def test_angles_by_hand():
    table = Rotary(4, 10, base=100.0)(torch.tensor([0, 3, 99]))
    assert table.shape == (3, 2, 2)
    assert table[0].tolist() == [[1, 0], [1, 0]]
    expected = [[math.cos(3), math.sin(3)], [math.cos(0.3), math.sin(0.3)]]
    torch.testing.assert_close(table[1], torch.tensor(expected))
    assert torch.equal(table[2], Rotary(4, 10, base=100.0)(torch.tensor([9]))[0])


def test_scores_depend_on_distance_alone():
    rotary = Rotary(8, 50)
    q, k = torch.randn(8), torch.randn(8)
    scores = [
        (rotate(q, rotary(torch.tensor([i]))[0]) * rotate(k, rotary(torch.tensor([i + 5]))[0])).sum()
        for i in (0, 17)
    ]
    torch.testing.assert_close(scores[0], scores[1])
