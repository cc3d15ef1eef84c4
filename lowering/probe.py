"""Prove every type and window by what the eager model does (contract A3)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.errors import AttentionTypeError
from headrace.ir import AttentionSpec, AttentionType, MaskKind, Program, RecurrentSpec, Verdict, Window

SHORTEST, LONGEST = 12, 640
# Routed experts regroup tokens, which changes the order of sums; anything else is bit-equal.
ROUTED_TOLERANCE = 1e-6
PROBED = frozenset({AttentionType.DECODER, AttentionType.ENCODER_ONLY})
Reached = list[dict[int, frozenset[int]] | None]


class Eager(Protocol):
    """The original module's behaviour, as the frontend measures it: unpadded, eager, in float64."""

    def stack_change(self, length: int) -> float:
        """Relative change of the earlier rows when the last token changes."""
        ...

    def reach(self, length: int, keys: tuple[int, ...]) -> Reached:
        """For each attention and key, the other rows that the key reaches."""
        ...

    def shrunk(self, call_order: int, window: Window) -> AbstractContextManager[list[tuple[MaskKind, Window]] | None]:
        """The same architecture with a small window, and what its masks declare then."""
        ...


@dataclass(frozen=True)
class Probe:
    """Every spec carries a verdict: the model was seen to behave as the annotation says, or is marked unprobed."""

    eager: Eager
    name: str = "probe"

    def __call__(self, program: Program) -> Program:
        """Measure, compare, and refuse the first disagreement."""
        length = probe_length(program)
        # The two sides of an encoder-decoder have lengths of their own, which one perturbation can't tell apart.
        if length < 2 or any(spec.type not in PROBED for spec in program.attention):
            return program.with_(
                attention=tuple(replace(spec, verdict=Verdict.UNPROBED) for spec in program.attention),
                recurrent=tuple(replace(spec, verdict=Verdict.UNPROBED) for spec in program.recurrent),
            )
        if not program.attention and not program.recurrent:
            return program
        recurrent = self._stack(program, min(length, SHORTEST))
        seen = self.eager.reach(length, probe_keys(length)) if program.attention else []
        specs = tuple(self.judged(spec, seen, length) for spec in program.attention)
        return program.with_(attention=specs, recurrent=recurrent)

    def _stack(self, program: Program, length: int) -> tuple[RecurrentSpec, ...]:
        """The stack as a whole: a new last token must not, or must, change the rows before it.

        Returns:
            The recurrent specs with what that says of them: the stack looks back only if each of its parts does.
        """
        changed = self.eager.stack_change(length)
        allowed = ROUTED_TOLERANCE if program.routed_experts else 0.0
        both_ways = [spec.node for spec in program.attention if spec.type is not AttentionType.DECODER]
        if not both_ways and changed > allowed:
            if program.attention or any(spec.causal for spec in program.recurrent):
                raise AttentionTypeError(_looks_ahead(program, changed))
            return tuple(replace(spec, causal=False, verdict=Verdict.PROVEN) for spec in program.recurrent)
        if both_ways and changed <= allowed:
            raise AttentionTypeError(
                f"{both_ways[0]} is declared ENCODER_ONLY, but a changed last token was seen to leave every row before "
                "it as it was. The model behaves causally."
            )
        if both_ways:
            return tuple(replace(spec, verdict=Verdict.UNPROBED) for spec in program.recurrent)
        return tuple(replace(spec, causal=True, verdict=Verdict.PROVEN) for spec in program.recurrent)

    def judged(self, spec: AttentionSpec, seen: Reached, length: int) -> AttentionSpec:
        """The spec with its verdict, by what was seen on a sequence of that length; a disagreement is an error."""
        if spec.call_order >= len(seen) or (reached := seen[spec.call_order]) is None or spec.latent:
            return replace(spec, verdict=Verdict.UNPROBED)
        _compare(spec, spec, reached, length)
        if max(spec.window) + 2 <= length - 1 - length // 3 or not spec.window.bounded:
            return replace(spec, verdict=Verdict.PROVEN)
        return replace(spec, verdict=self._shrunk(spec))

    def _shrunk(self, spec: AttentionSpec) -> Verdict:
        with self.eager.shrunk(spec.call_order, spec.window) as declared:
            if declared is None:
                return Verdict.UNPROBED
            kind, window = declared[spec.call_order]
            length = max(SHORTEST, 3 * max(window) + 6)
            reached = self.eager.reach(length, probe_keys(length))[spec.call_order]
            if kind is not spec.mask or reached is None:
                return Verdict.UNPROBED
            _compare(spec, replace(spec, window=window), reached, length)
        return Verdict.PROVEN_SHRUNK


def _looks_ahead(program: Program, changed: float) -> str:
    """Why a stack that was declared causal is refused."""
    declared = [f"{spec.node} and every other attention is declared DECODER" for spec in program.attention[:1]]
    causal = [f"{spec.node} ({spec.provenance})" for spec in program.recurrent if spec.causal]
    declared += [f"{name} and every other recurrence is declared causal" for name in causal[:1]]
    return (
        f"{' and '.join(declared)}, but a changed last token was seen to change the rows before it by {changed:.1e} "
        "(relative). The model is not causal, or something beside them looks ahead, such as a sequence that is "
        "reversed before a recurrence reads it."
    )


def probe_length(program: Program) -> int:
    """Long enough that every window short enough to be measured ends inside the sequence."""
    widths = [max(spec.window) for spec in program.attention if spec.window.bounded]
    wanted = max([SHORTEST, *(3 * width + 6 for width in widths if 3 * width + 6 <= LONGEST)])
    return min(wanted, program.limits.length or wanted)


def probe_keys(length: int) -> tuple[int, ...]:
    """The ends, and a third of the way: from there a window's end shows on the right, from the end on the left."""
    return tuple(sorted({0, length // 3, length - 1}))


def _compare(spec: AttentionSpec, declared: AttentionSpec, reached: dict[int, frozenset[int]], length: int) -> None:
    for key, rows in reached.items():
        expected = frozenset(row for row in range(length) if row != key and declared.sees(row, key))
        if rows != expected:
            raise AttentionTypeError(
                f"{spec.node} ({spec.provenance}) is declared {spec.type} ({declared.mask}, window {declared.window}): "
                f"a key at position {key} of {length} should reach {span(expected, key)}, but was seen to reach "
                f"{span(rows, key)}. The annotation or the model's mask is wrong; the model is refused."
            )


def span(rows: frozenset[int], key: int) -> str:
    """A set of row numbers as ranges, with the key's own row, which it always reaches."""
    numbers, ranges = sorted(rows | {key}), list[list[int]]()
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return "rows " + ", ".join(f"{a}" if a == b else f"{a}..{b}" for a, b in ranges)
