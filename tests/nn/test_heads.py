import math

import pytest
import torch

from made_batch import INPUTS
from opengem.nn.heads import DomainHeads, HeadsConfig, product_logit


def test_product_logit_is_the_log_odds_of_the_product():
    a, b = torch.randn(200, dtype=torch.float64) * 6, torch.randn(200, dtype=torch.float64) * 6
    p = torch.sigmoid(a) * torch.sigmoid(b)
    torch.testing.assert_close(product_logit(a, b), torch.log(p / (1 - p)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("a", "b", "expected"), [(90.0, 90.0, 90.0 - math.log(2)), (-200.0, 3.0, -200.0), (80.0, -5.0, -5.0)]
)
def test_product_logit_neither_overflows_nor_loses_its_gradient(a, b, expected):
    x = torch.tensor([a, b], requires_grad=True)
    z = product_logit(x[0], x[1])
    assert z.item() == pytest.approx(expected, abs=0.06)
    z.backward()
    assert bool(torch.isfinite(x.grad).all())


def test_surfaces_start_alike_and_can_differ():
    heads = DomainHeads(HeadsConfig(hidden=8), INPUTS, 16)
    trunk = torch.randn(1, 16).expand(3, 16)
    surface = torch.tensor([0, 1, 2])
    z = heads(trunk, surface)
    torch.testing.assert_close(z[0], z[1])
    with torch.no_grad():
        heads.surface_bias.weight[1] += 1.0
    moved = heads(trunk, surface)
    assert moved[1, 0].item() == pytest.approx(z[1, 0].item() + 1.0, abs=1e-5)
    torch.testing.assert_close(moved[2], z[2])
