import torch
import torch.nn.functional as F

from opengem.nn.mlp import MLP


def test_is_linear_silu_linear():
    module = MLP(4, (8, 3))
    x = torch.randn(5, 4)
    first, second = module.layers
    torch.testing.assert_close(module(x), second(F.silu(first(x))))
    assert module.flops(5) == 2 * 5 * (4 * 8 + 8 * 3)


def test_unit_inputs_give_values_of_order_one():
    x = torch.randn(256, 64)
    assert 0.2 < MLP(64, (128, 32))(x).std() < 1.5


def test_dropout_only_in_training():
    module = MLP(4, (64, 64), dropout=0.5, activate_last=True)
    x = torch.ones(1, 4)
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))
