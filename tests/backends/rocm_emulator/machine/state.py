"""The registers of many waves side by side, so that one NumPy call is an instruction of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.rocm_emulator.machine.memory import Local, Memory
from tests.backends.rocm_emulator.machine.waits import Waits

Array = NDArray[Any]
LANES = 64
VCC, M0, EXEC = 106, 124, 126
POISON = 0x7FC0_DEAD  # what a register holds that nobody wrote: no number, as a float
ALL = (1 << LANES) - 1


class Waves:
    """Some waves of one launch.

    Attributes:
        vector: [registers, waves, lanes] uint32, those for accumulators behind the others.
        scalar: [128, waves] uint32, VCC, M0 and EXEC among them.
        active: [waves] bool: those that execute what is executed now.
        mask: [waves, lanes] bool: their lanes that EXEC names; None where that is all lanes of all waves.
        waits: what they have under way.
    """

    def __init__(self, waves: int, registers: int, private: int, memory: Memory, local: Local, group: Array) -> None:
        """Registers that hold nothing.

        Args:
            private: bytes of its own that each lane has.
            group: [waves], each wave's workgroup, as `local` counts them.
        """
        self.count = waves
        self.vector = np.full((registers, waves, LANES), POISON, np.uint32)
        self.scalar = np.full((128, waves), POISON, np.uint32)
        self.scc = np.zeros(waves, bool)
        self.memory, self.local, self.group = memory, local, group
        self.private = np.zeros((waves, LANES, private), np.uint8)
        self.number = np.broadcast_to(np.arange(waves, dtype=np.int32)[:, None], (waves, LANES))
        self.local_base = np.broadcast_to((group * local.size).astype(np.uint64)[:, None], (waves, LANES))
        self.active = np.ones(waves, bool)
        self.everyone = True
        self.waits = Waits()
        self.put_pair(EXEC, np.full(waves, ALL, np.uint64))

    def activate(self, active: Array, waits: Waits) -> None:
        """From now on these waves execute."""
        self.active, self.everyone, self.waits = active, bool(active.all()), waits
        self.update()

    def update(self) -> None:
        """EXEC, or who is active, has changed."""
        lanes = self.lanes(EXEC)
        if not self.everyone:
            lanes = lanes & self.active[:, None]
        self.exec = lanes
        self.mask: Array | None = None if lanes.all() else lanes

    def pair(self, register: int) -> Array:
        """[waves] uint64."""
        low, high = self.scalar[register], self.scalar[register + 1]
        return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))

    def lanes(self, register: int) -> Array:
        """[waves, lanes] bool: a pair of scalar registers as a bit for each lane."""
        return np.unpackbits(self.pair(register).view(np.uint8).reshape(-1, 8), axis=1, bitorder="little").view(bool)

    def put(self, register: int, value: Array) -> None:
        """[waves] or one value, into a scalar register of those that are active."""
        if self.everyone:
            self.scalar[register] = value
        else:
            np.copyto(self.scalar[register], value, where=self.active)
        if register in (EXEC, EXEC + 1):
            self.update()

    def put_pair(self, register: int, value: Array) -> None:
        """[waves] uint64."""
        self.put(register + 1, (value >> np.uint64(32)).astype(np.uint32))
        self.put(register, value.astype(np.uint32))

    def put_lanes(self, register: int, value: Array) -> None:
        """[waves, lanes] bool: a bit for each lane that executes, and zeros."""
        packed = np.packbits(np.broadcast_to(value, (self.count, LANES)) & self.exec, axis=1, bitorder="little")
        self.put_pair(register, packed.view(np.uint64).ravel())

    def put_vector(self, register: int, value: Array) -> None:
        """[waves, lanes], or what broadcasts to it, into a vector register's lanes that execute."""
        if self.mask is None:
            self.vector[register] = value
        else:
            np.copyto(self.vector[register], value, where=self.mask)
