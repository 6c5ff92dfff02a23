import torch

from opengem.nn.cross_layer_attention import CrossLayerAttention


def test_starts_as_the_identity_and_can_leave_it():
    module = CrossLayerAttention(8)
    outputs = [torch.randn(2, 5, 8) for _ in range(3)]
    assert torch.equal(module(outputs), outputs[-1])
    module(outputs).square().sum().backward()
    assert module.gain.grad.abs().max() > 0


def test_is_softmax_attention_over_layers():
    module = CrossLayerAttention(4)
    torch.nn.init.ones_(module.gain)
    outputs = [torch.randn(2, 3, 4) for _ in range(3)]
    stacked = torch.stack(outputs, dim=2).flatten(0, 1)
    query = module.query(outputs[-1]).flatten(0, 1)[:, None]
    read = torch.nn.functional.scaled_dot_product_attention(query, stacked, stacked).view(2, 3, 4)
    torch.testing.assert_close(module(outputs), outputs[-1] + read)
