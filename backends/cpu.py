"""The CPU target: Inductor's C++ code and oneDNN products, compiled once per program."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from headrace.backends.inductor.compiled import Compiled, load_package
from headrace.backends.inductor.tensors import OnTensors
from headrace.errors import TargetError
from headrace.ir import Layout, Program
from headrace.utils.scratch import require_temporary

COMPILERS = ("g++", "clang++", "c++")


class Cpu(OnTensors):
    """Runs on any x86-64 or Arm CPU with a C++ compiler beside it."""

    name = "cpu"
    suffix = ".pt2"
    dtypes = ("float32", "bfloat16", "float16")
    layout = Layout.PACKED

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

    def compile(self, program: Program) -> Compiled:
        """Compile ahead of time."""
        from headrace.backends.inductor.compile import compile_program  # and all of torch's compiler

        return compile_program(program)

    def load(self, path: Path, program: Program) -> Compiled:
        """Load a saved package; needs no compiler."""
        return load_package(path, program)
