"""Memory of bytes: global memory, where everything that is allocated has its own place, and what a place holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.rocm_emulator.machine.faults import Fault, MemoryFault, RaceFault

Array = NDArray[Any]
BASE = 0x7F00_0000_0000
GAP = 4096  # bytes that nobody owns, between two that somebody does


class Memory:
    """Bytes from an address on.

    An access must lie within what is allocated, every byte of it.
    """

    def __init__(self, base: int = BASE) -> None:
        """Empty."""
        self.base = base
        self.bytes = np.zeros(1 << 20, np.uint8)
        self.owned = np.zeros(1 << 20, bool)
        self._end = GAP

    def allocate(self, size: int) -> int:
        """The address of so many bytes."""
        at = self._end
        self._end = (at + size + 2 * GAP - 1) // GAP * GAP
        if self._end > len(self.bytes):
            more = max(self._end, 2 * len(self.bytes)) - len(self.bytes)
            self.bytes = np.concatenate([self.bytes, np.zeros(more, np.uint8)])
            self.owned = np.concatenate([self.owned, np.zeros(more, bool)])
        self.owned[at : at + size] = True
        return self.base + at

    def put(self, address: int, data: bytes | Array) -> None:
        """Write bytes from the host."""
        raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        self.bytes[address - self.base :][: len(raw)] = raw

    def get(self, address: int, size: int) -> Array:
        """A copy of bytes for the host."""
        return self.bytes[address - self.base :][:size].copy()

    def load(self, addresses: Array, size: int) -> Array:
        """`size` bytes from each address: uint32 [accesses, words], the last word filled with zeros."""
        at = self._places(addresses, size)
        if size % 4 == 0 and not (at & 3).any():
            return self.bytes.view(np.uint32)[(at >> 2)[:, None] + np.arange(size // 4)]
        found = np.zeros((len(at), (size + 3) // 4 * 4), np.uint8)
        found[:, :size] = self.bytes[at[:, None] + np.arange(size)]
        return found.view(np.uint32)

    def store(self, addresses: Array, data: Array, size: int) -> None:
        """The first `size` bytes of each row of words; where two lanes write one place, the last one's stays."""
        at = self._places(addresses, size)
        if size % 4 == 0 and not (at & 3).any():
            self.bytes.view(np.uint32)[(at >> 2)[:, None] + np.arange(size // 4)] = data
        else:
            self.bytes[at[:, None] + np.arange(size)] = np.ascontiguousarray(data).view(np.uint8)[:, :size]

    def _places(self, addresses: Array, size: int) -> Array:
        at = addresses.astype(np.int64) - self.base
        inside = (at >= 0) & (at + size <= len(self.bytes))
        if inside.all():
            inside = self.owned[at] & self.owned[at + (size - 1)]
        if not inside.all():
            wrong = int(addresses[np.argmin(inside)])
            raise MemoryFault(f"{size} bytes at {wrong:#x}, which nobody allocated ({int((~inside).sum())} lanes)")
        return at


class Local(Memory):
    """The local memory of many workgroups, each `size` bytes, and who used what since the last barrier."""

    def __init__(self, groups: int, size: int) -> None:
        """All zeros."""
        self.base, self.size = 0, (size + 3) // 4 * 4
        total = max(4, groups * self.size)
        self.bytes = np.zeros(total, np.uint8)
        self.owned = np.ones(total, bool)
        # By word: the wave that wrote it, and the wave that read it; NOBODY, or SEVERAL.
        self.written = np.full(total // 4, NOBODY, np.int32)
        self.read = np.full(total // 4, NOBODY, np.int32)

    def forget(self, groups: Array) -> None:
        """A barrier: what workgroups did so far lies in order."""
        words = self.size // 4
        for users in (self.written, self.read):
            users[: len(users) // max(1, words) * words].reshape(-1, max(1, words))[groups] = NOBODY

    def reads(self, addresses: Array, size: int, waves: Array) -> None:
        """Note a read.

        Raises:
            RaceFault: another wave wrote there and no barrier came between.
        """
        words, who = self._words(addresses, size, waves)
        if self.conflict(self.written[words], who).any():
            raise race("reads", "wrote", words, self.conflict(self.written[words], who), self.written)
        self._note(self.read, words, who)

    def writes(self, addresses: Array, size: int, waves: Array, data: Array) -> None:
        """Note a write; one that changes nothing is no race.

        Raises:
            RaceFault: another wave read or wrote there and no barrier came between.
        """
        words, who = self._words(addresses, size, waves)
        for users, did in ((self.written, "wrote"), (self.read, "read")):
            conflict = self.conflict(users[words], who)
            if conflict.any():
                changed = np.repeat((self.load(addresses, size) != data).any(1), len(words) // len(addresses))
                if (conflict & changed).any():
                    raise race("writes", did, words, conflict & changed, users)
        self._note(self.written, words, who)

    @staticmethod
    def conflict(users: Array, who: Array) -> Array:
        """Where somebody else was."""
        return (users != NOBODY) & (users != who)

    @staticmethod
    def _words(addresses: Array, size: int, waves: Array) -> tuple[Array, Array]:
        count = (size + 3) // 4
        words = ((addresses.astype(np.int64) >> 2)[:, None] + np.arange(count)).ravel()
        return words, np.repeat(waves, count)

    @staticmethod
    def _note(users: Array, words: Array, who: Array) -> None:
        before = users[words]
        users[words] = who
        mixed = words[Local.conflict(before, who) | (users[words] != who)]
        users[mixed] = SEVERAL


NOBODY, SEVERAL = -1, -2


def race(does: str, did: str, words: Array, where: Array, users: Array) -> Fault:
    """The error."""
    word = int(words[np.argmax(where)])
    other = int(users[word])
    whom = "several waves" if other == SEVERAL else f"wave {other}"
    return RaceFault(f"a wave {does} the local word {word:#x} that {whom} {did}, with no barrier between")
