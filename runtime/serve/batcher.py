"""Jobs of many callers to one task of a model: each runs beside the others."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from headrace.runtime.engine.engine import Array
from headrace.runtime.engine.padded_batch import Rows
from headrace.runtime.serve.intake import Over, Settle
from headrace.runtime.serve.job import NO_ROW, Job
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.metrics import TaskMetrics
from headrace.runtime.tasks.interface import Call

log = logging.getLogger("headrace.serve")
# Tokens of a batch on targets whose own steps are smaller: like lengths can then share a step.
FULL = 4096


class Piece(NamedTuple):
    """Some of a job's texts, by their places."""

    job: Job
    places: Sequence[int]

    def left(self) -> Piece:
        """Those that have no row."""
        return Piece(self.job, [place for place in self.places if self.job.rows[place] is NO_ROW])


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
            if job.gone:
                continue
            begin = job.begun
            while job.begun < len(job.encoded) and room > 0:
                room -= job.encoded[job.begun].length
                job.begun += 1
            yield Piece(job, range(begin, job.begun))
            if job.begun < len(job.encoded):
                again.append(job)
        self._jobs.extend(again)


class Batcher:
    """One task of one model. A thread runs what is read, and tells of each job as soon as its last row is there."""

    def __init__(self, call: Call, limits: Limits, metrics: TaskMetrics, settle: Settle) -> None:
        """Begin to wait. `settle` is told, on the thread, which jobs are over."""
        self._call, self._metrics, self._settle = call, metrics, settle
        self._full = max(FULL, call.engine.backend.step_tokens)
        self._gathering = Gathering(self._full, limits.delay)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, jobs: Sequence[Job]) -> None:
        """Have jobs run."""
        self._gathering.add(jobs)

    def drop(self, job: Job) -> None:
        """What of it has not begun does not begin."""
        job.gone = True

    def close(self) -> None:
        """Run what is there, and end the thread."""
        self._gathering.close()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._gathering.take():
            self._run_batch(batch)
            texts = sum(len(piece.places) for piece in batch)
            tokens = sum(job.encoded[place].length for job, places in batch for place in places)
            self._metrics.batch(texts, tokens / self._full)

    def _run_batch(self, batch: Sequence[Piece]) -> None:
        """Run pieces together; where that fails, what is left of each alone, once."""
        try:
            self._run_pieces(batch)
        except Exception as error:
            if len(batch) == 1:
                batch[0].job.gone = True
                self._settle([(batch[0].job, error)])
                return
            log.warning("a batch failed, each request runs alone", extra={"texts": len(batch)}, exc_info=error)
            for piece in batch:
                if (left := piece.left()).places:
                    self._run_batch([left])

    def _run_pieces(self, batch: Sequence[Piece]) -> None:
        texts = [(job, place) for job, places in batch for place in places]
        for numbers, rows in self._call.encoded_steps([job.encoded[place] for job, place in texts]):
            over: Over = []
            for number, row in zip(numbers.tolist(), _kept(rows), strict=True):
                job, place = texts[number]
                job.rows[place] = row
                job.left -= 1
                if not job.left:
                    over.append((job, None))
            self._settle(over)


def _kept(rows: Rows) -> list[Array]:
    """The rows of a step, which are its target's until the next: those of one array are copied at once."""
    return [*rows.copy()] if isinstance(rows, np.ndarray) and rows.ndim == 2 else [row.copy() for row in rows]
