"""The lines of a stream, as many at a time as are there: who writes one and waits for its answer gets it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from select import select
from typing import IO

PIECE = 1 << 16
# Seconds without a byte after which nothing more is on its way: those who write on and on take far less.
PAUSE = 0.02


def waiting(stream: IO[bytes], most: int) -> Iterator[list[bytes]]:
    """The lines without their ends: of those that are there, at least one, which is waited for, and `most` at most."""
    whole: list[bytes] = []
    begun: list[bytes] = []  # the pieces of a line whose end is still to come
    for piece in _pieces(stream):
        *ended, rest = piece.split(b"\n")
        if ended:
            whole += [b"".join((*begun, ended[0])), *ended[1:]]
            begun = []
        begun += [rest] if rest else []
        ready = len(whole) if not piece else len(whole) // most * most
        yield from _lists(whole[:ready], most)
        del whole[:ready]
    yield from _lists([*whole, b"".join(begun)] if begun else whole, most)


def _lists(lines: list[bytes], most: int) -> Iterator[list[bytes]]:
    rest = iter(lines)
    while part := list(islice(rest, most)):
        yield part


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    """What is read, as it comes, and an empty piece at each pause."""
    try:
        number = stream.fileno()
    except io.UnsupportedOperation:  # it lies in memory
        yield stream.read()
        return
    while True:
        if not select([number], [], [], PAUSE)[0]:
            yield b""
            select([number], [], [])
        if not (piece := stream.read1(PIECE)):  # type: ignore[attr-defined] # of every buffered reader
            return
        yield piece
