"""Prove every type and window by what the eager model does (contract A3)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from headrace.errors import AttentionTypeError
from headrace.ir import AttentionSpec, AttentionType, MaskKind, Program, RecurrentSpec, Verdict, Window
from headrace.lowering.decide import encoder_decoder
from headrace.lowering.types.attention import borrowed_keys

SHORTEST, LONGEST = 12, 640
# Routed experts regroup tokens, which changes the order of sums; anything else is bit-equal.
ROUTED_TOLERANCE = 1e-6
# The same of the rows of one module that holds experts, in units of the last place of the largest value.
ROUTED_ROUNDING = 64.0
# For each attention, where in the model's code it was recovered from; None where the interface announced it.
Places = tuple[str | None, ...]
Reached = Sequence[dict[int, frozenset[int]] | None]
Orders = frozenset[int] | None


class Eager(encoder_decoder.Eager, Protocol):
    """The original module's behaviour, as the frontend measures it: unpadded, eager, in float64."""

    def reach(
        self, length: int, keys: tuple[int, ...], places: Places, rounding: float = 0.0, orders: Orders = None
    ) -> Reached:
        """For each attention and key, the other rows that the key reaches by more than rounding does.

        Args:
            orders: the attentions that are looked at, all of them where it is None.
        """
        ...

    def looks(self, places: Places) -> Sequence[Hashable]:
        """For each attention what its module's code goes by, but for weights: those that are equal run the same."""
        ...

    def weigh(self, length: int, keys: tuple[int, ...], places: Places) -> Reached:
        """For each attention and key, the other rows whose softmax gives the key any weight."""
        ...

    def reach_across(self, length: int, keys: tuple[int, ...], places: Places) -> Reached:
        """The same for the rows of a second sequence that an attention is given and that no target changes."""
        ...

    def shrunk(self, call_order: int, window: Window) -> AbstractContextManager[list[tuple[MaskKind, Window]] | None]:
        """The same architecture with a small window, and what its masks declare then."""
        ...


# The types of a decoder's attentions, whose queries are the target's.
DECODED = (AttentionType.DECODER, AttentionType.ENCODER_DECODER)


class Measured(NamedTuple):
    """What rows reach in each attention, in sequences of so many rows; `across` those of second sequences."""

    seen: Reached
    length: int
    across: Reached = ()


@dataclass(frozen=True)
class Probe:
    """Every spec carries a verdict: the model was seen to behave as the annotation says, or is marked unprobed."""

    eager: Eager
    name: str = "probe"

    def __call__(self, program: Program) -> Program:
        """Measure, compare, and refuse the first disagreement."""
        length = probe_length(program)
        if length < 2:
            return program.with_(
                attention=tuple(replace(spec, verdict=Verdict.UNPROBED) for spec in program.nodes.attention),
                recurrent=tuple(replace(spec, verdict=Verdict.UNPROBED) for spec in program.nodes.recurrent),
            )
        if not program.nodes.attention and not program.nodes.recurrent:
            return program
        # First, since the stack's run on as many rows is one of these.
        like = self._likes(program)
        seen = self.measured(program, like)
        if paired(program):
            encoder_decoder.require(
                encoder_decoder.findings(program, self.eager, min(length, SHORTEST), ROUTED_TOLERANCE)
            )
            recurrent = tuple(replace(spec, verdict=Verdict.UNPROBED) for spec in program.nodes.recurrent)
        else:
            recurrent = self._stack(program, min(length, SHORTEST))
        specs = list[AttentionSpec]()
        for spec, of in zip(program.nodes.attention, like, strict=True):
            own = of == spec.call_order
            specs.append(self.judged(program, spec, *seen[spec.type]) if own else _judged_alike(spec, specs[of]))
        return program.with_(attention=tuple(specs), recurrent=recurrent)

    def _likes(self, program: Program) -> list[int]:
        """For each attention the one that it is measured on: of those that are alike, the first, or itself if the last.

        What modules of one code do to rows does not hang on their weights, and it is their number that makes a probe
        long.
        """
        found = program.nodes.attention
        if len(found) <= 2 or paired(program):
            return list(range(len(found)))
        looks = self.eager.looks(places(program))
        kinds = [
            (replace(spec, node="", provenance="", mask_node=None, call_order=0), look)
            for spec, look in zip(found, looks, strict=True)
        ]
        last = {kind: order for order, kind in enumerate(kinds)}
        first = {kind: order for order, kind in reversed(list(enumerate(kinds)))}
        return [order if order == last[kind] else first[kind] for order, kind in enumerate(kinds)]

    def measured(self, program: Program, like: Sequence[int] | None = None) -> dict[AttentionType, Measured]:
        """What was seen of the attentions of each type, and on how many rows: a decoder's target may be shorter.

        Args:
            like: for each attention the one that it is measured on; None where each is itself.
        """
        length, where = probe_length(program), places(program)
        orders = None if like is None else frozenset(like)
        rounding = ROUTED_ROUNDING if program.evidence.routed_experts else 0.0

        def reach(rows: int) -> Reached:
            made = self.eager.reach(rows, probe_keys(rows), where, rounding, orders)
            seen = [made[of] for of in like] if made and like is not None else made
            blurred = _blurred(program, seen)
            if not blurred:
                return seen
            weights = self.eager.weigh(rows, probe_keys(rows), where)
            return [weights[order] if order in blurred else own for order, own in enumerate(seen)]

        own = reach(length) if program.nodes.attention else []
        if not paired(program):
            return dict.fromkeys(AttentionType, Measured(own, length))
        target = min(length, SHORTEST) if program.signature.arrays else length
        decoded = own if target == length else reach(target)
        across = self.eager.reach_across(target, probe_keys(target), where)
        of_target = Measured(decoded, target, across)
        return dict.fromkeys(AttentionType, Measured(own, length, across)) | dict.fromkeys(DECODED, of_target)

    def _stack(self, program: Program, length: int) -> tuple[RecurrentSpec, ...]:
        """The stack as a whole: a new last token must not, or must, change the rows before it.

        Returns:
            The recurrent specs with what that says of them: the stack looks back only if each of its parts does.
        """
        changed = self.eager.stack_change(length)
        allowed = ROUTED_TOLERANCE if program.evidence.routed_experts else 0.0
        both_ways = [spec.node for spec in program.nodes.attention if spec.type is not AttentionType.DECODER]
        if not both_ways and changed > allowed:
            if program.nodes.attention or any(spec.causal for spec in program.nodes.recurrent):
                raise AttentionTypeError(_looks_ahead(program, changed))
            return tuple(replace(spec, causal=False, verdict=Verdict.PROVEN) for spec in program.nodes.recurrent)
        if both_ways and changed <= allowed:
            raise AttentionTypeError(
                f"{both_ways[0]} is declared ENCODER_ONLY, but a changed last token was seen to leave every row before "
                "it as it was. The model behaves causally."
            )
        if both_ways:
            return tuple(replace(spec, verdict=Verdict.UNPROBED) for spec in program.nodes.recurrent)
        # One that says that it looks ahead stands behind the rows that were seen.
        return tuple(
            replace(spec, verdict=Verdict.UNPROBED)
            if spec.causal is False
            else replace(spec, causal=True, verdict=Verdict.PROVEN)
            for spec in program.nodes.recurrent
        )

    def judged(
        self, program: Program, spec: AttentionSpec, seen: Reached, length: int, across: Reached = ()
    ) -> AttentionSpec:
        """The spec with its verdict, by what was seen on sequences of that length; a disagreement is an error.

        Args:
            across: what was seen of second sequences, empty where nothing was looked for.
        """
        if spec.call_order >= len(seen) or (reached := seen[spec.call_order]) is None or spec.latent:
            return replace(spec, verdict=Verdict.UNPROBED)
        second = across[spec.call_order] if across else None
        if spec.type is AttentionType.ENCODER_DECODER:
            _compare_cross(spec, reached, second, length)
            return replace(spec, verdict=Verdict.PROVEN)
        if second is not None and any(rows - {key} for key, rows in second.items()):
            raise AttentionTypeError(
                f"{spec.node} ({spec.provenance}) is declared {spec.type}, but its keys were seen to come from another "
                "sequence than its queries, as those of ENCODER_DECODER do. The annotation is wrong; the model is "
                "refused."
            )
        _compare(spec, spec, reached, length)
        if max(spec.window) + 2 <= length - 1 - length // 3 or not spec.window.bounded:
            return replace(spec, verdict=Verdict.PROVEN)
        return replace(spec, verdict=self._shrunk(program, spec))

    def _shrunk(self, program: Program, spec: AttentionSpec) -> Verdict:
        where = places(program)
        if spec.recovered:
            return Verdict.UNPROBED  # no interface tells what a smaller window's mask would declare
        order = where[: spec.call_order].count(None)
        with self.eager.shrunk(order, spec.window) as declared:
            if declared is None:
                return Verdict.UNPROBED
            kind, window = declared[order]
            length = max(SHORTEST, 3 * max(window) + 6)
            orders = frozenset({spec.call_order})
            reached = self.eager.reach(length, probe_keys(length), where, orders=orders)[spec.call_order]
            if kind is not spec.mask or reached is None:
                return Verdict.UNPROBED
            _compare(spec, replace(spec, window=window), reached, length)
        return Verdict.PROVEN_SHRUNK


def _judged_alike(spec: AttentionSpec, like: AttentionSpec) -> AttentionSpec:
    """A spec by the verdict on one that is alike."""
    seen = like.verdict in (Verdict.PROVEN, Verdict.PROVEN_SHRUNK)
    return replace(spec, verdict=Verdict.PROVEN_ALIKE if seen else like.verdict)


def _blurred(program: Program, seen: Reached) -> frozenset[int]:
    """The attentions over their own sequence that a changed row tells nothing of, so that their weights have to.

    Their module computes several; or it convolves along the tokens too, so that the row reaches further than its key
    is seen; or the keys are those of an attention before, and no row is made into a key.
    """
    inside = [_path(spec) for spec in program.nodes.recurrent]
    borrowing = borrowed_keys(program.graph) if seen else frozenset()
    return frozenset(
        spec.call_order
        for spec in program.nodes.attention
        if spec.type is not AttentionType.ENCODER_DECODER and spec.call_order < len(seen)
        if seen[spec.call_order] is None
        or spec.node in borrowing
        or any(path.startswith(_path(spec)) for path in inside)
    )


def _path(spec: AttentionSpec | RecurrentSpec) -> str:
    """Of the module whose code it comes from, without the number of the call."""
    return f"{spec.provenance.split('@')[0]}."


def _looks_ahead(program: Program, changed: float) -> str:
    """Why a stack that was declared causal is refused."""
    declared = [f"{spec.node} and every other attention is declared DECODER" for spec in program.nodes.attention[:1]]
    causal = [f"{spec.node} ({spec.provenance})" for spec in program.nodes.recurrent if spec.causal]
    declared += [f"{name} and every other recurrence is declared causal" for name in causal[:1]]
    return (
        f"{' and '.join(declared)}, but a changed last token was seen to change the rows before it by {changed:.1e} "
        "(relative). The model is not causal, or something beside them looks ahead, such as a sequence that is "
        "reversed before a recurrence reads it."
    )


def places(program: Program) -> Places:
    """Where to look for each attention: only to find its module, never to tell what it does."""
    return tuple(spec.provenance if spec.recovered else None for spec in program.nodes.attention)


def probe_length(program: Program) -> int:
    """Long enough that every window short enough to be measured ends inside the sequence."""
    if program.signature.rows is not None:
        return program.signature.rows
    widths = [max(spec.window) for spec in program.nodes.attention if spec.window.bounded]
    wanted = max([SHORTEST, *(3 * width + 6 for width in widths if 3 * width + 6 <= LONGEST)])
    bounds = (program.facts.limits, program.facts.target_limits)
    return min(wanted, *(limits.length or wanted for limits in bounds if limits is not None))


def probe_keys(length: int) -> tuple[int, ...]:
    """The ends, and a third of the way: from there a window's end shows on the right, from the end on the left."""
    return tuple(sorted({0, length // 3, length - 1}))


def paired(program: Program) -> bool:
    """Whether the program is an encoder and a decoder, so that a text and a target can change apart."""
    return any(spec.type is AttentionType.ENCODER_DECODER for spec in program.nodes.attention)


def _compare_cross(
    spec: AttentionSpec,
    reached: dict[int, frozenset[int]],
    second: dict[int, frozenset[int]] | None,
    length: int,
) -> None:
    """Each row of the second sequence must reach every query, and no query another one."""
    declared = f"{spec.node} ({spec.provenance}) is declared ENCODER_DECODER"
    if second is None:
        raise AttentionTypeError(
            f"{declared}, but no second sequence that the target leaves alone was seen among what it is given: its "
            "keys come from its own sequence. The annotation is wrong; the model is refused."
        )
    for key, rows in second.items():
        if len(rows) < length:
            raise AttentionTypeError(
                f"{declared}: the encoder's row {key} of {length} should reach all queries, but was seen to reach "
                f"{span(rows)}. The annotation or the model's mask is wrong; the model is refused."
            )
    for key, rows in reached.items():
        if rows:
            raise AttentionTypeError(
                f"{declared}: its query {key} of {length} should reach its own row alone, but was seen to reach "
                f"{span(rows | {key})}. Some keys come from its own sequence; the model is refused."
            )


def _compare(spec: AttentionSpec, declared: AttentionSpec, reached: dict[int, frozenset[int]], length: int) -> None:
    for key, rows in reached.items():
        expected = frozenset(row for row in range(length) if row != key and declared.sees(row, key))
        if rows != expected:
            raise AttentionTypeError(
                f"{spec.node} ({spec.provenance}) is declared {spec.type} ({declared.mask}, window {declared.window}): "
                f"a key at position {key} of {length} should reach {span(expected | {key})}, but was seen to reach "
                f"{span(rows | {key})}. The annotation or the model's mask is wrong; the model is refused."
            )


def span(rows: frozenset[int]) -> str:
    """A set of row numbers as ranges."""
    numbers, ranges = sorted(rows), list[list[int]]()
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return "no row" if not ranges else "rows " + ", ".join(f"{a}" if a == b else f"{a}..{b}" for a, b in ranges)
