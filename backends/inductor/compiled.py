"""A compiled program as an executable, made or loaded. Nothing here imports a compiler: who loads needs none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.backends.inductor import recurrent  # noqa: F401 - code that is loaded calls its operators
from headrace.backends.inductor.runner import Runner, read_package
from headrace.ir import HeldWeights, Layout, Program, Role
from headrace.ops import cached, stateful  # noqa: F401 - as those
from headrace.utils.forks import on_living_threads
from headrace.utils.madvise import trim_heap
from headrace.utils.scratch import room_told

# What the files on the way to compiled code take, without any weights.
CODE_BYTES = 1 << 26
# After a step over caches of so many tokens the heap is trimmed, which takes milliseconds: the pieces of a long text
# would take half as much memory again as one of them, each what the last left in the heap and what did not fit there.
TRIMMED = 64


class Compiled:
    """An ahead-of-time compiled program.

    Attributes:
        weights: those that it holds in formats of their own; of one that was loaded its manifest says so.
    """

    def __init__(
        self, runner: Runner, program: Program, write: Callable[[Path], object], weights: tuple[HeldWeights, ...] = ()
    ) -> None:
        """Take what runs the program's inputs in its order, and what writes it to a package."""
        self.calls, self.weights = 0, weights
        self._run, self._write = runner, write
        self._inputs, self._alone = program.signature.input_names, len(program.signature.outputs) == 1
        self._steps = program.signature.name(Role.IDS) if program.form.layout is Layout.CACHED else None

    @on_living_threads
    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, Tensor]) -> Any:
        """Run the compiled code: its output, or a tuple of several."""
        self.calls += 1
        outputs = self._run([inputs[name] for name in self._inputs])
        if self._steps is not None and inputs[self._steps].numel() >= TRIMMED:
            trim_heap()
        return outputs[0] if self._alone else tuple(outputs)

    def save(self, path: Path) -> None:
        """Write a package."""
        self._write(path)


def load_package(package: Path, program: Program) -> Compiled:
    """Load what a compiled program's `save` wrote. Its weights are read where they lie in the file."""
    with room_told("A copy of the compiled code, which loading takes,", CODE_BYTES):
        runner = read_package(package)
    return Compiled(runner, program, partial(shutil.copyfile, package))
