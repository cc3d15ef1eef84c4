"""One task of one model as requests come: each is admitted, read and checked, and waits for its rows."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from headrace.errors import InputError
from headrace.runtime.serve.admission import Admission
from headrace.runtime.serve.job import Done, Job, Lot, Reading
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.metrics import TaskMetrics
from headrace.runtime.tasks.interface import Call
from headrace.runtime.text.encoded import Encoded, Tokens
from headrace.runtime.text.prefetch import WHOLE

# Characters, or ids, that the loop reads itself in one round: a millisecond or two of it.
SHORT = 8192
# Is told what is over, on any thread.
Settle = Callable[[list[Done]], None]


@dataclass(eq=False)
class Read(Lot):
    """Jobs that were read together."""

    jobs: Sequence[Job] = ()

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Read:
        """Those, which know it from then on."""
        tokens = Tokens.of([one for job in jobs for one in job.encoded])
        counts = np.fromiter((len(job.encoded) for job in jobs), np.int64, len(jobs))
        made = cls(tokens, counts, min(job.arrived for job in jobs), jobs=jobs)
        for place, job in enumerate(jobs):
            job.lot, job.place = made, place
            if job.gone:  # who leaves after this finds the lot
                made.gone.add(place)
        return made


class Runner(Protocol):
    """What makes rows of requests that are read."""

    def add(self, lot: Lot) -> None:
        """Have its requests run; on any thread."""
        ...

    def drop(self, lot: Lot, place: int) -> None:
        """Nobody waits for that request any more; in the loop."""
        ...

    def close(self) -> None:
        """Run what is there, and end."""
        ...


class Intake:
    """One task of one model. Short texts are read in the loop, all that have come together; a thread reads the others.

    To hand short ones to a thread takes as long as to read them, and it would get them one by one.
    """

    def __init__(self, call: Call, limits: Limits, metrics: TaskMetrics, runner: Callable[[Settle], Runner]) -> None:
        """Begin to wait. `runner` is made with what it tells of jobs that are over."""
        self.admission = Admission(limits, metrics.queue)
        self._call, self._metrics = call, metrics
        self._loop = asyncio.get_running_loop()
        self._runner = runner(self._settle)
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._waiting: dict[Job, asyncio.Future[None]] = {}
        self._soon, self._room = list[Job](), SHORT
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    async def answer(self, texts: Sequence[Any], reading: Reading) -> Job:
        """The job of some texts, once its rows are there. Who is cancelled while it waits takes it back.

        Raises:
            Overloaded: too many wait.
            Exception: what is wrong with these texts, or what the target raised.
        """
        self.admission.require_room()
        job = Job(texts, reading)
        done = self._waiting[job] = self._loop.create_future()
        with self.admission.entered(len(texts)):
            self._hand(job)
            try:
                await done
            except asyncio.CancelledError:
                job.gone = True
                if job.lot is not None:
                    self._runner.drop(job.lot, job.place)
                raise
            finally:
                self._waiting.pop(job, None)
        self._metrics.tokens.inc(job.tokens)
        return job

    def close(self) -> None:
        """Run what is there, and end the thread."""
        self._inbox.put(None)
        self._thread.join()
        self._runner.close()

    def _hand(self, job: Job) -> None:
        """Have a job read."""
        size = sum(map(_size, job.texts))
        if size > self._room:
            self._inbox.put(job)
            return
        self._room -= size
        self._soon.append(job)
        if len(self._soon) == 1:
            self._loop.call_soon(self._read_soon)

    def _read_soon(self) -> None:
        """Read what was handed over since the loop's last round."""
        jobs, self._soon, self._room = self._soon, [], SHORT
        try:
            at_once = self._call.texts().at_once()
        except InputError:  # of a model that reads no texts; told to each, who gets there
            at_once = False
        if at_once:
            self._read_all(jobs)
            return
        for job in jobs:
            self._inbox.put(job)

    def _read(self) -> None:
        while (first := self._inbox.get()) is not None:
            jobs, last = self._drained(first)
            self._read_all(jobs)
            if last:
                break

    def _read_all(self, jobs: Sequence[Job]) -> None:
        alike: dict[Reading, list[Job]] = {}
        for job in (one for one in jobs if not one.gone):
            alike.setdefault(job.reading, []).append(job)
        for together in alike.values():
            self._read_alike(together)

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
                self._settle([Done(Read.of(jobs), np.zeros(1, np.int64), error=error)])
                return
            for job in jobs:
                self._read_alike([job])
            return
        begin = 0
        for job in jobs:
            job.encoded = read[begin : (begin := begin + len(job.texts))]
        self._runner.add(Read.of(jobs))

    def _encoded(self, texts: Sequence[Any], reading: Reading) -> list[Encoded]:
        if reading.ids:
            _, parts = self._call.texts().raw(texts, None, WHOLE)
            return [one for part in parts for one in part]
        return self._call.texts().encode(
            texts, truncate=reading.truncate, pairs=reading.pairs, prompt=reading.prompt, offsets=reading.offsets
        )

    def _settle(self, over: list[Done]) -> None:
        if over and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settled, over)

    def _settled(self, over: list[Done]) -> None:
        """In the loop of the callers, who may have left."""
        answered = 0
        for lot, places, rows, error in over:
            assert isinstance(lot, Read)
            begin = 0
            for job in map(lot.jobs.__getitem__, places.tolist()):
                job.rows = rows[begin : (begin := begin + len(job.encoded))]
                answered += len(job.texts)
                done = self._waiting.get(job)
                if done is None or done.done():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)
        self.admission.answered(answered)


def _size(text: Any) -> int:
    """Characters of a text or a pair, or how many ids there are."""
    return sum(map(len, text)) if isinstance(text, tuple) else len(text)
