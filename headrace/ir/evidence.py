"""What was seen of the eager model, and what its files claim: the passes weigh it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ir.attention import MaskKind
from headrace.ir.part import require
from headrace.ir.task import Task


@dataclass(frozen=True)
class Claim:
    """What a flag of the config says about causality. Never evidence: a claim that the mask denies is refused."""

    flag: str
    value: bool
    says: MaskKind


@dataclass(frozen=True)
class Evidence:
    """What the passes weigh beside the graph.

    Attributes:
        claims: what the config says of causality.
        routed_experts: whether the graph routes tokens to experts.
        attention_calls: how often the eager model called transformers' attention interface.
        recurrent_calls: how often it called a recurrent function.
        recovered: the attention nodes that came of the model's own code instead.
        missing: parameters that the checkpoint lacked; refused once a served output reads one.
        declared_tasks: what sentence-transformers modules add to the head's offer.
        declared_default: the task that they name first.
        declared_state: the state that the module brought.
    """

    claims: tuple[Claim, ...] = ()
    routed_experts: bool = False
    attention_calls: int = 0
    recurrent_calls: int = 0
    recovered: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    declared_tasks: tuple[Task, ...] = ()
    declared_default: Task | None = None
    declared_state: str | None = None

    def __post_init__(self) -> None:
        """Refuse calls that were counted below none.

        Raises:
            PartError: names the count.
        """
        counts = {"attention_calls": self.attention_calls, "recurrent_calls": self.recurrent_calls}
        require("calls", [(count < 0, name, f"{count} calls") for name, count in counts.items()])
