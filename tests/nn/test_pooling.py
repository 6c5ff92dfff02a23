import torch

from opengem.nn.pooling import HSP, PMA


def test_pma_hands_the_answers_to_its_seeds_on():
    answers = torch.randn(2, 3, 8)
    assert PMA(8, 3).seeds.shape == (1, 3, 8)
    assert torch.equal(PMA(8, 3)(answers), answers)


def test_hsp_is_the_printed_sum():
    pool = HSP(4, 3, seeds=5, terms=2)
    H = torch.randn(2, 5, 4)
    W = pool.maps.weight.view(2, 4, 4)
    terms = zip(pool.reduce, W, strict=True)
    expected = sum(torch.einsum("km,bmd,ed->bke", z.weight, H, w) for z, w in terms)
    torch.testing.assert_close(pool(H), expected)
    assert pool.flops(2) == 2 * (2 * 5 * 32 + 2 * 2 * 3 * 5 * 4)
