"""Answers to many callers' prompts, made by one loop of steps on one thread."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.runtime.engine.decoding import DecodingLoop
from headrace.runtime.engine.sequence import Sequence
from headrace.runtime.generate.answer import Answer
from headrace.runtime.generate.generation import Generation, TokenLogprob
from headrace.runtime.serve.admission import Admission
from headrace.runtime.serve.metrics import TaskMetrics
from headrace.runtime.tasks.generate import Begun, begin, submit
from headrace.runtime.tasks.interface import Call

log = logging.getLogger("headrace.serve")


@dataclass(frozen=True)
class Part:
    """Some more of one answer.

    Attributes:
        prompt: the place of its prompt; `index` is the answer's among those to it.
        text: what is new of it.
        logprobs: of the tokens that are new, where they were asked for.
        generation: the whole, with the last part.
    """

    prompt: int
    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    generation: Generation | None = None


@dataclass(eq=False)
class Stream:
    """The answers to one request.

    Attributes:
        begun: each answer before its first token.
        tells: whether parts are told as they come, or each answer once it is whole.
        parts: what is told, in the loop of the caller.
        growing: answers that are not over.
        gone: whether the caller left.
    """

    loop: DecodingLoop
    begun: list[Begun]
    tells: bool
    parts: asyncio.Queue[Part | Exception] = field(default_factory=asyncio.Queue)
    growing: dict[Sequence, Begun] = field(default_factory=dict)
    gone: bool = False
    came: float = field(default_factory=time.monotonic)
    told: dict[Sequence, int] = field(default_factory=dict)

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum({one.place: one.answer.start.tokens for one in self.begun}.values())

    async def read(self) -> AsyncIterator[Part]:
        """Its parts as they come.

        Raises:
            Exception: what ended one of the answers.
        """
        left = len(self.begun)
        while left:
            part = await self.parts.get()
            if isinstance(part, Exception):
                raise part
            left -= part.generation is not None
            yield part

    def new(self) -> Iterator[Part]:
        """What the last step brought.

        Raises:
            Exception: what ended one of the answers.
        """
        for sequence, begun in list(self.growing.items()):
            if sequence.error is not None:
                raise sequence.error
            over = bool(sequence.finished)
            if self.tells or over:
                yield from self._part(sequence, begun, over)
            if over:
                del self.growing[sequence]

    def _part(self, sequence: Sequence, begun: Begun, over: bool) -> Iterator[Part]:
        answer, told = begun.answer, self.told.get(sequence, 0)
        text = answer.take() if self.tells else ""
        known = tuple(answer.logprobs[told:]) if isinstance(answer, Answer) else ()
        self.told[sequence] = told + len(known)
        if text or known or over:
            yield Part(begun.place, answer.index, text, known, answer.generation() if over else None)


class Answers(Protocol):
    """What generates, here or in another process; `Stepper` says what each does."""

    admission: Admission

    def answers(
        self, prompts: Any, template: Mapping[str, Any] | None, options: Mapping[str, Any], tells: bool
    ) -> AbstractAsyncContextManager[Any]:
        """A `Stream`, or what is read as one."""
        ...

    def close(self) -> None:
        """End."""
        ...


class Stepper:
    """The answers of one model. One thread submits, steps and tells; nothing else touches its loop."""

    def __init__(self, call: Call, metrics: TaskMetrics, admission: Admission) -> None:
        """Begin to wait."""
        self._call, self._metrics = call, metrics
        self._inbox: queue.SimpleQueue[Stream | None] = queue.SimpleQueue()
        self._streams: list[Stream] = []
        self.admission = admission
        self._callers = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @asynccontextmanager
    async def answers(
        self, prompts: Any, template: Mapping[str, Any] | None, options: Mapping[str, Any], tells: bool
    ) -> AsyncIterator[Stream]:
        """The answers to some prompts while they are made; at the block's end what they hold is free.

        Args:
            tells: whether each answer comes in parts.

        Raises:
            Overloaded: too many wait.
            HeadraceError: what is wrong with the prompts or the options.
        """
        self.admission.require_room()
        with self.admission.entered(1):
            given = None if template is None else dict(template)
            loop, begun = await asyncio.to_thread(begin, self._call, prompts, given, dict(options))
            stream = Stream(loop, begun, tells)
            self._inbox.put(stream)
            try:
                yield stream
            finally:
                stream.gone = True
                self.admission.answered(1)

    def close(self) -> None:
        """Answer what is there, and end the thread."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        open_ = True
        while open_ or self._streams:
            open_ = self._take(open_)
            for stream in [one for one in self._streams if one.gone]:
                self._drop(stream)
            if self._streams:
                self._step(self._streams[0].loop)
                self._tell()

    def _take(self, open_: bool) -> bool:
        """Submit what has come, waiting for it where nothing else is to be done; whether more may come."""
        with suppress(queue.Empty):
            while open_:
                stream = self._inbox.get(block=not self._streams)
                if stream is None:
                    return False
                self._begin(stream)
        return open_

    def _begin(self, stream: Stream) -> None:
        self._streams.append(stream)
        try:
            for begun in stream.begun:
                sequence = submit(stream.loop, begun)
                stream.growing[sequence] = begun
            self._metrics.tokens.inc(stream.prompt_tokens)
        except Exception as error:
            self._fail(stream, error)

    def _step(self, loop: DecodingLoop) -> None:
        count = len(loop.scheduler.running) + len(loop.scheduler.waiting)
        try:
            loop.step()
        except Exception as error:
            log.warning("a step failed, each text runs alone", extra={"texts": count}, exc_info=error)
            self._step_alone(loop, error)
        self._metrics.batch(len(loop.scheduler.running), len(loop.scheduler.running) / loop.scheduler.sequences)
        if (store := loop.lane.state.store) is not None:
            self._metrics.cache_used.set(store.used())
            self._metrics.cache_bytes.set(store.bytes)

    def _step_alone(self, loop: DecodingLoop, why: Exception) -> None:
        """Have each text make its next token by itself: one that fails is over, the others go on together.

        Beams cannot part from each other, and end with what failed.
        """
        scheduler, sound = loop.scheduler, list[Sequence]()
        growing = [one for stream in self._streams for one in stream.growing if not one.finished]
        for sequence in growing:
            if sequence.others:
                sequence.fail(why)
            scheduler.remove(sequence)
        for sequence in [one for one in growing if not one.finished]:
            scheduler.add(sequence)
            made = len(sequence.tokens)
            try:
                while not sequence.finished and len(sequence.tokens) == made:
                    loop.step()
            except Exception as error:
                sequence.fail(error)
            scheduler.remove(sequence)
            if not sequence.finished:
                sound.append(sequence)
        for sequence in sound:
            scheduler.add(sequence)

    def _tell(self) -> None:
        """Hand what the step brought to the callers, all at once."""
        told: list[tuple[Stream, Part | Exception]] = []
        for stream in list(self._streams):
            first = not stream.told
            try:
                parts = list(stream.new())
            except Exception as error:
                self._fail(stream, error)
                continue
            told += [(stream, part) for part in parts]
            if first and parts:
                self._metrics.first.observe(time.monotonic() - stream.came)
            self._metrics.made.inc(sum(len(p.generation.token_ids) for p in parts if p.generation is not None))
            if not stream.growing:
                self._streams.remove(stream)
        self._put(told)

    def _fail(self, stream: Stream, error: Exception) -> None:
        self._drop(stream)
        self._put([(stream, error)])

    def _drop(self, stream: Stream) -> None:
        """Free what a stream holds."""
        for sequence in stream.growing:
            stream.loop.abort(sequence)
        stream.growing.clear()
        self._streams.remove(stream)

    def _put(self, told: list[tuple[Stream, Part | Exception]]) -> None:
        if told and not self._callers.is_closed():
            self._callers.call_soon_threadsafe(_delivered, told)


def _delivered(told: list[tuple[Stream, Part | Exception]]) -> None:
    for stream, part in told:
        stream.parts.put_nowait(part)
