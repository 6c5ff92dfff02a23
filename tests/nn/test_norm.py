import torch

from opengem.nn.norm import LayerNorm


def test_half_precision_inputs_are_normalised_in_float32():
    x = torch.randn(4, 64) * 3 + 100
    out = LayerNorm(64)(x.bfloat16())
    assert out.dtype == torch.bfloat16
    expected = torch.nn.functional.layer_norm(x.bfloat16().float(), (64,)).bfloat16()
    assert torch.equal(out, expected)


def test_double_stays_double():
    x = torch.randn(4, 8, dtype=torch.float64)
    module = LayerNorm(8).double()
    torch.testing.assert_close(
        module(x), (x - x.mean(-1, True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    )
