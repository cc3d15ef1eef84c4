"""Choose the model state that runs a program (contract B). Reads the program's typed fields and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import AttentionTypeError
from headrace.ir import AttentionType, Program, Route, State

When = Callable[[Program], bool]
# States registered by `headrace.register_model_state`: name to the programs that they are for.
registered: dict[str, When] = {}


@dataclass(frozen=True)
class DecideRoute:
    """The program has a route: the first rule of contract B that matches, with its evidence."""

    name: str = "route"

    def __call__(self, program: Program) -> Program:
        """Decide from the IR; see `decide_route`."""
        return program.with_(route=decide_route(program))


def decide_route(program: Program) -> Route:
    """Contract B1 to B5, first match wins.

    Raises:
        AttentionTypeError: no rule matches; the message says what was seen.
    """
    if custom := _custom(program):
        return custom
    types = Counter(spec.type for spec in program.nodes.attention)
    count = len(program.nodes.attention)
    if types[AttentionType.ENCODER_DECODER]:
        cross = types[AttentionType.ENCODER_DECODER]
        return Route(State.ENCODER_DECODER, "B2", f"{cross} of {count} attentions are ENCODER_DECODER")
    if types[AttentionType.ENCODER_ONLY]:
        seen = types[AttentionType.ENCODER_ONLY]
        return Route(State.ENCODER_ONLY, "B3", f"{seen} of {count} attentions are ENCODER_ONLY")
    if program.nodes.recurrent:
        return Route(
            State.HYBRID, "B4", f"{len(program.nodes.recurrent)} recurrent-state nodes beside {count} attentions"
        )
    if not program.nodes.attention:
        return Route(State.HYBRID, "B4", "no attention at all")
    if types[AttentionType.DECODER] == count:
        return Route(State.DECODER, "B5", f"all {count} attentions are DECODER")
    seen_types = ", ".join(f"{n} {kind}" for kind, n in sorted(types.items()))
    raise AttentionTypeError(f"No state runs this program: it has {seen_types} attention(s), which no rule covers.")


def _custom(program: Program) -> Route | None:
    """B1: the state that the module brought, else the first registered one that is for this program."""
    if (brought := program.evidence.declared_state) is not None:
        return Route(State.CUSTOM, "B1", "the module brought its own state", custom=brought)
    name = next((name for name, when in registered.items() if when(program)), None)
    return Route(State.CUSTOM, "B1", "a state is registered for this program", custom=name) if name else None
