"""Memory that two processes share: blocks that one writes and the other reads, each used again once it was read."""

from __future__ import annotations

import mmap
import os
from threading import Condition

# A block has room for a row of vectors, and is used again for the next.
LEAST = 1 << 20
# Blocks that wait to be read hold so many bytes at most, one alone excepted: who writes faster waits.
MOST = 1 << 29


class Block:
    """Some memory without a name: it goes with the last process that has it.

    A file in memory, not one of /dev/shm, of which containers have little.
    """

    def __init__(self, number: int, size: int) -> None:
        """Make it."""
        self.number, self.size = number, size
        self.file = os.memfd_create(f"headrace-{number}", os.MFD_CLOEXEC)
        os.ftruncate(self.file, size)
        self.memory = mmap.mmap(self.file, size)
        self.told = False  # whether the other process has it

    def close(self) -> None:
        """Give up this process's hold on the file; what is mapped goes with its last view."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def mapped(file: int, size: int) -> mmap.mmap:
    """A block of another process, by its file, which is closed."""
    try:
        return mmap.mmap(file, size)
    finally:
        os.close(file)


class Blocks:
    """The blocks that this process writes."""

    def __init__(self) -> None:
        """Have none yet."""
        self._all: list[Block] = []
        self._free: list[Block] = []
        self._changed = Condition()
        self._waiting = 0  # bytes of blocks that are yet to be read
        self._over = False

    def take(self, size: int) -> Block:
        """A block of so many bytes at least, which nobody reads; waits where the reader is far behind.

        Raises:
            BrokenPipeError: there is no reader any more.
        """
        with self._changed:
            while self._waiting and self._waiting + size > MOST and not self._over:
                self._changed.wait()
            if self._over:
                raise BrokenPipeError
            fitting = [block for block in self._free if block.size >= size]
            if fitting:
                found = min(fitting, key=lambda block: block.size)
                self._free.remove(found)
            else:
                found = Block(len(self._all), max(LEAST, 1 << (size - 1).bit_length()))
                self._all.append(found)
            self._waiting += found.size
            return found

    def give_back(self, number: int) -> None:
        """The reader is done with a block."""
        with self._changed:
            self._free.append(self._all[number])
            self._waiting -= self._all[number].size
            self._changed.notify_all()

    def close(self) -> None:
        """Let who waits for a block know that there is no reader."""
        with self._changed:
            self._over = True
            for block in self._all:
                block.close()
            self._changed.notify_all()


def mapped_privately(file: int, size: int) -> mmap.mmap:
    """The file as it is; what is written here nobody else sees."""
    return mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
