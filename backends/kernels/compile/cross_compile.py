# mypy: disable-error-code="import-not-found, import-untyped"
"""Compile our kernels for an architecture that need not be here: Triton holds the compilers of NVIDIA and AMD both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.backends.gpu.architecture import Architecture
from headrace.backends.kernels.compile.launches import Launch
from headrace.backends.kernels.compile.machine_code import MachineCode, read
from headrace.errors import TargetError

TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.int64: "i64",
}
OPTIONS = ("num_warps", "num_stages")
# The default of every Triton up to 3.9, whose warning that 3.10 changes it says nothing to a user.
FUSION = {"enable_fp_fusion": True}
# What Triton learns of arguments when it launches: addresses and numbers that 16 divides make wide loads.
DIVISOR = 16


def cross_compile(launch: Launch, architecture: Architecture) -> MachineCode:
    """The machine code of one specialisation.

    Raises:
        TargetError: Triton compiles it for no such architecture.
    """
    return read(compiled(launch, architecture), architecture)


def compiled(launch: Launch, architecture: Architecture) -> Any:
    """One specialisation as Triton's `CompiledKernel`, whose `asm` holds its machine code and each stage before it.

    Raises:
        TargetError: Triton compiles it for no such architecture.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    number: Any = int(architecture.name[2:]) if architecture.vendor == "cuda" else architecture.name
    target = GPUTarget(architecture.vendor, number, architecture.wave)
    options = {name: launch.constants[name] for name in OPTIONS if name in launch.constants} | FUSION
    try:
        return triton.compile(source(launch), target=target, options=options)
    except Exception as error:  # the compilers behind Triton fail in many ways
        first = str(error).strip().partition("\n")[0] or repr(error)
        raise TargetError(
            f"Triton {triton.__version__} does not compile {launch.name} for {architecture}: {first}"
        ) from error


def source(launch: Launch) -> Any:
    """The kernel with the types of its arguments, as Triton specialises them at a launch."""
    from triton.compiler import ASTSource

    constants = {name: value for name, value in launch.constants.items() if name not in OPTIONS}
    signature, attributes = dict.fromkeys(constants, "constexpr"), {}
    names = launch.kernel.arg_names
    for name, value in zip(names, launch.arguments, strict=False):
        known = isinstance(value, int)
        if known and value == 1:
            signature[name], constants[name] = "constexpr", 1
        elif isinstance(value, Tensor):
            signature[name] = f"*{TYPES[value.dtype]}"
        elif hasattr(value, "block_shape"):
            signature[name] = f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}>"
        else:
            signature[name] = "i32"
        if isinstance(value, Tensor) or (known and value % DIVISOR == 0):
            attributes[(names.index(name),)] = [["tt.divisibility", DIVISOR]]
    ordered = {name: signature[name] for name in names}
    return ASTSource(fn=launch.kernel, signature=ordered, constexprs=constants, attrs=attributes)
