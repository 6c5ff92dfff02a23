"""Compilation of the Triton kernels for devices that are not here, and what came of it.

`python -m tests.ops.triton_offline` prints the table of `docs/performance-gpu.md`.
"""

import contextlib
import importlib
import io
import re
from dataclasses import dataclass

from opengem.ops.triton_target import Launch

KERNELS = {
    "jagged_attention": ("forward", "backward_queries", "backward_keys"),
    "gdpa": ("forward", "backward_queries", "backward_keys"),
    "block_attention": ("forward", "backward"),
}
"""Operation -> its kernels."""

TENSOR_CORE = {80: r"mma\.sync\.aligned\.m16n8k16", 90: r"wgmma\.mma_async", 100: r"tcgen05\.mma"}
"""The instruction that each generation multiplies matrices with, as PTX spells it."""

SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Shared memory of a multiprocessor that programs may use, in bytes."""

REGISTERS = 65536
"""Registers of a multiprocessor."""

_TYPES = {
    "entries": "*i32",
    "count": "*i32",
    "pieces": "*i32",
    "log_sum_ptr": "*fp32",
    "delta_ptr": "*fp32",
    "rotation_ptr": "*fp32",
    "scale": "fp32",
    "factor": "fp32",
    "sign": "fp32",
}


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of a kernel: spilled bytes of a thread, shared bytes of a program, its assembly."""

    ptx: str
    ttgir: str
    spilled: int
    registers: int
    stack: int
    shared: int


def compiled(
    operation: str,
    kernel: str,
    architecture: int,
    width: int,
    dtype: str = "bf16",
    activation: str = "gelu",
    heads: tuple[int, ...] = (0, 1),
) -> tuple[Launch, Compiled]:
    """Compile a kernel with the launch and constants that its operation would give it there."""
    adapter = importlib.import_module(f"opengem.ops.{operation}.triton")
    kernels = importlib.import_module(f"opengem.ops.{operation}.triton_kernels")
    generation = architecture // 10
    if operation == "block_attention":
        launch = adapter.launch_of(kernel, generation, width, 64)
        constants = {"ROTATED": True, "N": launch.own, "D": width}
    else:
        launch = adapter.launch_of(kernel, generation, width)
        constants = {"OWN": launch.own, "OTHER": launch.other, "D": width}
    if operation == "gdpa":
        constants |= {"ACTIVATION": activation, "HEADS": heads}
    function = getattr(kernels, kernel)
    return launch, _built(function, constants, architecture, launch.warps, launch.stages, dtype)


def _built(kernel, constants: dict, architecture: int, warps: int, stages: int, dtype: str) -> Compiled:
    """Compile `kernel` as a launch with aligned operands would, its pointers to values being of `dtype`."""
    import triton
    from triton.backends.compiler import GPUTarget

    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        else:
            signature[name] = _TYPES.get(name, f"*{dtype}" if name.endswith("_ptr") else "i32")
    aligned = [
        i
        for i, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name.endswith(("_stride", "_head"))
    ]
    source = triton.compiler.ASTSource(
        fn=kernel,
        signature=signature,
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    target = GPUTarget("cuda", architecture, 32)
    log = io.StringIO()
    # the assembler's report is printed, not kept: a cached kernel would have none
    with triton.knobs.nvidia.scope(), triton.knobs.compilation.scope(), contextlib.redirect_stdout(log):
        triton.knobs.nvidia.dump_ptxas_log = True
        triton.knobs.compilation.always_compile = True
        built = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    report = log.getvalue()
    stack, stores, loads = (
        sum(int(n) for n in re.findall(rf"(\d+) bytes {what}", report))
        for what in ("stack frame", "spill stores", "spill loads")
    )
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", report)]
    if not registers:
        raise AssertionError(f"the assembler reported nothing: {report or 'an empty log'}")
    return Compiled(
        ptx=built.asm["ptx"],
        ttgir=built.asm["ttgir"],
        spilled=stores + loads,
        registers=max(registers),
        stack=stack,
        shared=built.metadata.shared,
    )


def table() -> str:
    """Return a line of Markdown for each kernel, width and architecture."""
    lines = [
        "| operation, kernel | K | device | tile, warps, stages | programs | registers | spilled | shared KiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for operation, kernels in KERNELS.items():
        for kernel in kernels:
            for width in (64, 128):
                for architecture in TENSOR_CORE:
                    launch, built = compiled(operation, kernel, architecture, width)
                    how = f"{launch.own} x {launch.other}, {launch.warps}, {launch.stages}"
                    lines.append(
                        f"| {operation}, {kernel} | {width} | sm_{architecture} | {how} | {launch.programs} "
                        f"| {built.registers} | {built.spilled} | {built.shared / 1024:.0f} |"
                    )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
