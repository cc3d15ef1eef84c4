"""Contract C: which tasks a program supports. One function decides; everything that asks calls it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.errors import TaskNotEnabledError
from headrace.ir import (
    TASK_RULES,
    Head,
    Needs,
    Output,
    Prefill,
    Program,
    Route,
    State,
    Task,
    TaskDecision,
    TaskRules,
)

# These need every token of a sequence in one step.
TOKEN_LEVEL = frozenset(task for task, rules in TASK_RULES.items() if rules.needs is Needs.EVERY_TOKEN)
DECODING = frozenset({State.DECODER, State.HYBRID, State.ENCODER_DECODER})
SINGLE_PASS_HINT = 'compile with prefill="single_pass"'


def offered(program: Program) -> dict[Task, str]:
    """Rule C1: the tasks that the head and the sentence-transformers modules offer, each with its source."""
    tasks = {task: _source(program.signature.head, TASK_RULES[task]) for task in _of_head(program)}
    return tasks | {
        task: "the sentence-transformers modules" for task in program.evidence.declared_tasks if task not in tasks
    }


def _of_head(program: Program) -> list[Task]:
    """The tasks that the head offers, its default first."""
    head = program.signature.head
    offers = [task for task, rules in TASK_RULES.items() if head in rules.heads and _labelled(program, rules)]
    return [task for task in offers if task is not Task.RAW or program.facts.raw]


def _labelled(program: Program, rules: TaskRules) -> bool:
    """Whether the labels, of texts, are as the task has them."""
    labels = None if program.signature.arrays else program.facts.labels
    if rules.one_label:
        return labels is not None and len(labels.names) == 1
    if rules.entails:
        return labels is not None and len(labels.names) > 1 and labels.entailment is not None
    return True


def _source(head: Head, rules: TaskRules) -> str:
    if rules.one_label:
        return f"the {head} head's single label"
    if rules.entails:
        return f"the {head} head's label of entailment"
    return {Head.NONE: "the model without a head", Head.OTHER: "its own head"}.get(head, f"the {head} head")


def enabled(route: Route, prefill: Prefill) -> frozenset[Task]:
    """Rules C2 and C3: the tasks that a route enables, whatever the model offers."""
    has = {
        Needs.ANY_ROUTE: True,
        Needs.EVERY_TOKEN: prefill is Prefill.SINGLE_PASS,
        Needs.DECODING: route.state in DECODING,
    }
    return frozenset(task for task, rules in TASK_RULES.items() if has[rules.needs])


def decide(program: Program) -> tuple[TaskDecision, ...]:
    """Rule C4: supported = offered and enabled, sorted; an offered task that is not enabled is listed with its reason.

    A program without a route yet supports nothing.
    """
    if program.decision.route is None or program.decision.prefill is None:
        return ()
    allowed = enabled(program.decision.route, program.decision.prefill)
    return tuple(
        TaskDecision(
            task,
            task in allowed,
            _reason(program.decision.route, program.decision.prefill, task, source, task in allowed),
        )
        for task, source in sorted(offered(program).items())
    )


def _reason(route: Route, prefill: Prefill, task: Task, source: str, supported: bool) -> str:
    if supported:
        return f"offered by {source}, enabled by {route.name}"
    if task in TOKEN_LEVEL and prefill is Prefill.CHUNKED:
        return (
            f"offered by {source}, but {task} needs every token of a sequence in one step and {route.name} prefills in "
            f"chunks; {SINGLE_PASS_HINT}"
        )
    return f"offered by {source}, but {route.name} does not enable {task}"


class Tasks(Mapping[str, TaskDecision]):
    """The supported tasks, in order, each with its reason. Empty where nothing is supported; never raises for that.

    Looking up a task by name also answers for one that is offered but not enabled; `refused` lists those.
    """

    def __init__(self, decisions: tuple[TaskDecision, ...]) -> None:
        """`decisions` as `decide` returned them."""
        self._all = {decision.task.value: decision for decision in decisions}

    def __getitem__(self, task: str) -> TaskDecision:
        """The decision on an offered task, supported or not."""
        return self._all[str(task)]

    def __contains__(self, task: object) -> bool:
        """Whether the task is supported."""
        return isinstance(task, str) and task in list(self)

    def __iter__(self) -> Iterator[str]:
        """The supported tasks' names, sorted."""
        return (name for name, decision in self._all.items() if decision.supported)

    def __len__(self) -> int:
        """How many tasks are supported."""
        return sum(1 for _ in self)

    @property
    def refused(self) -> dict[str, str]:
        """The offered tasks that are not enabled, each with its reason."""
        return {name: decision.reason for name, decision in self._all.items() if not decision.supported}

    def __repr__(self) -> str:
        """Supported tasks, then the refused ones."""
        refused = f"; refused: {', '.join(self.refused)}" if self.refused else ""
        return f"Tasks({', '.join(self) or 'none'}{refused})"


def lacks(task: Task, decodes: bool) -> str:
    """What this version lacks to run a supported task; empty where it runs it.

    Args:
        decodes: whether the target runs cached programs.
    """
    return "decoding on this target" if TASK_RULES[task].needs is Needs.DECODING and not decodes else ""


def runnable(program: Program, decodes: bool = True) -> list[Task]:
    """The supported tasks that this version can run, in order; `decodes` is as of `lacks`."""
    decided = program.decision.tasks
    return [decision.task for decision in decided if decision.supported and not lacks(decision.task, decodes)]


def first_runnable(program: Program, wish: Task | None, decodes: bool = True) -> Task | None:
    """The task that is wished for; where this version cannot run it, the first that it can, if any."""
    tasks = runnable(program, decodes)
    return wish if wish in tasks else next(iter(tasks), None)


def preferred(program: Program) -> Task:
    """Rule C7 without a user's wish: the modules' task, else the head's, else embed."""
    if program.evidence.declared_default is not None:
        return program.evidence.declared_default
    return next(iter(_of_head(program)), Task.EMBED)


def select(program: Program, wish: str | None) -> tuple[Task | None, str | None]:
    """The task to compile for, and a warning where filtering changed the default (rules C5 to C7).

    Returns:
        The task, None where nothing is supported and nothing was asked for; the warning or None.

    Raises:
        TaskNotEnabledError: `wish` is not supported.
    """
    supported = [decision.task for decision in decide(program) if decision.supported]
    if wish is not None:
        if not isinstance(wish, str) or wish not in supported:
            raise TaskNotEnabledError(refusal(program, wish))
        return Task(wish), None
    default = preferred(program)
    if default in supported or not supported:
        return (default if supported else None), None
    reason = next((d.reason for d in decide(program) if d.task is default), f"{default} is not offered")
    chosen = Task.EMBED if Task.EMBED in supported else supported[0]
    return chosen, f"The default task is {chosen} instead of {default}: {reason}."


def require_any(program: Program) -> None:
    """What supports no task is not compiled: its first request would fail (rules C4 and C5).

    Raises:
        TaskNotEnabledError: it supports none.
    """
    if not any(decision.supported for decision in decide(program)):
        raise TaskNotEnabledError(refusal(program, None))


def refusal(program: Program, wish: str | None) -> str:
    """Rule C5: what the route enables, what was selected, what the model offers, and one of two hints.

    Args:
        wish: the task that was selected, None where none was and none is supported.
    """
    selected = "none" if wish is None else wish
    route, prefill = program.decision.route, program.decision.prefill
    if route is None or prefill is None:
        return f"The program has no route yet, so it supports no task; {selected} was selected."
    names = sorted(offered(program))
    allowed = sorted(enabled(route, prefill))
    return (
        f"{'The model supports no task' if wish is None else f'The task {wish} is not supported'}. "
        f"{route.name} with {prefill} prefill enables: {', '.join(allowed)}. "
        f"Selected: {selected}. The model offers: {', '.join(names) or 'nothing'}. "
        f"{_hint(program, preferred(program) if wish is None else wish)}"
    )


def _hint(program: Program, wish: str) -> str:
    supported = [decision.task for decision in decide(program) if decision.supported]
    opens = program.decision.prefill is Prefill.CHUNKED and wish in TOKEN_LEVEL and wish in offered(program)
    if supported:
        also = f", or {SINGLE_PASS_HINT} to enable {wish}" if opens else ""
        if isinstance(wish, str) and wish in (Task.EMBED, Task.TOKEN_EMBED) and wish not in offered(program):
            also = f', or compile with task="{wish}" to leave the head out and let the backbone answer'
        return f"Choose one of: {', '.join(supported)}{also}."
    if opens:
        return f"To make it work, {SINGLE_PASS_HINT}: every token of a sequence is then present in one step."
    if token := [
        task for task in offered(program) if task in TOKEN_LEVEL and program.decision.prefill is Prefill.CHUNKED
    ]:
        return f"The model offers {token[0]} alone, which works when you {SINGLE_PASS_HINT}."
    if not offered(program):
        return f"Nothing can be served: {program.signature.head_note or 'the model offers no task'}."
    assert program.decision.route is not None
    return f"Nothing can be served: {program.decision.route.name} enables none of what the model offers."


def answering(program: Program, task: Task) -> Output:
    """The output that a supported task is answered from."""
    return next(found for kind in TASK_RULES[task].outputs if (found := program.signature.output(kind)) is not None)
