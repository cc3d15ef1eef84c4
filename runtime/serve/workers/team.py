"""The workers of a server: they are started, replaced where they die, and end before what they ask does."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.runtime.model import CompiledModel
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.metrics import Metrics, forget
from headrace.runtime.serve.server import runner
from headrace.runtime.serve.workers.described import describe
from headrace.runtime.serve.workers.desk import Desk, Visitor
from headrace.runtime.serve.workers.link import Link

log = logging.getLogger("headrace.serve")
COMMAND = (sys.executable, "-m", "headrace.runtime.serve.workers.worker")
# Seconds that a worker has over what its requests have.
LATE = 5.0


class WorkerError(HeadraceError):
    """A worker does not begin."""


class Team:
    """The workers of one server, each at a socket of its own of the same address."""

    def __init__(
        self, models: Mapping[str, CompiledModel], sockets: Sequence[socket.socket], limits: Limits, level: str,
        keys: Iterable[str], origins: Iterable[str],
    ) -> None:  # fmt: skip
        """Nothing is started. The queue is shared out among the workers."""
        self._models, self._sockets, self._limits = models, sockets, limits
        share = replace(limits, queue=-(-limits.queue // len(sockets)))
        self._told = {"limits": share, "level": level, "keys": tuple(keys), "origins": tuple(origins)}

    def run(self, begun: Callable[[], None]) -> None:
        """Serve until SIGTERM or SIGINT; `begun` is called once all workers listen.

        Raises:
            WorkerError: one of them does not begin.
        """
        with runner() as ours, tempfile.TemporaryDirectory() as folder:
            number = ours.run(self._run(begun, Path(folder)))
        signal.raise_signal(number)

    async def _run(self, begun: Callable[[], None], folder: Path) -> int:
        """The signal that ended it."""
        self._told["models"] = describe(self._models, folder)
        desk = Desk(self._models, self._limits, Metrics())
        with signalled() as stopped:
            ready = [asyncio.Event() for _ in self._sockets]
            kept = [asyncio.create_task(self._keep(desk, *one)) for one in zip(self._sockets, ready, strict=True)]
            ends: list[asyncio.Future[Any]] = [stopped, *kept]
            listens = asyncio.create_task(_all(ready))
            try:
                await asyncio.wait([listens, *ends], return_when=asyncio.FIRST_COMPLETED)
                if listens.done():
                    gc.freeze()  # what is there stays: to look through it again and again would make requests wait
                    begun()
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for one in kept:
                    if one.done():
                        one.result()  # raises why it does not begin
                return int(stopped.result())
            finally:
                for task in (listens, *kept):
                    task.cancel()
                await asyncio.gather(*kept, return_exceptions=True)
                desk.close()

    async def _keep(self, desk: Desk, listening: socket.socket, ready: asyncio.Event) -> None:
        """Have one worker at a socket; one that dies is replaced."""
        while True:
            visitor = Visitor(desk)
            process = await self._start(visitor, listening)
            try:
                over = asyncio.create_task(process.wait())
                listens = asyncio.create_task(visitor.ready.wait())
                await asyncio.wait([over, listens], return_when=asyncio.FIRST_COMPLETED)
                listens.cancel()
                if not visitor.ready.is_set():
                    raise WorkerError(f"A worker ended with {process.returncode} before it listened; its log says why.")
                ready.set()
                await over
                log.error("a worker ended, another takes its place", extra={"code": process.returncode})
            finally:
                await self._end(process)
                visitor.gone()
                forget(process.pid)

    async def _start(self, visitor: Visitor, listening: socket.socket) -> asyncio.subprocess.Process:
        ours, theirs = socket.socketpair()
        with theirs:
            numbers = (theirs.fileno(), listening.fileno())
            process = await asyncio.create_subprocess_exec(
                *COMMAND, *map(str, numbers), pass_fds=numbers, stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process, which ends them in order
                env=self._environment,
            )  # fmt: skip
        visitor.link = await Link.over(ours, visitor.heard, visitor.gone)
        visitor.link.post("begin", self._told)
        return process

    @property
    def _environment(self) -> dict[str, str]:
        """Tokenizers keep as many threads as there are cores; those of all workers would fight."""
        cores = max(1, (os.cpu_count() or 1) // len(self._sockets))
        alone = {"TOKENIZERS_PARALLELISM": "false"} if cores == 1 else {}
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return {"RAYON_NUM_THREADS": str(cores)} | os.environ | path | alone

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Let a worker end what is under way."""
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._limits.grace + LATE)
        except TimeoutError:
            process.kill()
            await process.wait()


@contextmanager
def signalled() -> Iterator[asyncio.Future[Any]]:
    """While it is entered, the number of the first SIGTERM or SIGINT; who handled them before does so again after."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[Any] = loop.create_future()

    def stop(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        loop.add_signal_handler(number, stop, number)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


async def _all(events: Iterable[asyncio.Event]) -> None:
    for one in events:
        await one.wait()
