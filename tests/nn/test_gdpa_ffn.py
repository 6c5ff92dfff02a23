import pytest
import torch

from opengem.nn.gdpa_ffn import PersonalisedFFN
from opengem.ops.gdpa import gdpa


def test_interformers_linear_form_is_the_identity_case():
    """`(X_sum W_0) s = sum_j (w_j . s) x_sum_j`, with X_sum as columns."""
    s, summary, w0 = torch.randn(3, 7, 6), torch.randn(3, 4, 6), torch.randn(4, 6)
    matrix = torch.einsum("bjd,je->bde", summary, w0)
    expected = torch.einsum("bde,bne->bnd", matrix, s)
    keys = w0.expand(3, 4, 6)[:, :, None]
    out = gdpa(s[:, :, None], keys, summary[:, :, None], activation="identity")
    torch.testing.assert_close(out[:, :, 0], expected)


@pytest.mark.parametrize("activation", ["gelu", ("silu", "relu")], ids=str)
def test_equals_a_network_written_out(activation):
    module = PersonalisedFFN(8, 2, activation)
    s, summary = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    q = s.view(3, 5, 2, 4)
    k, v = (m(summary).view(3, 4, 2, 4) for m in (module.key, module.value))
    names = (activation,) * 2 if isinstance(activation, str) else activation
    hidden = torch.einsum("bnhk,bmhk->bhnm", q, k) / 2
    hidden = torch.stack([getattr(torch.nn.functional, a)(hidden[:, h]) for h, a in enumerate(names)], dim=1)
    expected = s + torch.einsum("bhnm,bmhk->bnhk", hidden, v).reshape(3, 5, 8)
    torch.testing.assert_close(module(s, summary), module.norm(expected))


def test_starts_close_to_the_identity():
    module = PersonalisedFFN(32, 2)
    s = module.norm(torch.randn(4, 9, 32))
    assert (module(s, torch.randn(4, 4, 32)) - s).std() < 0.2
