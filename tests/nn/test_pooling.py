import pytest
import torch

from opengem.nn.pooling import HSP, PMA


@pytest.mark.parametrize("make", [lambda: PMA(8, 2, 3), lambda: HSP(8, 2, 3, seeds=12)], ids=["pma", "hsp"])
def test_pools_to_its_tokens_and_ignores_what_is_masked(make):
    pool = make()
    x, mask = torch.randn(4, 6, 8), torch.rand(4, 6) < 0.6
    mask[0] = False
    out = pool(x, mask)
    assert out.shape == (4, 3, 8)
    torch.testing.assert_close(pool(x.masked_fill(~mask[..., None], 7.0), mask), out)
    assert torch.equal(out[0], torch.zeros(3, 8))


def test_hsp_is_the_printed_sum():
    pool = HSP(4, 2, 3, seeds=5, terms=2)
    x, mask = torch.randn(2, 6, 4), torch.ones(2, 6, dtype=torch.bool)
    H = pool.pool(x, mask)
    W = pool.maps.weight.view(2, 4, 4)
    expected = sum(
        torch.einsum("km,bmd,ed->bke", z.weight, H, w) for z, w in zip(pool.reduce, W, strict=True)
    )
    torch.testing.assert_close(pool(x, mask), expected)
