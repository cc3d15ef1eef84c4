"""Models of another process, as a worker knows them: their facts and tokenizers are here, what runs them is there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.runtime.engine.engine import Array
from headrace.runtime.places import Numbers
from headrace.runtime.serve.admission import Admission
from headrace.runtime.serve.intake import Runner, Settle
from headrace.runtime.serve.job import Done, Lot
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.metrics import TaskMetrics
from headrace.runtime.serve.refusals import Refusal
from headrace.runtime.serve.stepper import Part
from headrace.runtime.serve.workers.frames import Rows, Run
from headrace.runtime.serve.workers.link import Link, Message
from headrace.runtime.tasks.interface import Call


class Desk:
    """The process that runs the models. Requests and streams are told apart by numbers."""

    def __init__(self) -> None:
        """Nothing is asked; `link` is given before anything is."""
        self.link: Link
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[Lot, int, Settle]] = {}
        self._streams: dict[int, RemoteStream] = {}

    def runner(self, name: str, call: Call, limits: Limits, metrics: TaskMetrics) -> Callable[[Settle], Runner]:
        """What runs a task of the model of that name."""
        runner = next(self._numbers)
        self.link.post("runner", runner, name, call.task)
        return lambda settle: RemoteRunner(self, runner, settle)

    def stepper(self, name: str, call: Call, limits: Limits, metrics: TaskMetrics) -> RemoteStepper:
        """What generates with it."""
        return RemoteStepper(self, name, Admission(limits, metrics.queue))

    def run(self, runner: int, lot: Lot, settle: Settle) -> None:
        """Have requests run; on any thread."""
        numbers = list(itertools.islice(self._numbers, len(lot.counts)))
        for place, number in enumerate(numbers):
            self._asked[number] = (lot, place, settle)
        self.link.send(Run(runner, numbers[0], lot.counts, lot.tokens))

    def drop(self, lot: Lot, place: int) -> None:
        """Nobody waits for a request any more."""
        asked = list(self._asked.items())  # another thread adds to them
        number = next((number for number, (one, at, _) in asked if one is lot and at == place), None)
        if number is not None:
            del self._asked[number]
            self.link.post("drop", number)

    def begin(self, *asked: Any) -> RemoteStream:
        """Ask for answers that come in parts."""
        number = next(self._numbers)
        stream = self._streams[number] = RemoteStream(number)
        self.link.post("generate", number, *asked)
        return stream

    def leave(self, stream: RemoteStream) -> None:
        """Nobody reads a stream any more."""
        if self._streams.pop(stream.number, None) is not None:
            self.link.post("leave", stream.number)

    def heard(self, message: Message) -> None:
        """Hand on what is told."""
        if isinstance(message, Rows):
            self._told_rows(message.each())
            return
        kind, *rest = message
        known: dict[str, Callable[..., None]] = {
            "rows": self._rows, "failed": self._failed, "begun": self._told, "part": self._told, "over": self._over,
        }  # fmt: skip
        known[kind](*rest)

    def _rows(self, numbers: Numbers, counts: Numbers, rows: list[Array]) -> None:
        """Rows of several widths."""
        begin, each = 0, list[tuple[int, list[Array]]]()
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            each.append((number, rows[begin : (begin := begin + count)]))
        self._told_rows(each)

    def _told_rows(self, each: Iterable[tuple[int, Any]]) -> None:
        over: dict[Settle, list[Done]] = {}
        for number, rows in each:
            if (found := self._asked.pop(number, None)) is not None:
                lot, place, settle = found
                over.setdefault(settle, []).append(Done(lot, np.array([place]), rows))
        for settle, done in over.items():
            settle(done)

    def _failed(self, number: int, told: tuple[int, str, str, dict[str, str]]) -> None:
        error = Refusal(*told)
        if (found := self._asked.pop(number, None)) is not None:
            lot, place, settle = found
            settle([Done(lot, np.array([place]), error=error)])
        elif (stream := self._streams.pop(number, None)) is not None:
            stream.parts.put_nowait(error)

    def _told(self, number: int, what: int | Part) -> None:
        if (stream := self._streams.get(number)) is not None:
            stream.parts.put_nowait(what)

    def _over(self, number: int) -> None:
        if (stream := self._streams.pop(number, None)) is not None:
            stream.parts.put_nowait(None)


@dataclass(frozen=True)
class RemoteRunner:
    """One task of one model, in the other process, which knows it by its number."""

    desk: Desk
    number: int
    settle: Settle

    def add(self, lot: Lot) -> None:
        """Have requests run."""
        self.desk.run(self.number, lot, self.settle)

    def drop(self, lot: Lot, place: int) -> None:
        """Nobody waits for one any more."""
        self.desk.drop(lot, place)

    def close(self) -> None:
        """Nothing runs here."""


@dataclass(eq=False)
class RemoteStream:
    """The answers to one request; as `headrace.runtime.serve.stepper.Stream`."""

    number: int
    parts: asyncio.Queue[int | Part | Exception | None] = field(default_factory=asyncio.Queue)
    prompt_tokens: int = 0

    async def begun(self) -> None:
        """Wait until the prompts are read.

        Raises:
            Refusal: what is wrong with them.
        """
        told = await self.parts.get()
        if isinstance(told, Exception):
            raise told
        assert isinstance(told, int)
        self.prompt_tokens = told

    async def read(self) -> AsyncIterator[Part]:
        """Its parts as they come.

        Raises:
            Refusal: what ended one of the answers.
        """
        while (part := await self.parts.get()) is not None:
            if isinstance(part, Exception):
                raise part
            assert isinstance(part, Part)
            yield part


@dataclass
class RemoteStepper:
    """The answers of one model, made in the other process."""

    desk: Desk
    name: str
    admission: Admission

    @asynccontextmanager
    async def answers(
        self, prompts: Any, template: Mapping[str, Any] | None, options: Mapping[str, Any], tells: bool
    ) -> AsyncIterator[RemoteStream]:
        """As of `Stepper.answers`."""
        self.admission.require_room()
        given = None if template is None else dict(template)
        with self.admission.entered(1):
            stream = self.desk.begin(self.name, prompts, given, dict(options), tells)
            try:
                await stream.begun()
                yield stream
            finally:
                self.desk.leave(stream)
                self.admission.answered(1)

    def close(self) -> None:
        """Nothing runs here."""
