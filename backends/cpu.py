"""The CPU target: Inductor's C++ code and oneDNN products, compiled once per program."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from headrace.backends.inductor.compiled import Compiled, load_package
from headrace.backends.inductor.tensors import OnTensors
from headrace.backends.interface import Choice
from headrace.compat.torch_cpu import multiplies_bfloat16
from headrace.errors import TargetError, warn
from headrace.ir import Layout, Program
from headrace.utils.scratch import require_temporary

COMPILERS = ("g++", "clang++", "c++")


class Cpu(OnTensors):
    """Runs on any x86-64 or Arm CPU with a C++ compiler beside it."""

    name = "cpu"
    suffix = ".pt2"
    dtypes = ("float32", "bfloat16", "float16")
    layout = Layout.PACKED
    schemes = ("int8",)

    def layout_of(self, program: Program) -> Layout:
        """Packed, but where there are recurrences: those of several sequences are made in one go, of like length."""
        return Layout.PADDED if program.nodes.recurrent else self.layout

    @property
    def step_tokens(self) -> int:
        """Few enough that a step's activations stay in cache, enough that every core has rows of its own."""
        return max(512, 256 * torch.get_num_threads())

    def check(self, compiles: bool) -> None:
        """Compiled code is unpacked to be run. To compile, a C++ compiler must be on the path, or named by CXX."""
        require_temporary()
        if not compiles:
            return
        named = os.environ.get("CXX")
        if not any(shutil.which(name) for name in ((named,) if named else COMPILERS)):
            what = f"CXX names {named}, which is not on the path" if named else "no C++ compiler is on the path"
            raise TargetError(
                f"The target cpu compiles C++ code, but {what}. Install one (apt-get install g++, dnf install gcc-c++, "
                'xcode-select --install), or use target="reference", which is slow and needs none.'
            )

    def require_scheme(self, scheme: str, dtype: str) -> None:
        """Integers take the registers of AVX2 or AVX512, and a program in float32.

        Raises:
            TargetError: says which is missing.
        """
        from headrace.backends.inductor.host.dense import tiles_of  # and torch's compiler, which who loads never needs

        if dtype != "float32":
            raise TargetError(
                f'The target cpu runs quantize="{scheme}" within float32, not {dtype}. Add dtype="float32", or leave '
                "quantize out."
            )
        if tiles_of(torch.int8) is None:
            raise TargetError(
                f'quantize="{scheme}" needs AVX2 or AVX512, and torch runs {torch.backends.cpu.get_cpu_capability()} '
                "here. Leave quantize out."
            )

    def plan(self, program: Program) -> tuple[Choice, ...]:
        """What multiplies, what attends and how the rows lie, for this processor."""
        return tuple(_choices(program))

    def compile(self, program: Program) -> Compiled:
        """Compile ahead of time; a warning says where bfloat16 is slower than float32 on this processor.

        Raises:
            TargetError: it is quantised, and of several steps.
        """
        from headrace.backends.inductor.compile import compile_program  # and all of torch's compiler
        from headrace.backends.inductor.host.dense import tiles_of

        if (quantized := program.form.quantized) is not None and program.form.layout is Layout.CACHED:
            raise TargetError(
                f'The target cpu runs quantize="{quantized.scheme}" where texts run whole, and this program keeps keys '
                "and values between steps. Leave quantize out."
            )
        if program.dtype == "bfloat16" and not multiplies_bfloat16():
            widened = program.form.layout is Layout.PACKED and tiles_of(torch.bfloat16) is not None
            how = "as fast as float32 over many texts, and slower for a short one" if widened else "slower than float32"
            warn(
                f"This processor has no products of bfloat16 (AVX512-BF16 or AMX), so that bfloat16 is {how} here. "
                'Pass dtype="float32" unless memory is what is short.'
            )
        return compile_program(program)

    def load(self, path: Path, program: Program) -> Compiled:
        """Load a saved package; needs no compiler."""
        return load_package(path, program)


def _choices(program: Program) -> Iterator[Choice]:
    capability, packed = torch.backends.cpu.get_cpu_capability(), program.form.layout is Layout.PACKED
    if packed:
        yield Choice("rows", "packed", "no padding is computed")
    elif program.nodes.recurrent:
        yield Choice("rows", "padded", "recurrences of several sequences are made in one go, of like length")
    if program.nodes.attention and packed:
        yield from _attention(program)
    elif program.nodes.attention and program.form.layout is Layout.PADDED:
        yield Choice("attention", "scaled_dot_product_attention", "its rows are padded")
    yield _products(program, capability)
    if (quantized := program.form.quantized) is not None:
        yield Choice(
            "products in 8 bits",
            f"{quantized.layers} of {quantized.among} linear layers, in C++ of Headrace",
            f"{quantized.scheme} was asked for: a scale for each row, found as it comes, and for each output",
        )
    if program.dtype == "float32" and multiplies_bfloat16():
        why = 'the model is held so, or it was asked for; dtype="bfloat16" multiplies twice as fast on this processor'
        yield Choice("dtype", "float32", why)
    elif program.dtype == "float32":
        yield Choice("dtype", "float32", f"{capability} here has no products of bfloat16 (AVX512-BF16, AMX)")


def _products(program: Program, capability: str) -> Choice:
    """What multiplies the rows of linear layers."""
    from headrace.backends.inductor.host.dense import OWN_COLUMNS, tiles_of

    dtype = getattr(torch, program.dtype)
    tiles = None if program.form.layout is Layout.CACHED else tiles_of(dtype)
    if tiles is None:
        return Choice("products", "torch's", f"{capability} multiplies no tiles of {program.dtype}")
    whose = "Headrace's" if tiles.columns == OWN_COLUMNS else "torch's"
    how = f"{whose}, of tiles of packed weights, with norms, residuals and activations in the same pass"
    widened = dtype is torch.bfloat16 and tiles.beside == 1
    what = "float32, to which bfloat16 is widened as it is read" if widened else program.dtype
    return Choice("products", how, f"{capability} multiplies tiles of {what}")


def _attention(program: Program) -> Iterator[Choice]:
    """What attends over packed rows, by what the compiled graph will call."""
    from headrace.backends.inductor.host.varlen import attentions

    reasons = [why for _, why in attentions(program.graph.graph)]
    left = Counter(filter(None, reasons))
    taken, among = len(reasons) - left.total(), len(reasons)
    if taken:
        some = f", for {taken} of {among}" if left else ""
        yield Choice("attention", f"each sequence alone, in C++ of Headrace{some}", "its rows are packed")
    for why, count in left.items():
        yield Choice("attention", f"each sequence alone, operator by operator, for {count} of {among}", why)
