"""What a pass is, and how a list of them runs: each in turn, the verifier after each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace import debug
from headrace.errors import VerifyError
from headrace.ir import Program
from headrace.ir.part import PartError
from headrace.verify.verifier import verify


class Pass(Protocol):
    """A function from program to program. Its options are its dataclass fields; its docstring says what then holds."""

    @property
    def name(self) -> str:
        """One word, for messages."""
        ...

    def __call__(self, program: Program) -> Program:
        """The program with what the pass establishes."""
        ...


def run_passes(program: Program, passes: Sequence[Pass]) -> Program:
    """Run the passes in order.

    Raises:
        VerifyError: a pass left a program that breaks a rule of its stage, or made a part that no program has.
        HeadraceError: whatever a pass refuses.
    """
    for step in passes:
        with debug.stage(step.name):
            program = _made(step, program)
        verify(program, step.name)
        debug.say(debug.PROGRAMS, f"after {step.name}:\n{program.as_text()}")
    return program


def _made(step: Pass, program: Program) -> Program:
    try:
        return step(program)
    except PartError as error:
        raise VerifyError(f"In the pass {step.name} the program breaks a rule: {error}") from error
