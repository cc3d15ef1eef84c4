"""Messages between two processes of one host: any object, whose large arrays go through shared memory."""

from __future__ import annotations

import mmap
import pickle
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.runtime.devices.memory import Blocks, mapped
from headrace.utils.forks import Guard

# Bytes from which an array, or a message without its arrays, goes through shared memory.
LARGE = 1 << 15
ALIGNED = 64
LENGTH = 8


@dataclass(frozen=True)
class Head:
    """What a message begins with.

    Attributes:
        inline: the bytes that follow.
        block: the block with what is large, None where nothing is; or, of a message without bytes, one to give back.
        size: of the block, where its file comes along; 0 where the reader has it.
        places: where what is large lies in the block: begin and end of the message itself, then of each array.
    """

    inline: int
    block: int | None = None
    size: int = 0
    places: tuple[tuple[int, int], ...] = ()


class Message:
    """What came. Its large arrays are views of the sender's block until it is released."""

    def __init__(self, value: Any, channel: Channel, block: int | None) -> None:
        """`block` is what it lies in."""
        self.value, self._channel, self._block = value, channel, block

    def release(self) -> None:
        """Let the sender write over the arrays: nothing reads them any more."""
        if self._block is not None:
            self._channel.give_back(self._block)
            self._block = None


class Channel:
    """One end of a pair of sockets. Any thread may send, one receives."""

    def __init__(self, end: socket.socket) -> None:
        """Take the end over."""
        self._socket, self._sending = end, Guard()
        self._blocks, self._theirs = Blocks(), dict[int, mmap.mmap]()

    def send(self, value: Any) -> None:
        """Send an object that pickles.

        Raises:
            OSError: the other process is gone.
        """
        large: list[pickle.PickleBuffer] = []

        def inline(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes < LARGE:
                return True
            large.append(buffer)
            return False

        body = pickle.dumps(value, protocol=5, buffer_callback=inline)
        if len(body) < LARGE and not large:
            self._write(Head(len(body)), body)
            return
        begin, places = 0, []
        parts = [memoryview(body), *(buffer.raw() for buffer in large)]
        for part in parts:
            places.append((begin, begin + part.nbytes))
            begin = -(-(begin + part.nbytes) // ALIGNED) * ALIGNED
        block = self._blocks.take(begin)
        held = np.frombuffer(block.memory, np.uint8)
        for part, (start, end) in zip(parts, places, strict=True):
            held[start:end] = np.frombuffer(part, np.uint8)
        del held
        with self._sending.lock:
            new, block.told = not block.told, True
            self._write(Head(0, block.number, block.size if new else 0, tuple(places)), b"", block.file if new else -1)
            block.close()  # what is mapped here and there needs no file

    def give_back(self, block: int) -> None:
        """Tell the sender that one of its blocks is read; a sender that is gone needs none."""
        with suppress(OSError):
            self._write(Head(0, block), b"")

    def receive(self, copied: bool = False) -> Message:
        """The next message; waits for it.

        Args:
            copied: its arrays are the receiver's own, and there is nothing to release.

        Raises:
            EOFError: the other process is gone.
        """
        while True:
            head, file = self._read_head()
            if head.block is None:
                return Message(pickle.loads(self._read(head.inline)), self, None)
            if not head.places:
                self._blocks.give_back(head.block)
                continue
            if file >= 0:
                self._theirs[head.block] = mapped(file, head.size)
            whole = memoryview(self._theirs[head.block])
            body, *arrays = [whole[begin:end] for begin, end in head.places]
            value = pickle.loads(body, buffers=map(bytearray, arrays) if copied else arrays)
            message = Message(value, self, head.block)
            if copied:
                message.release()
            return message

    def close(self) -> None:
        """Hang up: the other end reads no more, and whoever waits here is told."""
        self._blocks.close()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def leave(self) -> None:
        """In a forked child, let go of the parent's end, which would else stay open as long as the child lives."""
        self._socket.close()

    def _write(self, head: Head, body: bytes, file: int = -1) -> None:
        told = pickle.dumps(head)
        begin = len(told).to_bytes(LENGTH, "little") + told
        with self._sending.lock:
            if file >= 0:
                sent = socket.send_fds(self._socket, [begin], [file])
                self._socket.sendall(begin[sent:])
            else:
                self._socket.sendall(begin)
            self._socket.sendall(body)

    def _read_head(self) -> tuple[Head, int]:
        try:
            begin, files, *_ = socket.recv_fds(self._socket, LENGTH, 1)
        except OSError as error:  # it was closed here, or reset there
            raise EOFError from error
        if not begin:
            raise EOFError
        begin += self._read(LENGTH - len(begin))
        head: Head = pickle.loads(self._read(int.from_bytes(begin, "little")))
        return head, files[0] if files else -1

    def _read(self, count: int) -> bytearray:
        held = bytearray(count)
        view, read = memoryview(held), 0
        while read < count:
            try:
                got = self._socket.recv_into(view[read:])
            except OSError as error:
                raise EOFError from error
            if not got:
                raise EOFError
            read += got
        return held
