"""Requests of many callers to one task of a model: each is read and checked alone, then runs beside the others."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from headrace.runtime.engine.engine import Array
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.metrics import TaskMetrics
from headrace.runtime.serve.refusals import Overloaded
from headrace.runtime.tasks.interface import Call
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.prefetch import WHOLE

log = logging.getLogger("headrace.serve")
# Tokens of a batch on targets whose own steps are smaller: like lengths can then share a step.
FULL = 4096
# How much the last batch counts in what a text takes.
NEWEST = 0.1
NO_ROW: Array = np.empty(0, np.float32)  # until it is there


class Reading(NamedTuple):
    """How texts are read: those that are read alike are read together."""

    pairs: bool = False
    prompt: str | None = None
    truncate: bool = False
    offsets: bool = False
    ids: bool = False


@dataclass(eq=False)
class Job:
    """One request.

    Attributes:
        texts: texts, pairs or lists of ids, as `reading` says.
        done: set in the loop of the caller, once `rows` are there.
        encoded: the texts as tokens.
        rows: the raw output of each.
        begun: how many of them the target was given.
        left: how many of them have no row.
    """

    texts: Sequence[Any]
    reading: Reading
    done: asyncio.Future[None]
    arrived: float = field(default_factory=time.monotonic)
    encoded: list[Encoded] = field(default_factory=list)
    rows: list[Array] = field(default_factory=list)
    begun: int = 0
    left: int = 0

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(one.length for one in self.encoded)


class Piece(NamedTuple):
    """Some of a job's texts, by their places."""

    job: Job
    places: range

    @property
    def encoded(self) -> list[Encoded]:
        """The texts."""
        return self.job.encoded[self.places.start : self.places.stop]


class Gathering:
    """Jobs that are read. A batch takes some texts of each in turn, so that a long job delays no short one."""

    def __init__(self, full: int, delay: float) -> None:
        """A batch departs with `full` tokens, or once its oldest job is `delay` seconds old."""
        self._full, self._delay = full, delay
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def add(self, jobs: Iterable[Job]) -> None:
        """Let jobs wait for a batch."""
        with self._changed:
            self._jobs.extend(jobs)
            self._changed.notify()

    def close(self) -> None:
        """No more are to come."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self) -> list[Piece]:
        """The next batch, as soon as it departs; empty once all are taken and no more are to come."""
        with self._changed:
            batch: list[Piece] = []
            while not batch:
                while not self._jobs:
                    if self._closed:
                        return []
                    self._changed.wait()
                while (seconds := self._young()) > 0:
                    self._changed.wait(seconds)
                batch = list(self._filled())
            return batch

    def _young(self) -> float:
        """Seconds until what waits departs; none are left where it fills a batch."""
        if self._closed or sum(job.tokens for job in self._jobs) >= self._full:
            return 0.0
        return min(job.arrived for job in self._jobs) + self._delay - time.monotonic()

    def _filled(self) -> Iterable[Piece]:
        room, again = self._full, list[Job]()
        while self._jobs and room > 0:
            job = self._jobs.popleft()
            if job.done.done():
                continue  # its caller left
            begin = job.begun
            while job.begun < len(job.encoded) and room > 0:
                room -= job.encoded[job.begun].length
                job.begun += 1
            yield Piece(job, range(begin, job.begun))
            if job.begun < len(job.encoded):
                again.append(job)
        self._jobs.extend(again)


class Batcher:
    """One task of one model. A thread reads what comes, another runs what is read."""

    def __init__(self, call: Call, limits: Limits, metrics: TaskMetrics) -> None:
        """Begin to wait."""
        self._call, self._limits, self._metrics = call, limits, metrics
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._full = max(FULL, call.engine.backend.step_tokens)
        self._gathering = Gathering(self._full, limits.delay)
        self._loop = asyncio.get_running_loop()
        self._held, self._texts, self._pace = 0, 0, 0.0
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._run)]
        for thread in self._threads:
            thread.start()

    async def answer(self, texts: Sequence[Any], reading: Reading) -> Job:
        """The job of some texts, once its rows are there. Who is cancelled while it waits takes it back.

        Raises:
            Overloaded: too many wait.
            Exception: what is wrong with these texts, or what the target raised.
        """
        if self._held >= self._limits.queue:
            raise Overloaded(self._held, max(1, math.ceil(self._texts * self._pace)))
        job = Job(texts, reading, self._loop.create_future())
        self._count(1, len(texts))
        try:
            self._inbox.put(job)
            await job.done
        finally:
            self._count(-1, -len(texts))
        self._metrics.tokens.inc(job.tokens)
        return job

    def close(self) -> None:
        """Run what is there, and end the threads."""
        self._inbox.put(None)
        for thread in self._threads:
            thread.join()

    def _count(self, jobs: int, texts: int) -> None:
        self._held += jobs
        self._texts += texts
        self._metrics.queue.set(self._held)

    def _read(self) -> None:
        while (first := self._inbox.get()) is not None:
            jobs, last = self._drained(first)
            alike: dict[Reading, list[Job]] = {}
            for job in jobs:
                alike.setdefault(job.reading, []).append(job)
            for together in alike.values():
                self._read_alike(together)
            if last:
                break
        self._gathering.close()

    def _drained(self, first: Job) -> tuple[list[Job], bool]:
        """What has come, and whether no more is to come."""
        jobs: list[Job] = [first]
        try:
            while (job := self._inbox.get_nowait()) is not None:
                jobs.append(job)
        except queue.Empty:
            return jobs, False
        return jobs, True

    def _read_alike(self, jobs: list[Job]) -> None:
        """Read jobs together; where one of them cannot be read, each alone."""
        try:
            read = self._encoded([text for job in jobs for text in job.texts], jobs[0].reading)
        except Exception as error:
            if len(jobs) == 1:
                self._settle([(jobs[0], error)])
                return
            for job in jobs:
                self._read_alike([job])
            return
        for job in jobs:
            job.encoded, read = read[: len(job.texts)], read[len(job.texts) :]
            job.rows, job.left = [NO_ROW] * len(job.texts), len(job.texts)
        self._gathering.add(jobs)

    def _encoded(self, texts: Sequence[Any], reading: Reading) -> list[Encoded]:
        self._call.lane()  # compiled on first use
        if reading.ids:
            _, parts = self._call.texts().raw(texts, None, WHOLE)
            return [one for part in parts for one in part]
        return self._call.texts().encode(
            texts, truncate=reading.truncate, pairs=reading.pairs, prompt=reading.prompt, offsets=reading.offsets
        )

    def _run(self) -> None:
        while batch := self._gathering.take():
            began = time.monotonic()
            self._run_batch(batch)
            count = sum(len(piece.places) for piece in batch)
            tokens = sum(one.length for piece in batch for one in piece.encoded)
            self._metrics.batch(count, tokens / self._full)
            self._pace += NEWEST * ((time.monotonic() - began) / count - self._pace)

    def _run_batch(self, batch: list[Piece]) -> None:
        """Run pieces together; where that fails, each alone, once."""
        try:
            rows = self._call.encoded_rows([one for piece in batch for one in piece.encoded])
        except Exception as error:
            if len(batch) == 1:
                self._settle([(batch[0].job, error)])
                return
            log.warning("a batch failed, each request runs alone", extra={"texts": len(batch)}, exc_info=error)
            for piece in batch:
                self._run_batch([piece])
            return
        over = list[tuple[Job, Exception | None]]()
        for job, places in batch:
            job.rows[places.start : places.stop], rows = rows[: len(places)], rows[len(places) :]
            job.left -= len(places)
            if not job.left:
                over.append((job, None))
        self._settle(over)

    def _settle(self, over: list[tuple[Job, Exception | None]]) -> None:
        if over and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settled, over)


def _settled(over: list[tuple[Job, Exception | None]]) -> None:
    """In the loop of the callers, who may have left."""
    for job, error in over:
        if job.done.done():
            continue
        if error is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(error)
