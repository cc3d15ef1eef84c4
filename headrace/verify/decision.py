"""What holds of the decisions about a program: route, prefill, tasks, padding (contracts B and C)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.ir.attention import AttentionType
from headrace.ir.decision import State
from headrace.ir.program import Program, Stage
from headrace.ir.signature import OutputKind
from headrace.ir.task import TASK_RULES
from headrace.tasks import decide
from headrace.verify.signature import Breach
from headrace.verify.view import View

Types = frozenset[AttentionType]
DECODER, ENCODER_ONLY, ENCODER_DECODER = (
    AttentionType.DECODER,
    AttentionType.ENCODER_ONLY,
    AttentionType.ENCODER_DECODER,
)
# Contract B: what the nodes of a whole program are, by its state.
EVIDENCE: dict[State, Callable[[Types, bool], bool]] = {
    State.ENCODER_DECODER: lambda types, recurrent: ENCODER_DECODER in types,
    State.ENCODER_ONLY: lambda types, recurrent: ENCODER_ONLY in types and ENCODER_DECODER not in types,
    State.HYBRID: lambda types, recurrent: types <= {DECODER} and (recurrent or not types),
    State.DECODER: lambda types, recurrent: types == {DECODER} and not recurrent,
    State.CUSTOM: lambda types, recurrent: True,
}
# And which types may be among those that one task leaves.
LEFT: dict[State, Types] = {
    State.ENCODER_DECODER: frozenset(AttentionType),
    State.ENCODER_ONLY: frozenset(AttentionType) - {ENCODER_DECODER},
    State.HYBRID: frozenset({DECODER}),
    State.DECODER: frozenset({DECODER}),
    State.CUSTOM: frozenset(AttentionType),
}


def route_agrees(view: View) -> Iterator[Breach]:
    """The nodes are what contract B demands of the route; a task's program may have lost some of them."""
    program = view.program
    if program.decision.route is None:
        return
    state, types = program.decision.route.state, frozenset(spec.type for spec in program.nodes.attention)
    whole = program.stage is not Stage.LOWERED
    lost = types <= LEFT[state] and not (state is State.DECODER and program.nodes.recurrent)
    if not (EVIDENCE[state](types, bool(program.nodes.recurrent)) if whole else lost):
        yield "route", f"{program.decision.route.name}, and the nodes are {_seen(program)}"
    if (state is State.CUSTOM) != (program.decision.route.custom is not None):
        yield "route", f"{state} by the name of {program.decision.route.custom}"


def _seen(program: Program) -> str:
    types = ", ".join(sorted({spec.type for spec in program.nodes.attention})) or "no attention"
    return f"{types}, {len(program.nodes.recurrent)} recurrences"


def tasks_decided(view: View) -> Iterator[Breach]:
    """The decisions on tasks are those of the one function that decides (C4), with its reasons."""
    program = view.program
    known = {decision.task: decision for decision in decide(program)}
    for decision in program.decision.tasks:
        if (wanted := known.get(decision.task)) is None:
            yield decision.task, "it is decided, and neither head nor modules offer it, or no route enables anything"
        elif decision != wanted:
            yield decision.task, f"{decision} was decided, where {wanted} is right"
    decided = {decision.task for decision in program.decision.tasks}
    if program.decision.prefill is not None:
        yield from ((task, "it is offered, and was not decided") for task in known if task not in decided)


def ready(view: View) -> Iterator[Breach]:
    """What runs is decided in full, and answers a task that is supported, or returns what nodes computed."""
    program = view.program
    for name, value in (
        ("route", program.decision.route),
        ("prefill", program.decision.prefill),
        ("padding", program.decision.padding),
    ):
        if value is None:
            yield name, "a lowered program has none"
    answers = {kind for one in program.decision.tasks if one.supported for kind in TASK_RULES[one.task].outputs}
    answers |= {OutputKind.TAPS, OutputKind.CROSS}
    for output in program.signature.outputs[:1]:
        if output.kind not in answers:
            yield output.name, f"no supported task is answered from {output.kind}"
