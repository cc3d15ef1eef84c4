"""Messages between two processes of one server, over a socket that only they have."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

# The bytes of a message go before it.
LENGTH = struct.Struct("<Q")


class Link(asyncio.Protocol):
    """One end. Messages are tuples, of which the first says what it is; each comes whole and in order."""

    def __init__(self, heard: Callable[[tuple[Any, ...]], None], lost: Callable[[], None]) -> None:
        """`heard` is called with each message, in the loop; `lost` once, when the other end is gone."""
        self._heard, self._lost = heard, lost
        self._came = bytearray()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def over(cls, end: socket.socket, heard: Callable[[tuple[Any, ...]], None], lost: Callable[[], None]) -> Link:
        """The link over one end of a pair of sockets."""
        _, made = await asyncio.get_running_loop().create_connection(lambda: cls(heard, lost), sock=end)
        return made

    def post(self, *message: Any) -> None:
        """Send a message, from any thread; nothing where the other end is gone."""
        whole = pickle.dumps(message, protocol=5)
        self._loop.call_soon_threadsafe(self._write, LENGTH.pack(len(whole)) + whole)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

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
        self._came += data
        begin = 0
        while len(self._came) - begin >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._came, begin)
            end = begin + LENGTH.size + length
            if len(self._came) < end:
                break
            message = pickle.loads(memoryview(self._came)[begin + LENGTH.size : end])
            begin = end
            self._heard(message)
        if begin:
            del self._came[:begin]
