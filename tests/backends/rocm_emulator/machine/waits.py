"""What is under way: accesses that were issued, and the counters by which a program waits for them.

The model's accesses are done at once. What a device may still have under way is kept beside, so that a program that
uses a register too early is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.backends.rocm_emulator.machine.faults import WaitFault

Registers = frozenset[int]
NONE: Registers = frozenset()


@dataclass
class Waits:
    """Of waves that run in step.

    Attributes:
        vector: of accesses to memory by vector instructions, which finish in order, the registers each one fills.
        scalar: of those to local memory, in order too, and of scalar loads, in none: with each whether it is such.
        pending: all those registers.
    """

    vector: list[Registers] = field(default_factory=list)
    scalar: list[tuple[Registers, bool]] = field(default_factory=list)
    pending: Registers = NONE

    def issue_vector(self, fills: Registers) -> None:
        """A load, or a store, which fills nothing."""
        self._require_free(fills, [registers for registers, _ in self.scalar])
        self.vector.append(fills)
        self.pending |= fills

    def issue_local(self, fills: Registers, unordered: bool = False) -> None:
        """An access to local memory, or a scalar load."""
        held = [registers for registers, other in self.scalar if other or unordered]
        self._require_free(fills, [*self.vector, *held])
        self.scalar.append((fills, unordered))
        self.pending |= fills

    @staticmethod
    def _require_free(fills: Registers, held: list[Registers]) -> None:
        """Two loads into one register are in order where both are of the same kind, and otherwise are not."""
        if any(not fills.isdisjoint(registers) for registers in held):
            raise WaitFault("it fills a register that a load of another kind may still fill")

    def wait(self, vector: int, scalar: int) -> None:
        """Until no more than so many are under way."""
        self.vector = self.vector[len(self.vector) - vector :] if vector < len(self.vector) else self.vector
        if vector == 0:
            self.vector = []
        if scalar == 0:
            self.scalar = []
        elif scalar < len(self.scalar) and not any(unordered for _, unordered in self.scalar):
            self.scalar = self.scalar[len(self.scalar) - scalar :]
        self._sum()

    def joined(self, other: Waits) -> Waits:
        """Of waves that come together: whatever one of them may have under way, counted from the youngest."""
        made = Waits()
        for place in range(max(len(self.vector), len(other.vector)), 0, -1):
            made.vector.append(_at(self.vector, place, NONE) | _at(other.vector, place, NONE))
        for place in range(max(len(self.scalar), len(other.scalar)), 0, -1):
            mine, its = _at(self.scalar, place, (NONE, False)), _at(other.scalar, place, (NONE, False))
            made.scalar.append((mine[0] | its[0], mine[1] or its[1]))
        made._sum()
        return made

    def copy(self) -> Waits:
        """For waves that part."""
        return Waits(list(self.vector), list(self.scalar), self.pending)

    def _sum(self) -> None:
        self.pending = NONE.union(*self.vector, *(fills for fills, _ in self.scalar))


def _at(queue: list[Any], from_the_end: int, missing: Any) -> Any:
    return queue[-from_the_end] if from_the_end <= len(queue) else missing
