"""The models of one server, each with all tasks that it enables and one copy of its weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

from headrace.errors import InputError
from headrace.ir import Program, Task
from headrace.runtime.model import CompiledModel
from headrace.runtime.serve.admission import Admission, Bodies, Spacing
from headrace.runtime.serve.batcher import Batcher
from headrace.runtime.serve.intake import Intake, Runner, Settle
from headrace.runtime.serve.job import Job, Reading
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.metrics import Metrics, TaskMetrics
from headrace.runtime.serve.refusals import Overloaded, Refusal
from headrace.runtime.serve.stepper import Answers, Stepper
from headrace.runtime.tasks.interface import Call
from headrace.tasks import answering

# Bodies of the longest that are accepted are read at once at most.
BODIES = 16


class Runs(Protocol):
    """What runs models, here or in another process."""

    def runner(self, name: str, call: Call, limits: Limits, metrics: TaskMetrics) -> Callable[[Settle], Runner]:
        """What runs a task of the model of that name."""
        ...

    def stepper(self, name: str, call: Call, limits: Limits, metrics: TaskMetrics) -> Answers:
        """What generates with it."""
        ...


class Here:
    """Models run in this process."""

    def runner(self, name: str, call: Call, limits: Limits, metrics: TaskMetrics) -> Callable[[Settle], Runner]:
        """What runs a task of a model."""
        return partial(Batcher, call, limits, metrics)

    def stepper(self, name: str, call: Call, limits: Limits, metrics: TaskMetrics) -> Answers:
        """What generates with it."""
        return Stepper(call, metrics, Admission(limits, metrics.queue))


@dataclass
class Served:
    """One model. A task's threads begin with its first request.

    Attributes:
        name: what clients call it.
        runs: what runs it, here or in another process.
        created: when it was there, in seconds since 1970.
    """

    name: str
    model: CompiledModel
    limits: Limits
    metrics: Metrics
    runs: Runs = field(default_factory=Here)
    created: int = field(default_factory=lambda: int(time.time()))
    _intakes: dict[Task, Intake] = field(default_factory=dict)
    _stepper: Answers | None = None

    @property
    def program(self) -> Program:
        """The facts of the model."""
        return self.model.program

    @property
    def longest(self) -> int | None:
        """Tokens of the longest text that is read, None where nothing bounds them."""
        task = next(iter(self.model.tasks), None)
        if task is None or self.program.signature.arrays:
            return self.program.facts.limits.length
        return self.model.call(task).texts().length

    @cached_property
    def tasks(self) -> frozenset[str]:
        """Those that the model enables."""
        return frozenset(self.model.tasks)

    @cached_property
    def width(self) -> int:
        """Numbers of a vector.

        Raises:
            TaskNotEnabledError: the model does not embed.
        """
        self.model.engine.require(Task.EMBED)
        return answering(self.program, Task.EMBED).width

    def intake(self, task: Task) -> Intake:
        """What answers a task but generate.

        Raises:
            TaskNotEnabledError: the model does not enable it.
        """
        if task not in self._intakes:
            call, metrics = self.model.call(task), self.metrics.task(self.name, task)
            runner = self.runs.runner(self.name, call, self.limits, metrics)
            self._intakes[task] = Intake(call, self.limits, metrics, runner)
        return self._intakes[task]

    @property
    def stepper(self) -> Answers:
        """What generates.

        Raises:
            TaskNotEnabledError: the model does not.
        """
        if self._stepper is None:
            call = self.model.call(Task.GENERATE)
            metrics = self.metrics.task(self.name, Task.GENERATE)
            self._stepper = self.runs.stepper(self.name, call, self.limits, metrics)
        return self._stepper

    def require_room(self, task: Task) -> None:
        """Refuse one more request of a task where too many wait.

        Raises:
            Overloaded: they do.
        """
        if task is Task.GENERATE:
            if self._stepper is not None:
                self._stepper.admission.require_room()
        elif (intake := self._intakes.get(task)) is not None:
            intake.admission.require_room()

    async def read(self, task: Task, texts: Sequence[str | tuple[str, ...]], reading: Reading) -> Job:
        """The raw rows of some texts or pairs, which are checked against the limits first."""
        self.limits.require([text if isinstance(text, str) else max(text, key=len) for text in texts])
        return await self.intake(task).answer(texts, reading)

    def close(self) -> None:
        """Answer what is there, and end the threads."""
        for intake in self._intakes.values():
            intake.close()
        if self._stepper is not None:
            self._stepper.close()


class Models(Mapping[str, Served]):
    """Those of a server, by their names, in the order in which they were given."""

    def __init__(
        self, models: Mapping[str, CompiledModel], limits: Limits, metrics: Metrics, runs: Runs | None = None
    ) -> None:  # fmt: skip
        """Serve them under these names.

        Raises:
            InputError: there is none.
        """
        if not models:
            raise InputError("There is no model to serve. Name one or more.")
        self.limits, self.metrics = limits, metrics
        self.spacing, self.bodies = Spacing(), Bodies(BODIES * limits.body)
        self._served = {name: Served(name, model, limits, metrics, runs or Here()) for name, model in models.items()}

    def __getitem__(self, name: str) -> Served:
        """By its name."""
        return self._served[name]

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._served)

    def __len__(self) -> int:
        """How many."""
        return len(self._served)

    def find(self, name: str | None, *tasks: Task) -> Served:
        """The model of a name; without one, the only model, or the only one that enables one of the tasks.

        Raises:
            Refusal: no model has that name, or several could be meant, or none enables a task.
        """
        if name is not None:
            if name not in self._served:
                raise Refusal(
                    404, f"There is no model {name!r:.200}; those served are {', '.join(self)}.", "model_not_found"
                )
            return self._served[name]
        if len(self) == 1:
            return next(iter(self._served.values()))
        able = [one for one in self._served.values() if any(task in one.tasks for task in tasks)]
        if len(able) == 1:
            return able[0]
        which = ", ".join(one.name for one in able) or f"none of {', '.join(self)}"
        raise Refusal(400, f'{which} could answer {" or ".join(tasks)}. Name the model: "model": "...".')

    def require_room(self, tasks: Sequence[Task]) -> None:
        """Refuse a request of one of the tasks before its body says of which model, where none has room.

        Raises:
            Overloaded: says when to come again.
        """
        full: Overloaded | None = None
        for one in self._served.values():
            for task in tasks:
                try:
                    one.require_room(task)
                except Overloaded as error:
                    full = error
                else:
                    if task in one.tasks:
                        return
        if full is not None:
            raise full

    def close(self) -> None:
        """End all threads."""
        for one in self._served.values():
            one.close()
