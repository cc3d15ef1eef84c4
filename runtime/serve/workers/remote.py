"""Models of another process, as a worker knows them: their facts and tokenizers are here, what runs them is there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headrace.runtime.serve.admission import Admission
from headrace.runtime.serve.intake import Runner, Settle
from headrace.runtime.serve.job import Job
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.metrics import TaskMetrics
from headrace.runtime.serve.refusals import Refusal
from headrace.runtime.serve.stepper import Part
from headrace.runtime.serve.workers.link import Link
from headrace.runtime.tasks.interface import Call
from headrace.runtime.text.encoded import Tokens


class Desk:
    """The process that runs the models. Jobs and streams are told apart by numbers."""

    def __init__(self) -> None:
        """Nothing is asked; `link` is given before anything is."""
        self.link: Link
        self._numbers = itertools.count()
        self._jobs: dict[int, tuple[Job, Settle]] = {}
        self._streams: dict[int, RemoteStream] = {}

    def runner(self, name: str, call: Call, limits: Limits, metrics: TaskMetrics) -> Callable[[Settle], Runner]:
        """What runs a task of the model of that name."""
        return lambda settle: RemoteRunner(self, name, call.task, settle)

    def stepper(self, name: str, call: Call, limits: Limits, metrics: TaskMetrics) -> RemoteStepper:
        """What generates with it."""
        return RemoteStepper(self, name, Admission(limits, metrics.queue))

    def run(self, name: str, task: str, jobs: Sequence[Job], settle: Settle) -> None:
        """Have jobs run; on any thread."""
        numbers = list(itertools.islice(self._numbers, len(jobs)))
        for number, job in zip(numbers, jobs, strict=True):
            self._jobs[number] = (job, settle)
        tokens = Tokens.of([one for job in jobs for one in job.encoded])
        self.link.post("run", name, task, numbers, [len(job.encoded) for job in jobs], tokens)

    def drop(self, job: Job) -> None:
        """Nobody waits for a job any more."""
        job.gone = True
        number = next((number for number, (one, _) in self._jobs.items() if one is job), None)
        if number is not None:
            del self._jobs[number]
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

    def heard(self, message: tuple[Any, ...]) -> None:
        """Hand on what is told."""
        kind, *rest = message
        known: dict[str, Callable[..., None]] = {
            "rows": self._rows, "failed": self._failed, "begun": self._told, "part": self._told, "over": self._over,
        }  # fmt: skip
        known[kind](*rest)

    def _rows(self, numbers: Sequence[int], counts: Sequence[int], rows: Any) -> None:
        over: dict[Settle, list[tuple[Job, Exception | None]]] = {}
        begin = 0
        for number, count in zip(numbers, counts, strict=True):
            own = rows[begin : (begin := begin + count)]
            if (found := self._jobs.pop(number, None)) is not None:
                job, settle = found
                job.rows = list(own)
                over.setdefault(settle, []).append((job, None))
        for settle, jobs in over.items():
            settle(jobs)

    def _failed(self, number: int, told: tuple[int, str, str, dict[str, str]]) -> None:
        error = Refusal(*told)
        if (found := self._jobs.pop(number, None)) is not None:
            job, settle = found
            settle([(job, error)])
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
    """One task of one model, in the other process."""

    desk: Desk
    name: str
    task: str
    settle: Settle

    def add(self, jobs: Sequence[Job]) -> None:
        """Have jobs run."""
        self.desk.run(self.name, self.task, jobs, self.settle)

    def drop(self, job: Job) -> None:
        """Nobody waits for it any more."""
        self.desk.drop(job)

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
