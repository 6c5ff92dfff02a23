import numpy as np

from opengem.data.synth.catalogue import GroupedSampler, build_catalogue
from opengem.data.synth.config import CATEGORIES, SynthConfig


def test_sampler_draws_in_proportion_to_weight():
    group = np.array([2, 0, 2, 0, 2])
    member = np.array([10, 11, 12, 13, 14])
    sampler = GroupedSampler(group, member, np.array([1.0, 3.0, 2.0, 1.0, 1.0]), 3)
    uniform = (np.arange(4_000) + 0.5) / 4_000
    drawn, count = np.unique(sampler.sample(np.full(4_000, 2), uniform), return_counts=True)
    assert dict(zip(drawn.tolist(), count.tolist(), strict=True)) == {10: 1_000, 12: 2_000, 14: 1_000}
    assert set(sampler.sample(np.zeros(4_000, dtype=int), uniform).tolist()) == {11, 13}
    assert sampler.sample(np.array([0, 2]), np.array([np.nextafter(1, 0)] * 2)).tolist() == [13, 14]


def test_every_category_has_an_ad_on_every_day_and_new_ones_come():
    config = SynthConfig(users=100, days=30)
    catalogue = build_catalogue(config)
    group = np.arange(30 * CATEGORIES)
    ad = catalogue.ads_by_day.sample(group, np.full(len(group), 0.5))
    assert (catalogue.category[ad] == group % CATEGORIES).all()
    assert (catalogue.created[ad] <= group // CATEGORIES).all()
    created = catalogue.created[: catalogue.num_ads]
    assert len(set(created[created > 0].tolist())) > 20
    np.testing.assert_allclose(np.linalg.norm(catalogue.creative, axis=1), 1, atol=1e-6)
