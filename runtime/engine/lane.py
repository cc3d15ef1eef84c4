"""What runs one output of a program."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headrace.backends.interface import Executable
from headrace.ir import PER_TOKEN_OUTPUTS, Layout, Program
from headrace.runtime.engine import array_batch, packed_batch, padded_batch
from headrace.runtime.state.model_state import ModelState

BATCHERS: dict[Layout, Any] = {Layout.PADDED: padded_batch, Layout.PACKED: packed_batch}


@dataclass(frozen=True)
class Lane:
    """What runs one output of the program: the program of that output, its executable, its state."""

    program: Program
    executable: Executable
    state: ModelState

    @cached_property
    def batcher(self) -> Any:
        """What plans the program's steps, makes their inputs and reads their outputs."""
        return array_batch if self.program.signature.arrays else BATCHERS[self.program.form.layout]

    @cached_property
    def per_token(self) -> bool:
        """Whether an answer has a row a token."""
        return self.program.signature.outputs[0].kind in PER_TOKEN_OUTPUTS
