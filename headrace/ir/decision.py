"""What was decided of a program: its route, its prefill, and each task that it offers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.ir.part import require
from headrace.ir.task import Task


@dataclass(frozen=True)
class TaskDecision:
    """Contract C for one offered task: supported where the route enables it, and why or why not."""

    task: Task
    supported: bool
    reason: str


class Prefill(StrEnum):
    """Whether every token of a sequence is present in one step."""

    SINGLE_PASS = "single_pass"
    CHUNKED = "chunked"


class PaddingRule(StrEnum):
    """Whether a padded batch answers as each sequence alone."""

    EXACT = "exact"
    UNPADDED = "unpadded"


class State(StrEnum):
    """The model states of contract B."""

    CUSTOM = "CustomState"
    ENCODER_DECODER = "EncoderDecoderState"
    ENCODER_ONLY = "EncoderOnlyState"
    HYBRID = "HybridState"
    DECODER = "DecoderState"


@dataclass(frozen=True)
class Route:
    """The decision of contract B: the state, the rule that chose it and the evidence in words."""

    state: State
    rule: str
    reason: str
    custom: str | None = None

    @property
    def name(self) -> str:
        """The state's name as a reader knows it: a custom state's own."""
        return self.custom or self.state.value


@dataclass(frozen=True)
class Decision:
    """What the passes decided of a program, in the order in which they do.

    Attributes:
        padding: whether a padded batch answers as each sequence alone, None until it was measured.
        tasks: a decision on every task that it offers.
    """

    route: Route | None = None
    padding: PaddingRule | None = None
    prefill: Prefill | None = None
    tasks: tuple[TaskDecision, ...] = ()

    def __post_init__(self) -> None:
        """Refuse two decisions on one task.

        Raises:
            PartError: names the task.
        """
        tasks = [decision.task for decision in self.tasks]
        require(
            "tasks", [(tasks.count(task) > 1, "tasks", f"{task} is decided twice") for task in dict.fromkeys(tasks)]
        )
