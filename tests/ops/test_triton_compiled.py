"""What the Triton kernels become on devices that are not here: instructions, registers, shared memory."""

import re

import pytest

from opengem.ops.gdpa import ACTIVATIONS
from tests.ops.triton_offline import KERNELS, REGISTERS, SHARED_LIMIT, TENSOR_CORE, compiled

pytest.importorskip("triton", reason='triton is not installed: pip install "opengem[kernels]"')

FAST = {("jagged_attention", "forward", 64), ("block_attention", "forward", 64)}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def cases():
    for operation, kernels in KERNELS.items():
        for kernel in kernels:
            for width in (64, 128):
                for architecture in TENSOR_CORE:
                    fast = (operation, kernel, width) in FAST
                    marks = () if fast else (pytest.mark.slow,)
                    yield pytest.param(operation, kernel, architecture, width, marks=marks)


def check(operation, kernel, architecture, width, dtype="bf16", **more):
    launch, built = compiled(operation, kernel, architecture, width, dtype, **more)
    assert re.search(TENSOR_CORE[architecture], built.ptx)
    # no product falls back to an older generation's instruction or to plain multiplication
    for other, instruction in TENSOR_CORE.items():
        assert other == architecture or not re.search(instruction, built.ptx)
    # where two programs add to one place the sum depends on who comes first
    assert not re.search(r"\b(atom|red)\.", built.ptx)
    assert built.spilled == 0
    assert built.stack == 0
    assert launch.programs * built.shared <= SHARED_LIMIT[architecture]
    assert launch.programs * launch.warps * 32 * built.registers <= REGISTERS
    return built


@pytest.mark.parametrize(("operation", "kernel", "architecture", "width"), list(cases()))
def test_tensor_cores_no_spills_and_all_programs_fit(operation, kernel, architecture, width):
    check(operation, kernel, architecture, width)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", TENSOR_CORE)
@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize(("operation", "kernel"), [(o, k) for o, ks in KERNELS.items() for k in ks])
def test_narrow_heads_in_half_precision(operation, kernel, width, architecture):
    check(operation, kernel, architecture, width, dtype="fp16")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", TENSOR_CORE)
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("kernel", KERNELS["gdpa"])
@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "gelu"])
def test_every_activation(activation, kernel, width, architecture):
    check("gdpa", kernel, architecture, width, activation=activation, heads=(1, 3, 4))


@pytest.mark.parametrize("architecture", [80, 90])
def test_loads_of_the_inner_loop_run_ahead(architecture):
    built = check("jagged_attention", "forward", architecture, 64)
    assert built.ttgir.count("ttg.async_copy_global_to_local") >= 4
