import dataclasses

import pytest
import torch

from opengem.nn.interformer import (
    FeatureSummary,
    InterFormerConfig,
    SequenceLayer,
    SequenceState,
    SequenceSummary,
)

CONFIG = InterFormerConfig(heads=2, summary=3)


def state(rows=4, length=6, owner=None):
    mask = torch.rand(rows, length) < 0.6
    mask[0] = False
    tokens = torch.randn(rows, 3 + length, 8)
    tokens[:, 3:] *= mask[..., None]
    return SequenceState(tokens, mask, owner)


def test_feature_summary_counts_its_tokens():
    assert FeatureSummary(5, 8, CONFIG)(torch.randn(2, 5, 8)).shape == (2, 3, 8)


@pytest.mark.parametrize("pooling", ["pma", "hsp"])
@pytest.mark.parametrize("target", [True, False])
@pytest.mark.parametrize("recent", [0, 2, 9])
def test_sequence_summary_counts_its_tokens(pooling, target, recent):
    config = dataclasses.replace(CONFIG, pooling=pooling, target_attention=target, recent=recent)
    out = SequenceSummary(8, config)(state(), torch.randn(4, 8))
    assert out.shape == (4, config.sequence_summary, 8)
    assert out.isfinite().all()


@pytest.mark.parametrize("pooling", ["pma", "hsp"])
def test_summary_ignores_what_is_masked_and_pools_nothing_to_zero(pooling):
    module, s = SequenceSummary(8, dataclasses.replace(CONFIG, pooling=pooling)), state()
    spoiled = s.tokens.clone()
    spoiled[:, 3:][~s.mask] = torch.randn(8)
    candidate = torch.randn(4, 8)
    out = module(s, candidate)
    torch.testing.assert_close(module(SequenceState(spoiled, s.mask, None), candidate), out)
    assert torch.equal(out[0, 3:], torch.zeros_like(out[0, 3:]))


def test_only_the_candidates_token_depends_on_the_candidate():
    module, s = SequenceSummary(8, CONFIG), state()
    a, b = module(s, torch.randn(4, 8)), module(s, torch.randn(4, 8))
    assert torch.equal(a[:, :-1], b[:, :-1])
    assert not torch.allclose(a[1:, -1], b[1:, -1])
    assert torch.equal(a[0, -1], torch.zeros(8))


def test_summaries_of_requests_equal_those_of_copied_requests():
    module, owner = SequenceSummary(8, CONFIG), torch.tensor([0, 1, 1, 3])
    s, candidate = state(), torch.randn(4, 8)
    copied = SequenceState(s.tokens[owner], s.mask[owner], None)
    shared = SequenceState(s.tokens, s.mask, owner)
    torch.testing.assert_close(module(shared, candidate), module(copied, candidate))


@pytest.mark.parametrize("window", [0, 2])
def test_attention_never_reads_masked_tokens(window):
    layer = SequenceLayer(8, dataclasses.replace(CONFIG, window=window), 6, feed=True, attend=True)
    s, summary = state(), torch.randn(4, 3, 8)
    spoiled = s.tokens.clone()
    spoiled[:, 3:][~s.mask] = 9.0
    a = layer(s, summary).tokens
    b = layer(SequenceState(spoiled, s.mask, None), summary).tokens
    torch.testing.assert_close(a[:, 3:][s.mask], b[:, 3:][s.mask])
    torch.testing.assert_close(a[:, :3], b[:, :3])


def test_window_limits_reach_but_not_for_cls():
    layer = SequenceLayer(8, dataclasses.replace(CONFIG, window=1), 6, feed=False, attend=True)
    tokens, mask = torch.randn(1, 9, 8), torch.ones(1, 6, dtype=torch.bool)
    other = tokens.clone()
    other[0, 3] += torch.randn(8)
    a, b = (layer(SequenceState(t, mask, None), torch.zeros(1, 3, 8)).tokens for t in (tokens, other))
    assert (a != b).any(2)[0].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]


def test_skipping_parts_leaves_tokens_alone():
    layer = SequenceLayer(8, CONFIG, 6, feed=False, attend=False)
    s = state()
    assert torch.equal(layer(s, torch.zeros(4, 3, 8)).tokens, s.tokens)
