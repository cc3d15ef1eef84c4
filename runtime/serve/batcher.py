"""Requests of many callers to one task of a model: each runs beside the others."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from headrace.backends.interface import Memory
from headrace.runtime.engine.engine import Array
from headrace.runtime.engine.padded_batch import Rows
from headrace.runtime.places import Numbers
from headrace.runtime.serve.job import Done, Lot
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.metrics import TaskMetrics
from headrace.runtime.tasks.interface import Call
from headrace.runtime.text.encoded import Tokens

log = logging.getLogger("headrace.serve")
# Batches that a target is given at once which returns before it is done: the next is made ready while one runs.
AHEAD = 2
# Tokens of a batch on targets whose own steps are smaller: like lengths can then share a step.
FULL = 4096
Settle = Callable[[list[Done]], None]


class Piece(NamedTuple):
    """Neighbours of a lot's texts."""

    lot: Lot
    begin: int
    end: int

    @property
    def tokens(self) -> Tokens:
        """Of these texts."""
        whole = self.lot.tokens
        return whole if self.end - self.begin == len(whole) else whole[self.begin : self.end]

    def alone(self) -> Iterator[Piece]:
        """What is left of each request, by itself."""
        lot = self.lot
        if lot.whole:
            return
        left = np.flatnonzero(~lot.answered[self.begin : self.end]) + self.begin
        breaks = (np.diff(left) > 1) | (np.diff(lot.requests[left]) > 0)
        for own in np.split(left, np.flatnonzero(breaks) + 1):
            if len(own):
                yield Piece(lot, int(own[0]), int(own[-1]) + 1)


class Gathering:
    """Lots that are read. A batch takes some texts of each request in turn, so that a long one delays no short one."""

    def __init__(self, full: int, delay: float) -> None:
        """A batch departs with `full` tokens, or once its oldest request is `delay` seconds old."""
        self._full, self._delay = full, delay
        self._pieces: deque[Piece] = deque()
        self._tokens = 0
        self._changed = threading.Condition()
        self._closed = False

    def add(self, lot: Lot) -> None:
        """Let requests wait for a batch."""
        with self._changed:
            first = not self._pieces
            self._pieces.append(Piece(lot, 0, len(lot.tokens)))
            self._tokens += len(lot.tokens.ids)
            if first or self._tokens >= self._full:  # else who waits knows when the batch departs
                self._changed.notify()

    def close(self) -> None:
        """No more are to come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self) -> list[Piece]:
        """The next batch, as soon as it departs; empty once all are taken and no more are to come."""
        with self._changed:
            while self._pieces or not self._closed:
                # After a wait all is looked at anew: another thread may have taken what there was.
                if not self._pieces:
                    self._changed.wait()
                elif (seconds := self._young()) > 0:
                    self._changed.wait(seconds)
                elif batch := list(self._filled()):
                    if self._pieces:
                        self._changed.notify()
                    return batch
            return []

    def _young(self) -> float:
        """Seconds until what waits departs; none are left where it fills a batch."""
        if self._closed or self._tokens >= self._full:
            return 0.0
        return min(piece.lot.arrived for piece in self._pieces) + self._delay - time.monotonic()

    def _filled(self) -> Iterator[Piece]:
        room, again = self._full, list[Piece]()
        while self._pieces and room > 0:
            piece = self._pieces.popleft()
            if piece.lot.gone:
                piece = self._wanted(piece)
                if piece.begin == piece.end:
                    continue
            tokens = piece.tokens
            if (size := len(tokens.ids)) > room:
                piece, size = self._cut(piece, tokens, room, again)
            room -= size
            self._tokens -= size
            yield piece
        self._pieces.extend(again)

    def _cut(self, piece: Piece, tokens: Tokens, room: int, again: list[Piece]) -> tuple[Piece, int]:
        """What of a piece there is room for, and its tokens; a request that is cut comes again behind all others."""
        lot, sizes = piece.lot, tokens.lengths.cumsum()
        count = min(len(sizes), int(np.searchsorted(sizes, room, "left")) + 1)  # the last may pass the room
        at = piece.begin + count
        after = min(piece.end, int(lot.ends[np.searchsorted(lot.ends, at - 1, "right")]))
        if after < piece.end:
            self._pieces.appendleft(Piece(lot, after, piece.end))
        if at < after:
            again.append(Piece(lot, at, after))
        return Piece(lot, piece.begin, at), int(sizes[count - 1])

    def _wanted(self, piece: Piece) -> Piece:
        """The first neighbours of a piece that somebody waits for, if any; those behind them wait on."""
        lot = piece.lot
        own = lot.requests[piece.begin : piece.end]
        wanted = ~np.isin(own, list(lot.gone))
        begin = piece.begin + int(wanted.argmax()) if wanted.any() else piece.end
        kept = wanted[begin - piece.begin :]
        end = piece.end if kept.all() else begin + int((~kept).argmax())
        if end < piece.end:
            self._pieces.appendleft(Piece(lot, end, piece.end))
        self._tokens -= int(lot.tokens.lengths[piece.begin : begin].sum())
        return Piece(lot, begin, end)


class Batcher:
    """One task of one model. Threads run what is read, and tell of each request with the step of its last row."""

    def __init__(self, call: Call, limits: Limits, metrics: TaskMetrics, settle: Settle) -> None:
        """Begin to wait. `settle` is told, on a thread, which requests are over."""
        self._call, self._metrics, self._settle = call, metrics, settle
        backend = call.engine.backend
        self._full = max(FULL, backend.step_tokens)
        self._gathering, self._putting = Gathering(self._full, limits.delay), threading.Lock()
        count = AHEAD if isinstance(backend, Memory) and backend.ahead else 1
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def add(self, lot: Lot) -> None:
        """Have requests run."""
        self._gathering.add(lot)

    def drop(self, lot: Lot, place: int) -> None:
        """What of a request has not begun does not begin."""
        lot.gone.add(place)

    def close(self) -> None:
        """Run what is there, and end the threads."""
        self._gathering.close()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while batch := self._gathering.take():
            tokens = sum(len(piece.tokens.ids) for piece in batch)
            self._run_batch(batch)
            self._metrics.batch(sum(piece.end - piece.begin for piece in batch), tokens / self._full)

    def _run_batch(self, batch: Sequence[Piece]) -> None:
        """Run pieces together; where that fails, what is left of each request alone, once."""
        try:
            self._run_pieces(batch)
        except Exception as error:
            texts = sum(piece.end - piece.begin for piece in batch)
            log.warning("a batch failed, each request runs alone", extra={"texts": texts}, exc_info=error)
            for piece in batch:
                for alone in piece.alone():
                    self._run_alone(alone)

    def _run_alone(self, piece: Piece) -> None:
        lot, place = piece.lot, int(piece.lot.requests[piece.begin])
        if place in lot.gone:
            return
        try:
            self._run_pieces([piece])
        except Exception as error:
            lot.gone.add(place)
            self._settle([Done(lot, np.array([place]), error=error)])

    def _run_pieces(self, batch: Sequence[Piece]) -> None:
        parts = [piece.tokens for piece in batch]
        tokens = parts[0] if len(parts) == 1 else Tokens.joined(parts)
        begins = [0, *accumulate(map(len, parts))]
        for numbers, rows in self._call.encoded_steps(tokens):
            order = np.argsort(numbers)
            places, kept = numbers[order], _kept(rows, order)
            cuts = np.searchsorted(places, begins).tolist()
            over = list[Done]()
            with self._putting:  # the other texts of a lot may be of another thread's batch
                for piece, begin, first, last in zip(batch, begins, cuts, cuts[1:], strict=False):
                    if first < last:
                        done = piece.lot.put(places[first:last] + (piece.begin - begin), kept[first:last])
                        if done is not None:
                            over.append(done)
            self._settle(over)


def _kept(rows: Rows, order: Numbers) -> Array | list[Array]:
    """The rows of a step in that order, copied: they are its target's until the next."""
    if isinstance(rows, np.ndarray):
        return rows[order]
    return [rows[row].copy() for row in order.tolist()]
