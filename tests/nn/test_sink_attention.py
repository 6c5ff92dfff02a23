import torch

from opengem.nn.sink_attention import SinkAttention


def explicit(module, q, x, mask):
    """The same attention with keys and values made, and the sink as one more key."""
    H, K = module.heads, module.head_width
    B, N, S = q.shape[0], q.shape[1], x.shape[1]
    queries = module.query(q).view(B, N, H, K)
    keys = torch.einsum("bsd,hkd->bshk", x, module.key)
    values = torch.einsum("bsd,hdk->bshk", x, module.value)
    keys = torch.cat([keys, module.sink.expand(B, 1, H, K)], dim=1)
    values = torch.cat([values, torch.zeros(B, 1, H, K, dtype=x.dtype)], dim=1)
    seen = torch.cat([mask, torch.ones(B, 1, dtype=torch.bool)], dim=1)[:, None, None]
    out = torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=seen.expand(B, H, N, S + 1),
    )
    return module.out(out.transpose(1, 2).reshape(B, N, H * K))


def test_equals_attention_with_keys_and_values_made():
    module = SinkAttention(8, 2).double()
    torch.nn.init.normal_(module.sink)
    q, x = torch.randn(3, 2, 8, dtype=torch.float64), torch.randn(3, 5, 8, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
    torch.testing.assert_close(module(q, x, mask), explicit(module, q, x, mask), check_dtype=False)


def test_no_token_gives_zero_and_finite_gradients():
    module = SinkAttention(8, 2)
    x = torch.randn(2, 3, 8, requires_grad=True)
    out = module(torch.randn(2, 1, 8), x, torch.zeros(2, 3, dtype=torch.bool))
    assert torch.equal(out, torch.zeros_like(out))
    out.sum().backward()
    assert x.grad.isfinite().all()


def test_a_strong_sink_silences_the_tokens():
    module = SinkAttention(8, 2)
    q = torch.randn(1, 1, 8)
    with torch.no_grad():
        module.sink.copy_(50 * module.query(q).view(2, 4))
    assert module(q, torch.randn(1, 3, 8), torch.ones(1, 3, dtype=torch.bool)).abs().max() < 1e-4


def test_examples_read_their_requests_tokens():
    module = SinkAttention(8, 2)
    x, mask = torch.randn(2, 3, 8), torch.rand(2, 3) < 0.7
    owner, q = torch.tensor([0, 1, 1]), torch.randn(3, 1, 8)
    torch.testing.assert_close(module(q, x, mask, owner), module(q, x[owner], mask[owner]))


def test_a_candidate_finds_its_own_item_from_the_first_step():
    module = SinkAttention(32, 2, alike=True)
    x = torch.randn(64, 10, 32)
    out, other = (module(x[:, i : i + 1], x, torch.ones(64, 10, dtype=torch.bool)) for i in (3, 4))
    assert not torch.allclose(out, other)
    queries = module.query(x[:, 3]).view(64, 2, 16)
    scores = torch.einsum("bhk,hkd,bsd->bhs", queries, module.key, x)
    assert (scores.argmax(-1) == 3).float().mean() > 0.9
