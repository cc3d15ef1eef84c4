"""The process that runs the models, as its workers know it: what they ask, and what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from headrace.ir import Task
from headrace.runtime.engine.engine import Array
from headrace.runtime.model import CompiledModel
from headrace.runtime.serve.admission import Admission
from headrace.runtime.serve.batcher import Batcher
from headrace.runtime.serve.intake import Over
from headrace.runtime.serve.job import Job, Reading
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.metrics import Metrics
from headrace.runtime.serve.refusals import refusal_of
from headrace.runtime.serve.stepper import Stepper
from headrace.runtime.serve.workers.link import Link
from headrace.runtime.text.encoded import Encoded, Tokens


@dataclass(eq=False)
class Asked(Job):
    """A job of a worker.

    Attributes:
        visitor: whose it is.
        number: what the worker calls it.
    """

    visitor: Visitor | None = None
    number: int = 0


class Desk:
    """The models, and what of them runs."""

    def __init__(self, models: Mapping[str, CompiledModel], limits: Limits, metrics: Metrics) -> None:
        """Nothing runs before it is asked for."""
        self._models, self._limits, self._metrics = models, limits, metrics
        self._loop = asyncio.get_running_loop()
        self._batchers: dict[tuple[str, Task], Batcher] = {}
        self._steppers: dict[str, Stepper] = {}

    def batcher(self, name: str, task: Task) -> Batcher:
        """What runs a task of a model."""
        if (name, task) not in self._batchers:
            call, metrics = self._models[name].call(task), self._metrics.task(name, task)
            self._batchers[name, task] = Batcher(call, self._limits, metrics, self._settle)
        return self._batchers[name, task]

    def stepper(self, name: str) -> Stepper:
        """What generates. The workers count and bound what waits."""
        if name not in self._steppers:
            call, metrics = self._models[name].call(Task.GENERATE), self._metrics.task(name, Task.GENERATE)
            self._steppers[name] = Stepper(call, metrics, Admission(self._limits))
        return self._steppers[name]

    def close(self) -> None:
        """Run what is there, and end the threads."""
        for batcher in self._batchers.values():
            batcher.close()
        for stepper in self._steppers.values():
            stepper.close()

    def _settle(self, over: Over) -> None:
        if over and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, over)

    def _tell(self, over: Over) -> None:
        """Tell each worker of its jobs, all that are done in one message."""
        done: dict[Visitor, list[Asked]] = {}
        for job, error in over:
            assert isinstance(job, Asked)
            assert job.visitor is not None
            if error is not None:
                job.visitor.fail(job.number, error)
            else:
                done.setdefault(job.visitor, []).append(job)
        for visitor, jobs in done.items():
            visitor.tell(jobs)


@dataclass(eq=False)
class Visitor:
    """One worker at the desk.

    Attributes:
        ready: once it listens for clients.
    """

    desk: Desk
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    link: Link | None = None
    _jobs: dict[int, tuple[Asked, Batcher]] = field(default_factory=dict)
    _streams: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def heard(self, message: tuple[Any, ...]) -> None:
        """Do what the worker asks."""
        kind, *rest = message
        known: dict[str, Callable[..., None]] = {
            "ready": self.ready.set, "run": self._run, "drop": self._drop, "generate": self._generate,
            "leave": self._leave,
        }  # fmt: skip
        known[kind](*rest)

    def gone(self) -> None:
        """Nobody waits any more for what it asked."""
        for number in [*self._jobs]:
            self._drop(number)
        for number in [*self._streams]:
            self._leave(number)

    def tell(self, jobs: Sequence[Asked]) -> None:
        """The rows of jobs that are over."""
        rows = [row for job in jobs for row in job.rows]
        numbers, counts = [job.number for job in jobs], [len(job.rows) for job in jobs]
        for number in numbers:
            self._jobs.pop(number, None)
        self._post("rows", numbers, counts, _stacked(rows))

    def fail(self, number: int, error: Exception) -> None:
        """What went wrong with a job or a stream, as it is answered."""
        self._jobs.pop(number, None)
        refusal = refusal_of(error)
        self._post("failed", number, (refusal.status, refusal.words, refusal.code, refusal.headers))

    def _post(self, *message: Any) -> None:
        assert self.link is not None
        self.link.post(*message)

    def _run(self, name: str, task: str, numbers: Sequence[int], counts: Sequence[int], tokens: Tokens) -> None:
        jobs, texts = list[Job](), _each(tokens)
        try:
            batcher = self.desk.batcher(name, Task(task))
        except Exception as error:
            for number in numbers:
                self.fail(number, error)
            return
        for number, count in zip(numbers, counts, strict=True):
            job = Asked((), Reading(), visitor=self, number=number)
            job.read(list(islice(texts, count)))
            self._jobs[number] = (job, batcher)
            jobs.append(job)
        batcher.add(jobs)

    def _drop(self, number: int) -> None:
        if (found := self._jobs.pop(number, None)) is not None:
            job, batcher = found
            batcher.drop(job)

    def _generate(self, number: int, *asked: Any) -> None:
        task = self._streams[number] = asyncio.create_task(self._answers(number, *asked))
        task.add_done_callback(partial(self._ended, number))

    async def _answers(self, number: int, name: str, prompts: Any, template: Any, options: Any, tells: bool) -> None:
        try:
            async with self.desk.stepper(name).answers(prompts, template, options, tells) as stream:
                self._post("begun", number, stream.prompt_tokens)
                async for part in stream.read():
                    self._post("part", number, part)
            self._post("over", number)
        except Exception as error:
            self.fail(number, error)

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        self._streams.pop(number, None)

    def _leave(self, number: int) -> None:
        if (task := self._streams.get(number)) is not None:
            task.cancel()


def _each(tokens: Tokens) -> Iterator[Encoded]:
    """The requests one by one: `tokens[place]` takes three times as long."""
    ids, begin = tokens.ids.astype(np.int64, copy=False), 0
    types = None if tokens.types is None else tokens.types.astype(np.int64, copy=False)
    hides = [0] * len(tokens) if tokens.unseen is None else tokens.unseen.tolist()
    for end, unseen in zip(tokens.lengths.cumsum().tolist(), hides, strict=True):
        yield Encoded(ids[begin:end], None if types is None else types[begin:end], unseen=unseen)
        begin = end


def _stacked(rows: list[Array]) -> Array | list[Array]:
    """Rows of one width in one array."""
    return np.stack(rows) if len({row.shape for row in rows}) == 1 and rows[0].ndim == 1 else rows
