"""The FLOP counter on the custom operators, against a count of the pairs one by one."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from opengem.ops.block_attention import block_attention
from opengem.ops.gdpa import gdpa
from opengem.ops.jagged_attention import jagged_attention
from opengem.ops.native.flops import attention_flops
from opengem.ops.native.library import unavailable
from tests.ops.rows import LENGTHS, offsets_of

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())
H, K = 2, 16
every_layout = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)


def counted(call):
    with FlopCounterMode(display=False, custom_mapping=attention_flops()) as counter:
        call()
    return counter.get_total_flops()


@every_layout
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 0, 9, 64, 500])
def test_jagged(lengths, causal, window):
    x, offsets = torch.randn(sum(lengths), H, K), offsets_of(lengths)
    pairs = sum(
        (window is None or abs(i - j) <= window) and (j <= i or not causal)
        for n in lengths
        for i in range(n)
        for j in range(n)
    )
    form = {"causal": causal, "window": window, "backend": "native"}
    assert counted(lambda: jagged_attention(x, x, x, offsets, **form)) == 4 * H * K * pairs


@every_layout
@pytest.mark.parametrize(("block", "shift"), [(64, 0), (64, 32), (5, 4)])
def test_block(lengths, block, shift):
    qkv, offsets = torch.randn(sum(lengths), 3, H, K), offsets_of(lengths)
    pairs = sum(
        (i + shift) // block == (j + shift) // block for n in lengths for i in range(n) for j in range(n)
    )
    call = lambda: block_attention(qkv, offsets, block=block, shift=shift, backend="native")  # noqa: E731
    assert counted(call) == 4 * H * K * pairs


@every_layout
def test_gdpa(lengths):
    x, offsets = torch.randn(sum(lengths), H, K), offsets_of(lengths)
    form = {"backend": "native"}
    cost = 4 * H * K
    self_form = lambda: gdpa(x, x, x, q_offsets=offsets, k_offsets=offsets, **form)  # noqa: E731
    assert counted(self_form) == cost * sum(n * n for n in lengths)
    seeds = torch.randn(3, H, K)
    assert counted(lambda: gdpa(seeds, x, x, k_offsets=offsets, **form)) == cost * 3 * sum(lengths)
    keys, request = torch.randn(2, 7, H, K), torch.arange(len(lengths)) % 2
    mapped = lambda: gdpa(x, keys, keys, q_offsets=offsets, request_of_row=request, **form)  # noqa: E731
    assert counted(mapped) == cost * 7 * sum(lengths)
