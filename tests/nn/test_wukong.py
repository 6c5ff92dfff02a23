import pytest
import torch

from opengem.nn.wukong import FactorizationMachineBlock, MLPLayer, WukongConfig, WukongLayer

CONFIG = WukongConfig(fm_tokens=3, lcb_tokens=2, rank=4, hidden=16)


def test_compressed_products_equal_all_pairwise_products():
    """`X (X^T Y)` is the matrix of all dot products of token pairs, times Y."""
    block = FactorizationMachineBlock(6, 5, CONFIG)
    x = torch.randn(2, 6, 5)
    pairwise = torch.einsum("bnd,bmd->bnm", x, x) @ block.y
    expected = block.mlp(block.norm(pairwise.flatten(1))).view(2, 3, 5)
    torch.testing.assert_close(block(x), expected)


def test_attentive_y_depends_on_the_example():
    block = FactorizationMachineBlock(
        6, 5, WukongConfig(fm_tokens=3, lcb_tokens=2, rank=4, hidden=16, attentive=True)
    )
    x = torch.randn(2, 6, 5)
    assert block(x).shape == (2, 3, 5)
    y = block.make_y(block.compress(x).flatten(1))
    assert not torch.allclose(y[0], y[1])


@pytest.mark.parametrize("tokens", [4, 5, 9])
def test_layer_gives_its_tokens_normalised(tokens):
    layer = WukongLayer(tokens, 8, CONFIG, carried=tokens)
    x = torch.randn(3, tokens, 8)
    out = layer(x, x)
    assert out.shape == (3, 5, 8)
    torch.testing.assert_close(out.mean(-1), torch.zeros(3, 5), atol=1e-5, rtol=0)
    assert (layer.residual is None) == (tokens == 5)


def test_residual_keeps_carried_tokens():
    """With the new branches at zero a layer of fitting size hands its input on, normalised."""
    layer = WukongLayer(7, 8, CONFIG, carried=5)
    for branch in (layer.fmb.mlp.layers[-1].weight, layer.lcb.weight, layer.residual.weight):
        torch.nn.init.zeros_(branch)
    x = torch.randn(3, 7, 8)
    torch.testing.assert_close(layer(x, x[:, :5]), torch.nn.functional.layer_norm(x[:, :5], (8,)))


def test_learns_a_product_of_two_tokens_that_a_linear_map_cannot():
    """Interaction order 2: the target is the sign of a dot product of two of the tokens."""
    torch.manual_seed(0)
    layer = WukongLayer(4, 8, WukongConfig(fm_tokens=4, lcb_tokens=2, rank=4, hidden=32), carried=4)
    head = torch.nn.Linear(6 * 8, 1)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=0.01)
    x = torch.randn(512, 4, 8)
    y = ((x[:, 0] * x[:, 2]).sum(-1) > 0).float()
    for _ in range(150):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(head(layer(x, x).flatten(1))[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fresh = torch.randn(512, 4, 8)
    truth = (fresh[:, 0] * fresh[:, 2]).sum(-1) > 0
    assert ((head(layer(fresh, fresh).flatten(1))[:, 0] > 0) == truth).float().mean() > 0.8


def test_plain_layer_has_the_same_interface():
    layer = MLPLayer(7, 8, 5, 16, carried=6)
    x = torch.randn(3, 7, 8)
    assert layer(x, x[:, :6]).shape == (3, 5, 8)
