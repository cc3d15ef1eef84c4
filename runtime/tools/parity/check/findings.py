"""What a check found: for each precision and node how far the result lies from float64, and what that allows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ParityError
from headrace.ir import Layout
from headrace.ir.serialize import decode, encode
from headrace.runtime.tools.parity.environment import Environment

FORMAT = 1


@dataclass(frozen=True)
class Reading:
    """One node in one precision.

    Attributes:
        node: what it is called for people, e.g. "attention 3".
        says: what it computes, as the IR has it.
        error: rmse against float64; None where the result holds a NaN or an infinity.
        shares: for each request, its own rmse in multiples of the limit; None where that is no number.
    """

    node: str
    error: float | None
    limit: float
    floor: float
    shares: tuple[float | None, ...]
    says: str = ""

    @property
    def passed(self) -> bool:
        """Whether the result is close enough, and all of it numbers."""
        return self.error is not None and self.error <= self.limit

    @property
    def share(self) -> float:
        """The error in multiples of the limit; infinite where it is no number."""
        if self.error is None:
            return float("inf")
        return self.error / self.limit if self.limit else float(self.error > 0) * float("inf")


@dataclass(frozen=True)
class Culprit:
    """The first node of the graph that parts between the last good reading and the first bad one.

    Attributes:
        node: its name in the program; "" where none of the nodes between parts once each returns its values.
        operator: what it computes.
        place: the module of the model that it belongs to.
        between: the readings that it lies between.
        times: its error in multiples of its limit; 0 where that is no number.
        in_float64: whether this machine's own float64, before anything is compiled, parts there too: the model's code
            is another than the one that was recorded.
    """

    node: str
    operator: str
    place: str
    between: tuple[str, str]
    times: float = 0.0
    in_float64: bool = False


@dataclass(frozen=True)
class Run:
    """One precision: every reading in the order of the program, the answer last."""

    dtype: str
    layout: Layout
    readings: tuple[Reading, ...]
    culprit: Culprit | None = None

    @property
    def passed(self) -> bool:
        """Whether every node is close enough."""
        return all(reading.passed for reading in self.readings)

    @property
    def first(self) -> Reading | None:
        """The first node that parts from float64, if one does."""
        return next((reading for reading in self.readings if not reading.passed), None)

    @property
    def worst(self) -> Reading:
        """The node farthest past, or nearest to, its limit."""
        return max(self.readings, key=lambda reading: reading.share)


@dataclass(frozen=True)
class Result:
    """One bundle on one target.

    Attributes:
        bundle: the digest of the bundle's manifest.
        lengths: tokens of each request.
        left_out: precisions of the bundle that were not run here, and why.
        notes: facts of the program that differ from what was recorded.
    """

    bundle: str
    model: str
    task: str
    target: str
    lengths: tuple[int, ...]
    environment: Environment
    runs: tuple[Run, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def passed(self) -> bool:
        """Whether every precision that ran passes."""
        return all(run.passed for run in self.runs)

    def as_json(self) -> str:
        """As a file holds it; `read_result` reads it back."""
        return json.dumps(encode(self), indent=1, allow_nan=False) + "\n"

    def write(self, path: Path) -> None:
        """To a file."""
        path.write_text(self.as_json(), encoding="utf-8")


def read_result(path: Path) -> Result:
    """What `Result.write` wrote.

    Raises:
        ParityError: the file is none of that, or newer than this version.
    """
    try:
        held: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ParityError(f"{path} cannot be read: {error}. Give what `headrace parity check --json` wrote.") from error
    found = held.get("format") if isinstance(held, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise ParityError(f"{path} is of format {found}; this version reads {FORMAT}. Upgrade headrace.")
    try:
        result: Result = decode(Result, held)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ParityError(f"{path} is no result of `headrace parity check --json`: {error}") from error
    return result
