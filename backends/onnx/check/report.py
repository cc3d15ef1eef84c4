"""What was checked of a model file, against which bounds: saved beside it, and read where there is no torch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.backends.onnx.check.cases import Case, Distance
from headrace.errors import VerifyError


@dataclass(frozen=True)
class Bound:
    """How far answers may lie from the program's in float32: relative to the largest value, and in direction.

    Attributes:
        perplexity: of text that the model wrote, in multiples of the program's own.
    """

    worst: float
    cosine: float
    perplexity: float = 1.01

    def holds(self, found: Distance) -> bool:
        """Whether the answers are near enough."""
        return found.worst <= self.worst and found.cosine >= self.cosine

    def words(self, found: Distance) -> str:
        """What was found beside what is allowed."""
        return (
            f"differs by {found.worst:.1e} ({self.worst:g} allowed), cosine {found.cosine:.6f} (at least "
            f"{self.cosine:g})"
        )


# Contract D1 for float32. A half has 11 bits and a model some tens of roundings in turn; int8 and int4 are held to
# their direction, and to how well they foretell what the model writes.
BOUNDS = {
    "float32": Bound(1e-4, 1 - 1e-5),
    "float16": Bound(5e-2, 0.999),
    "int8": Bound(1.0, 0.97, 1.25),
    "int4": Bound(1.0, 0.9, 1.25),
}


@dataclass(frozen=True)
class Check:
    """One thing that was held against something, and what came out."""

    name: str
    passed: bool
    found: str


@dataclass(frozen=True)
class Report:
    """What was checked of a model file, and the cases that any machine can run again."""

    profile: str
    dtype: str
    bound: Bound
    checks: tuple[Check, ...]
    cases: tuple[Case, ...]

    def require(self, what: str) -> None:
        """Refuse a file that failed.

        Raises:
            VerifyError: names every check that failed.
        """
        if failed := [f"{check.name}: {check.found}" for check in self.checks if not check.passed]:
            raise VerifyError(f"{what} failed {len(failed)} of {len(self.checks)} checks: {'; '.join(failed)}")
