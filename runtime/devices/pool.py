"""The processes of several devices, and the calls that they are at."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import HeadraceError, OutOfMemoryError, TargetError, warn
from headrace.runtime.devices.channel import Message
from headrace.runtime.devices.messages import Failed, Reply, Warned
from headrace.runtime.devices.origin import Origin
from headrace.runtime.devices.process import Process
from headrace.runtime.devices.work import READY


class Told(NamedTuple):
    """What a device, by its place among all, has told a call; None where the processes are gone."""

    device: int
    message: Message | None


class Calls:
    """Who waits for what the processes say."""

    def __init__(self) -> None:
        """Nobody yet but for the models to be made."""
        self._lock, self._numbers = Lock(), itertools.count(READY)
        self._waiting: dict[int, SimpleQueue[Told]] = {}
        self.lost: str | None = None  # why there is no process any more

    def open(self) -> tuple[int, SimpleQueue[Told]]:
        """A new call's number, and where what it is told comes.

        Raises:
            TargetError: there is no process any more.
        """
        with self._lock:
            if self.lost is not None:
                raise TargetError(self.lost)
            number = next(self._numbers)
            queue = self._waiting[number] = SimpleQueue()
            return number, queue

    def close(self, number: int) -> None:
        """Nobody waits for it any longer."""
        with self._lock:
            queue = self._waiting.pop(number)
        while not queue.empty():
            if (message := queue.get().message) is not None:
                message.release()

    def tell(self, device: int, message: Message) -> None:
        """Hand on what was said."""
        with self._lock:
            if isinstance(message.value, Warned):
                waiting = list(self._waiting.values())[-1:]  # the latest call is the likeliest
            else:
                waiting = [self._waiting[message.value.call]] if message.value.call in self._waiting else []
            for queue in waiting:
                queue.put(Told(device, message))
        if not waiting:
            message.release()

    def lose(self, why: str) -> bool:
        """There is no process any more; whether that is news."""
        with self._lock:
            if self.lost is not None:
                return False
            self.lost = why
            for queue in self._waiting.values():
                queue.put(Told(0, None))
            return True


class Pool:
    """A process a device. It ends with this object, and with this process.

    Attributes:
        order: held while what begins a call is sent to several: all of them get the beginnings in one order.
        loads: tokens that each device has been given, by whatever call, and has not answered: int64 [devices].
    """

    def __init__(self, origins: Sequence[Origin], files: Iterable[int] = ()) -> None:
        """Start the processes and wait until each has its model.

        Args:
            files: descriptors that the processes need by their numbers.

        Raises:
            HeadraceError: a process could not make its model.
        """
        self._calls, self._lock = Calls(), Lock()
        self._together = origins[0].ranks > 1
        self.order = Lock()
        self.loads = np.zeros(len(origins), np.int64)
        cores = max(1, (os.cpu_count() or 1) // len(origins))
        self.processes = [Process(origin, cores, tuple(files)) for origin in origins]
        self._end = weakref.finalize(self, end, self.processes, self._calls)
        _pools.add(self)
        number, queue = self._calls.open()
        for place in range(len(self.processes)):
            Thread(target=listen, args=(place, self.processes, self._calls), daemon=True).start()
        try:
            self._replies(queue, len(self.processes))
        except BaseException:
            self.close()
            raise
        finally:
            self._calls.close(number)

    def ask(self, make: Any, devices: int | None = None) -> Any:
        """What the first process replies to a message, which some or all get.

        Args:
            make: the message, of the call's number.
            devices: how many of the processes get it; None is all.

        Raises:
            HeadraceError: what one of them raises.
        """
        asked = self.processes[:devices]
        with self.call() as (number, queue):
            with self.order:
                for process in asked:
                    self.send(process, make(number))
            return self._replies(queue, len(asked))

    @contextmanager
    def call(self) -> Iterator[tuple[int, SimpleQueue[Told]]]:
        """A call's number, and where what it is told comes.

        Raises:
            TargetError: there is no process any more.
        """
        number, queue = self._calls.open()
        try:
            yield number, queue
        finally:
            self._calls.close(number)

    def send(self, process: Process, message: Any) -> None:
        """Send a message to a process. If it is gone, whoever waits for an answer is told why."""
        with suppress(OSError):
            process.channel.send(message)

    def load(self, device: int, tokens: int) -> None:
        """Note that a device has so many more tokens to answer, or fewer."""
        with self._lock:
            self.loads[device] += tokens

    def heard(self, told: Told) -> Message | None:
        """What was told, where it is an answer; None where it was a warning, which is passed on.

        Raises:
            HeadraceError: what a process raised, with a note of the device.
            TargetError: the processes are gone.
        """
        if told.message is None:
            raise TargetError(self._calls.lost)
        value = told.message.value
        if isinstance(value, Failed):
            error = _noted(value, self.processes[told.device])
            if self._together and not alike(error):
                lose(self.processes, self._calls, _gone(self.processes[told.device], "process met an error alone"))
            raise error
        if isinstance(value, Warned):
            warn(value.text)
            return None
        return told.message

    def close(self) -> None:
        """End the processes."""
        self._end()

    def leave(self) -> None:
        """In a forked child: the processes are the parent's."""
        self._end.detach()
        for process in self.processes:
            process.channel.leave()

    def _replies(self, queue: SimpleQueue[Told], count: int) -> Any:
        found: dict[int, Any] = {}
        while len(found) < count:
            told = queue.get()
            if (message := self.heard(told)) is not None:
                assert isinstance(message.value, Reply)
                found[told.device] = message.value.value
        return found[0]


def listen(place: int, processes: list[Process], calls: Calls) -> None:
    """Hand on what a process says until it is gone; then all of them go."""
    process = processes[place]
    try:
        while True:
            calls.tell(place, process.channel.receive())
    except EOFError:
        pass
    if not process.closing:
        lose(processes, calls, _gone(process, process.why()))


def lose(processes: list[Process], calls: Calls, why: str) -> None:
    """End all processes since one has failed, and tell whoever waits."""
    if calls.lose(why):
        for process in processes:
            process.kill()


def _gone(process: Process, how: str) -> str:
    return (
        f"The device {process.target} answers no more: its {how}. Its calls have failed, and the model's other "
        "processes were ended. Compile or load the model again."
    )


def alike(error: BaseException) -> bool:
    """Whether all devices that run a model together raise it, so that none waits for another."""
    return isinstance(error, HeadraceError) and not isinstance(error, OutOfMemoryError)


def end(processes: list[Process], calls: Calls) -> None:
    """End all processes."""
    calls.lose("The model was closed: its processes have ended. Compile or load it again.")
    for process in processes:
        process.hang_up()
    for process in processes:
        process.wait()


def _noted(failed: Failed, process: Process) -> BaseException:
    error = failed.error
    error.add_note(f"On {process.target}, in process {process.id}.")
    if not isinstance(error, HeadraceError):
        error.add_note(failed.trace)
    return error


_pools = weakref.WeakSet[Pool]()


def _leave() -> None:
    for pool in list(_pools):
        pool.leave()


os.register_at_fork(after_in_child=_leave)
