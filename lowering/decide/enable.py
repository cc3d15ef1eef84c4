"""Decide how a program prefills and which tasks it supports (contract C)."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ir import Prefill, Program, State
from headrace.tasks import decide

# These see a whole sequence in one step whatever is asked; the others prefill in chunks unless told otherwise.
WHOLE = frozenset({State.ENCODER_ONLY, State.ENCODER_DECODER, State.CUSTOM})


@dataclass(frozen=True)
class EnableTasks:
    """The program has its prefill and, for every task that it offers, a decision with a reason."""

    prefill: Prefill | None = None
    name: str = "enable"

    def __call__(self, program: Program) -> Program:
        """Apply the gate of rule C2, then the one function that decides."""
        assert program.decision.route is not None, "route comes before enable"
        gate = Prefill.SINGLE_PASS if program.decision.route.state in WHOLE else (self.prefill or Prefill.CHUNKED)
        gated = program.with_(prefill=gate)
        return gated.with_(tasks=decide(gated))
