"""The process that runs the models, as its workers know it: what they ask, and what they are told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np

from headrace.ir import Task
from headrace.runtime.model import CompiledModel
from headrace.runtime.serve.admission import Admission
from headrace.runtime.serve.batcher import Batcher
from headrace.runtime.serve.job import Done, Lot
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.metrics import Metrics
from headrace.runtime.serve.refusals import refusal_of
from headrace.runtime.serve.stepper import Stepper
from headrace.runtime.serve.workers.frames import Rows, Run
from headrace.runtime.serve.workers.link import Link, Message


@dataclass(eq=False)
class Asked(Lot):
    """Requests of a worker.

    Attributes:
        visitor: whose they are.
        first: what the worker calls the first of them; the others follow.
    """

    visitor: Visitor | None = None
    first: int = 0


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

    def _settle(self, over: list[Done]) -> None:
        if over and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, over)

    @staticmethod
    def _tell(over: list[Done]) -> None:
        """Tell each worker of its requests, all that are done in one message."""
        told: dict[Visitor, list[Done]] = {}
        for done in over:
            assert isinstance(done.lot, Asked)
            assert done.lot.visitor is not None
            told.setdefault(done.lot.visitor, []).append(done)
        for visitor, own in told.items():
            visitor.tell(own)


@dataclass(eq=False)
class Visitor:
    """One worker at the desk.

    Attributes:
        ready: once it listens for clients.
    """

    desk: Desk
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    link: Link | None = None
    _runners: dict[int, tuple[str, Task]] = field(default_factory=dict)
    _lots: WeakSet[Asked] = field(default_factory=WeakSet)  # those that wait or run
    _streams: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def heard(self, message: Message) -> None:
        """Do what the worker asks."""
        if isinstance(message, Run):
            self._run(message)
            return
        kind, *rest = message
        known: dict[str, Callable[..., None]] = {
            "ready": self.ready.set, "runner": self._runner, "drop": self._drop, "generate": self._generate,
            "leave": self._leave,
        }  # fmt: skip
        known[kind](*rest)

    def gone(self) -> None:
        """Nobody waits any more for what it asked."""
        for lot in list(self._lots):
            lot.gone.update(range(len(lot.counts)))
        for number in [*self._streams]:
            self._leave(number)

    def tell(self, over: Sequence[Done]) -> None:
        """What became of requests."""
        whole = list[tuple[Asked, Done]]()
        for done in over:
            assert isinstance(done.lot, Asked)
            if done.error is None:
                whole.append((done.lot, done))
                continue
            for place in done.places.tolist():
                self.fail(done.lot.first + place, done.error)
        if not whole or self.link is None:
            return
        numbers = np.concatenate([lot.first + done.places for lot, done in whole])
        counts = np.concatenate([lot.counts[done.places] for lot, done in whole])
        arrays = [done.rows for _, done in whole if isinstance(done.rows, np.ndarray) and done.rows.ndim == 2]
        if len(arrays) == len(whole):
            self.link.send(Rows(numbers, counts, arrays))
        else:
            self._post("rows", numbers, counts, [row for _, done in whole for row in done.rows])

    def fail(self, number: int, error: Exception) -> None:
        """What went wrong with a request or a stream, as it is answered."""
        refusal = refusal_of(error)
        self._post("failed", number, (refusal.status, refusal.words, refusal.code, refusal.headers))

    def _post(self, *message: Any) -> None:
        assert self.link is not None
        self.link.post(*message)

    def _runner(self, runner: int, name: str, task: str) -> None:
        self._runners[runner] = (name, Task(task))

    def _run(self, asked: Run) -> None:
        try:
            batcher = self.desk.batcher(*self._runners[asked.runner])
        except Exception as error:
            for place in range(len(asked.counts)):
                self.fail(asked.first + place, error)
            return
        lot = Asked(asked.tokens, asked.counts, time.monotonic(), visitor=self, first=asked.first)
        self._lots.add(lot)
        batcher.add(lot)

    def _drop(self, number: int) -> None:
        for lot in list(self._lots):
            if 0 <= number - lot.first < len(lot.counts):
                lot.gone.add(number - lot.first)

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
