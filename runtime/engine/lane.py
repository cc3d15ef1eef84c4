"""What runs one output of a program, or several of one pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.backends.interface import Executable
from headrace.ir import PER_TOKEN_OUTPUTS, Layout, OutputKind, Program
from headrace.runtime.engine import array_batch, packed_batch, padded_batch
from headrace.runtime.engine.padded_batch import Rows, Step
from headrace.runtime.state.model_state import ModelState

JOINT = "+"
BATCHERS: dict[Layout, Any] = {Layout.PADDED: padded_batch, Layout.PACKED: packed_batch}


@dataclass(frozen=True)
class Lane:
    """What runs some outputs of the program in one pass: the program of these, its executable, its state."""

    program: Program
    executable: Executable
    state: ModelState

    @cached_property
    def batcher(self) -> Any:
        """What plans the program's steps, makes their inputs and reads their outputs."""
        return array_batch if self.program.signature.arrays else BATCHERS[self.program.form.layout]

    @cached_property
    def kinds(self) -> tuple[OutputKind, ...]:
        """What its outputs hold, in their order."""
        return tuple(output.kind for output in self.program.signature.outputs)

    def outputs(self, made: Any, wanted: Sequence[OutputKind]) -> list[Any]:
        """Of what the executable returned the outputs of those kinds."""
        outputs = made if len(self.kinds) > 1 else (made,)
        return [outputs[self.kinds.index(kind)] for kind in wanted]

    def rows(self, step: Step, lengths: NDArray[np.int64], output: Any, kind: OutputKind) -> Rows:
        """The answers to each request of a step, of an output of that kind."""
        rows: Rows = self.batcher.rows(step, lengths, output, kind in PER_TOKEN_OUTPUTS)
        return rows


def key_of(kinds: Iterable[OutputKind]) -> str:
    """What a lane of those outputs is kept by."""
    return JOINT.join(kinds)


def kinds_of(key: str) -> tuple[OutputKind, ...]:
    """The outputs of a lane, by what it is kept by."""
    return tuple(OutputKind(kind) for kind in key.split(JOINT))
