"""The operations in compiled and exported programs: one graph, the same answers and gradients."""

import pytest
import torch

from opengem.ops.block_attention import block_attention
from opengem.ops.gdpa import gdpa
from opengem.ops.jagged_attention import jagged_attention
from opengem.ops.native.library import unavailable
from tests.ops.rows import offsets_of, rotation

needs_library = pytest.mark.skipif(bool(unavailable()), reason=unavailable())
BACKENDS = [pytest.param("native", marks=needs_library), "plain"]
PLAIN = {"jagged": "padded", "block": "packed", "gdpa": "padded"}


def jagged(backend):
    def call(x, offsets):
        return jagged_attention(*(x * 1.5).unbind(1), offsets, window=9, max_q=80, backend=backend)

    return call


def block(backend):
    def call(x, offsets):
        turn = rotation(x.shape[0], 8, torch.float32)
        return block_attention(x * 1.5, offsets, turn, shift=32, backend=backend)

    return call


def feed_forward(backend):
    def call(x, offsets):
        q, k, v = (x * 1.5).unbind(1)
        return gdpa(
            q, k, v, q_offsets=offsets, k_offsets=offsets, alpha=0.1, max_q=80, max_k=80, backend=backend
        )

    return call


OPERATIONS = {"jagged": jagged, "block": block, "gdpa": feed_forward}
both = pytest.mark.parametrize("backend", BACKENDS)
every = pytest.mark.parametrize("name", OPERATIONS)


def made(name, backend):
    return OPERATIONS[name](PLAIN[name] if backend == "plain" else backend)


def qkv(lengths):
    return torch.randn(sum(lengths), 3, 2, 16, generator=torch.Generator().manual_seed(0))


def solved(call, x, offsets):
    leaf = x.clone().requires_grad_()
    out = call(leaf, offsets)
    (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out).sin()).sum().backward()
    return out.detach(), leaf.grad


@every
@both
@torch._dynamo.config.patch(capture_scalar_outputs=True)  # packing asks how many places there are
def test_compiles_to_one_graph(name, backend):
    torch._dynamo.reset()
    call = made(name, backend)
    graphs = torch.compile(call, fullgraph=True, backend="aot_eager")
    for lengths in ([70, 0, 3, 65], [5, 80, 1], [9]):  # from the second on with sizes as symbols
        inputs = qkv(lengths), offsets_of(lengths)
        for left, right in zip(solved(graphs, *inputs), solved(call, *inputs), strict=True):
            torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)


@every
@both
def test_exports_with_any_lengths(name, backend):
    class Operation(torch.nn.Module):
        def forward(self, x, offsets):
            return made(name, backend)(x, offsets)

    example = qkv([70, 0, 3, 65]), offsets_of([70, 0, 3, 65])
    shapes = {0: torch.export.Dim("L", min=2)}, {0: torch.export.Dim("R", min=3)}
    program = torch.export.export(Operation(), example, dynamic_shapes=shapes).module()
    for lengths in ([70, 0, 3, 65], [5, 80], [1, 1, 1, 1, 1]):
        inputs = qkv(lengths), offsets_of(lengths)
        torch.testing.assert_close(program(*inputs), Operation()(*inputs))


@every
def test_what_auto_exports_runs_on_any_machine(name):
    class Operation(torch.nn.Module):
        def forward(self, x, offsets):
            return OPERATIONS[name]("auto")(x, offsets)

    program = torch.export.export(Operation(), (qkv([5, 3]), offsets_of([5, 3])))
    assert not [n for n in program.graph.nodes if "opengem" in str(n.target)]


@needs_library
def test_the_custom_operators_keep_torchs_rules():
    x, offsets = qkv([5, 0, 70]), offsets_of([5, 0, 70])
    q, k, v = (y.contiguous().requires_grad_() for y in x.unbind(1))
    packed = x.clone().requires_grad_()
    turn = rotation(75, 8, torch.float32)
    for operator, arguments in (
        (torch.ops.opengem.jagged_attention.default, (q, k, v, offsets, offsets, 9, 0, 0.25)),
        (torch.ops.opengem.block_attention.default, (packed, offsets, turn, 64, 32, 0.25)),
        (torch.ops.opengem.gdpa.default, (q, k, v, offsets, offsets, None, [1, 4], 0.1)),
    ):
        torch.library.opcheck(operator, arguments)
