"""What the process of one device does: makes its model, and answers what it is given."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from headrace.errors import HeadraceError
from headrace.runtime.devices.channel import Channel
from headrace.runtime.devices.messages import (
    Answer,
    Describe,
    Done,
    End,
    Failed,
    Part,
    Prepare,
    Reply,
    Rows,
    Said,
    Save,
    Taken,
    Warned,
    Write,
)
from headrace.runtime.devices.origin import Origin
from headrace.runtime.devices.unread import Unread
from headrace.runtime.model import CompiledModel
from headrace.runtime.places import Places
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.prefetch import made_ahead

READY = 0  # the number of the call by which a model is made


class Aborted(Exception):
    """Nobody waits for the answers any longer."""


class Work:
    """The calls of one model."""

    def __init__(self, channel: Channel, origin: Origin) -> None:
        """Make the model."""
        self._channel, self._rank = channel, origin.rank
        self._model: CompiledModel = origin.model()
        self._coming: dict[int, SimpleQueue[Part | End]] = {}
        # Devices that run one model together sum in turn: all of them take calls in the order in which they come.
        self._turns: SimpleQueue[tuple[int, Callable[[], None]]] | None = None
        if origin.ranks > 1:
            self._turns = SimpleQueue()
            Thread(target=self._in_turn, args=(self._turns,), daemon=True).start()

    def begin(self, message: Any) -> None:
        """Take a message; what it asks for is done on a thread of its own."""
        match message:
            case Part() | End():
                if (queue := self._coming.get(message.call)) is not None:
                    queue.put(message)
            case Answer():
                coming = self._coming[message.call] = SimpleQueue()
                self._start(message.call, lambda: self._answer(message, coming))
            case Prepare():
                self._start(message.call, lambda: self._prepare(message))
            case Save():
                self._start(message.call, lambda: self._save(message))
            case Describe():
                self._start(message.call, lambda: self._describe(message))
            case Write():
                coming = self._coming[message.call] = SimpleQueue()
                self._start(message.call, lambda: self._write(message, coming))

    def _start(self, call: int, work: Callable[[], None]) -> None:
        if self._turns is not None:
            self._turns.put((call, work))
        else:
            Thread(target=told, args=(self._channel, call, work), daemon=True).start()

    def _in_turn(self, turns: SimpleQueue[tuple[int, Callable[[], None]]]) -> None:
        while True:
            told(self._channel, *turns.get())

    def _prepare(self, asked: Prepare) -> None:
        lane = self._model.engine.joint_lane(asked.tasks, progress=False)
        self._channel.send(Reply(asked.call, lane.program.with_(exported=None)))

    def _save(self, asked: Save) -> None:
        self._model.engine.lanes[asked.lane].executable.save(Path(asked.path))
        self._channel.send(Reply(asked.call))

    def _describe(self, asked: Describe) -> None:
        program = self._model.engine.lanes[asked.lane].program
        self._channel.send(Reply(asked.call, program.with_(exported=None)))

    def _write(self, asked: Write, coming: SimpleQueue[Part | End]) -> None:
        try:
            for part in self._model.generate_iter(asked.prompts, **asked.options):
                self._channel.send(Said(asked.call, part))
                if not coming.empty():  # nobody waits for the rest, which ends with what makes it
                    return
            self._channel.send(Done(asked.call, ()))
        finally:
            del self._coming[asked.call]

    def _answer(self, asked: Answer, coming: SimpleQueue[Part | End]) -> None:
        engine, numbers, lost = self._model.engine, list[int](), list[int]()
        parts = self._parts(asked, coming, numbers, lost)
        places = Places(texts=numbers)
        try:
            for requests, rows in engine.answered_together(
                asked.tasks, parts, asked.count, asked.batch_size, False, places
            ):
                if self._rank == 0:
                    self._channel.send(Rows(asked.call, requests, rows))
            self._channel.send(Done(asked.call, tuple(lost)))
        except Aborted:
            pass
        finally:
            del self._coming[asked.call]

    def _parts(
        self, asked: Answer, coming: SimpleQueue[Part | End], numbers: list[int], lost: list[int]
    ) -> Iterator[Any]:  # fmt: skip
        """The requests as an engine takes them; some are read while others run."""
        begin = 0
        for _, read in made_ahead(self._drawn(asked, coming, numbers), lambda part: self._read(asked, part)):
            for some in read:
                lost += [place for place, one in enumerate(some, begin) if isinstance(one, Encoded) and one.lost]
                begin += len(some)
                yield some

    def _drawn(self, asked: Answer, coming: SimpleQueue[Part | End], numbers: list[int]) -> Iterator[Part]:
        while isinstance(part := coming.get(), Part):
            self._channel.send(Taken(asked.call))
            numbers += part.numbers.tolist()
            yield part
        if part.aborted:
            raise Aborted

    def _read(self, asked: Answer, part: Part) -> list[Any]:
        if not isinstance(part.requests, Unread):
            return [part.requests]
        reader = self._model.call(asked.tasks[0]).texts()
        return list(part.requests.read(reader, Places(texts=part.numbers.tolist())))


def told(channel: Channel, call: int, work: Callable[[], None]) -> None:
    """Do some work, and say what it raises to whoever asked for it, if they are still there."""
    try:
        work()
    except BaseException as error:
        trace = traceback.format_exc()
        with suppress(OSError):
            channel.send(Failed(call, sendable(error), trace))


def sendable(error: BaseException) -> BaseException:
    """The error, or where it does not pickle, one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # of whatever library it is of
        return HeadraceError(traceback.format_exception_only(error)[-1].strip())
    return error


def main(end: int) -> None:
    """Serve the process at the other end of a socket until it hangs up."""
    channel = Channel(socket.socket(fileno=end))

    def shown(message: Warning | str, *_: Any, **_named: Any) -> None:
        channel.send(Warned(str(message)))

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the model's own decides
    made, status = list[Work](), 1
    try:
        told(channel, READY, lambda: made.append(Work(channel, channel.receive(copied=True).value)))
        if made:
            warnings.showwarning = shown
            channel.send(Reply(READY))
            while True:
                made[0].begin(channel.receive(copied=True).value)
    except (EOFError, OSError):
        status = 0
    except BaseException:
        traceback.print_exc()
    # What computes, on whatever thread, and the libraries' own ends are nothing that anybody waits for.
    os._exit(status)
