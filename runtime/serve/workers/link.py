"""Messages between two processes of one server, over a socket that only they have."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, cast

from headrace.runtime.serve.workers.frames import Parts, Rows, Run

# Before a message go its bytes, and its form: of FORMS, or else a pickle.
HEAD = struct.Struct("<QQ")
FORMS: dict[int, type[Run] | type[Rows]] = {1: Run, 2: Rows}
Message = Run | Rows | tuple[Any, ...]


class Link(asyncio.Protocol):
    """One end. A message is of `FORMS`, or a tuple of which the first says what it is; each comes whole, in order."""

    def __init__(self, heard: Callable[[Message], None], lost: Callable[[], None]) -> None:
        """`heard` is called with each message, in the loop; `lost` once, when the other end is gone."""
        self._heard, self._lost = heard, lost
        self._came, self._size, self._needs = list[bytes](), 0, HEAD.size
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def over(cls, end: socket.socket, heard: Callable[[Message], None], lost: Callable[[], None]) -> Link:
        """The link over one end of a pair of sockets."""
        _, made = await asyncio.get_running_loop().create_connection(lambda: cls(heard, lost), sock=end)
        return made

    def post(self, *message: Any) -> None:
        """Send a tuple, from any thread; nothing where the other end is gone."""
        self._queue(0, [pickle.dumps(message, protocol=5)])

    def send(self, message: Run | Rows) -> None:
        """Send a message of `FORMS`, from any thread, whose arrays stay as they are."""
        self._queue(1 if isinstance(message, Run) else 2, message.parts())

    def _queue(self, form: int, parts: Parts) -> None:
        """Have it written behind all that was queued before."""
        inside = threading.get_ident() == self._thread  # to wake the loop takes a call of the system
        (self._loop.call_soon if inside else self._loop.call_soon_threadsafe)(self._write, form, parts)

    def _write(self, form: int, parts: Parts) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines([HEAD.pack(sum(map(len, parts)), form), *parts])

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are of classes of its own

    def connection_lost(self, exc: Exception | None) -> None:
        """Of asyncio."""
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Of asyncio."""
        self._came.append(data)
        self._size += len(data)
        if self._size < self._needs:
            return
        came = memoryview(data if len(self._came) == 1 else b"".join(self._came))
        begin, self._needs = 0, HEAD.size
        while len(came) - begin >= HEAD.size:
            length, form = HEAD.unpack_from(came, begin)
            end = begin + HEAD.size + length
            if len(came) < end:
                self._needs = end - begin
                break
            body = came[begin + HEAD.size : end]
            begin = end
            self._heard(FORMS[form].of(body) if form else pickle.loads(body))
        self._came = [bytes(came[begin:])] if begin < len(came) else []
        self._size = len(came) - begin
