"""The probe's findings for people: what each attention is declared to see, and which rows it was seen to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import AttentionTypeError
from headrace.ir import AttentionSpec, AttentionType, Program
from headrace.lowering.decide import encoder_decoder
from headrace.lowering.decide.probe import (
    ROUTED_TOLERANCE,
    Eager,
    Measured,
    Probe,
    Reached,
    paired,
    probe_length,
    span,
)
from headrace.lowering.recover.recover import Recover
from headrace.lowering.types.attention import TypeAttention
from headrace.runtime.tools.inspect.tables import aligned, paragraph
from headrace.runtime.tools.inspect.words import direction

HEADINGS = ("layer", "node", "declared", "mask", "window", "verdict", "seen (key: rows that it reaches)")
RECURRENCES = ("order", "node", "recurrence", "declared to look")
DISAGREES = "DISAGREES"


@dataclass(frozen=True)
class Report:
    """The findings as text, and whether what was seen agrees with what is declared."""

    text: str
    agrees: bool


def report(traced: Program, eager: Eager) -> Report:
    """Measure every attention of a traced program, also where some disagree.

    Args:
        eager: the original module's behaviour.

    Raises:
        AttentionTypeError: an attention cannot be typed, so that nothing is declared of it.
    """
    program = TypeAttention()(Recover()(traced))
    if not program.nodes.attention and not program.nodes.recurrent:
        return Report("The model has no attention.\n", True)
    return _measured(program, eager)


def _measured(program: Program, eager: Eager) -> Report:
    length = probe_length(program)
    measured = Probe(eager).measured(program)
    verdicts = [_verdict(Probe(eager), program, spec, measured[spec.type]) for spec in program.nodes.attention]
    crossing = AttentionType.ENCODER_DECODER
    shown = [measured[s.type].across if s.type is crossing else measured[s.type].seen for s in program.nodes.attention]
    rows = [_row(*described) for described in zip(program.nodes.attention, verdicts, shown, strict=True)]
    whole, agrees = _halves(program, eager, length) if paired(program) else _stack(program, eager, length)
    target = f" and a target of {measured[crossing].length}" if paired(program) else ""
    what = (f"array of {length} rows" if program.signature.arrays else f"text of {length} tokens") + target
    how = f"The original model on one {what}, unpadded: one row is changed at a time."
    beside = [(str(spec.call_order), spec.node, spec.operator, direction(spec)) for spec in program.nodes.recurrent]
    lines = [*paragraph(how), "", *(aligned([HEADINGS, *rows]) if rows else ["  no attention"]), ""]
    lines += [*aligned([RECURRENCES, *beside]), ""] if beside else []
    lines += [line for sentence in whole for line in paragraph(sentence)]
    return Report("\n".join(lines) + "\n", agrees and DISAGREES not in verdicts)


def _verdict(probe: Probe, program: Program, spec: AttentionSpec, measured: Measured) -> str:
    try:
        return probe.judged(program, spec, *measured).verdict
    except AttentionTypeError:
        return DISAGREES


def _row(spec: AttentionSpec, verdict: str, seen: Reached) -> tuple[str, ...]:
    reached = seen[spec.call_order] if spec.call_order < len(seen) else None
    window = str(spec.window) if spec.window.bounded else "none"
    return (str(spec.call_order), spec.node, spec.type, spec.mask, window, verdict, _reach(reached))


def _reach(reached: Mapping[int, frozenset[int]] | None) -> str:
    if reached is None:
        return "its module cannot be run on its own"
    return "  ".join(f"{key}: {span(rows | {key}).removeprefix('rows ')}" for key, rows in reached.items())


def _halves(program: Program, eager: Eager, length: int) -> tuple[list[str], bool]:
    """The two halves of an encoder-decoder, a sentence each, and whether all behave as their types say."""
    found = list(encoder_decoder.findings(program, eager, min(length, 12), ROUTED_TOLERANCE))
    said = [f"{one.spec.type}: {one.text}{'' if one.agrees else ', which ' + DISAGREES}." for one in found]
    return said, all(one.agrees for one in found)


def _stack(program: Program, eager: Eager, length: int) -> tuple[list[str], bool]:
    """The stack as a whole, in a sentence, and whether it behaves as its types say."""
    changed = eager.stack_change(min(length, 12))
    causal = all(spec.type is AttentionType.DECODER for spec in program.nodes.attention)
    if not program.nodes.attention and not any(spec.causal for spec in program.nodes.recurrent):
        return [f"No node declares which way it looks: a new last token {_effect(changed)}."], True
    allowed = ROUTED_TOLERANCE if program.evidence.routed_experts else 0.0
    agrees = (changed <= allowed) is causal
    wanted, verdict = "causal" if causal else "not causal", "" if agrees else f", which {DISAGREES}"
    return [f"The whole stack is declared {wanted}: a new last token {_effect(changed)}{verdict}."], agrees


def _effect(changed: float) -> str:
    return f"changed the rows before it by {changed:.1e} (relative)" if changed else "left the rows before it bit-equal"
