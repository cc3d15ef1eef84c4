"""What a backend is and what it makes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from headrace.ir import Program


class Executable(Protocol):
    """A program of one task, ready to run on any batch and sequence length."""

    calls: int
    """How often it ran: what ran is this executable, not the eager model."""

    graphs: int
    """How many compiled graphs it holds; constant after it was made."""

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The program's one output for inputs int64 [batch, sequence], by name."""
        ...

    def save(self, path: Path) -> None:
        """Write the executable to one file that `Backend.load` reads back."""
        ...


class Backend(Protocol):
    """One target: says what it needs, and turns programs into executables."""

    name: str
    suffix: str
    """The file suffix of a saved executable."""
    dtypes: tuple[str, ...]
    """The dtypes that it runs, the default first."""

    @property
    def step_tokens(self) -> int:
        """Padded tokens in one step, where the caller sets no budget."""
        ...

    def check(self, compiles: bool) -> None:
        """Raise a TargetError that names the remedy where the target cannot run, or compile, here."""
        ...

    def compile(self, program: Program) -> Executable:
        """Make the executable of a program whose stage is LOWERED."""
        ...

    def load(self, path: Path, program: Program) -> Executable:
        """Read back what `Executable.save` wrote."""
        ...
