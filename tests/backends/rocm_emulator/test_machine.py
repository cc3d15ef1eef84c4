# mypy: disable-error-code="import-not-found, import-untyped"
"""What the machine refuses: memory that nobody owns, registers used too early, local memory without a barrier."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from tests.backends.rocm_emulator.isa import decode

if importlib.util.find_spec("tinygrad") is None:
    pytest.skip(decode.MISSING, allow_module_level=True)

from tinygrad.renderer.amd.dsl import EXEC, VCC, s, v
from tinygrad.runtime.autogen.amd.cdna import ins

from tests.backends.rocm_emulator.assembled import executed
from tests.backends.rocm_emulator.machine.faults import Fault, MemoryFault, RaceFault, WaitFault
from tests.backends.rocm_emulator.machine.memory import Memory

LANE = np.arange(64)
ALL, LOCAL_ONLY, VECTOR_ONLY = 0x0070, 0xC07F, 0x0F70  # of s_waitcnt: for everything, and for one counter alone


def held(numbers: np.ndarray) -> tuple[Memory, dict[int, object]]:
    """Memory with some numbers, and each lane's address of its own in v0 and v1."""
    memory = Memory()
    address = memory.allocate(numbers.nbytes)
    memory.put(address, numbers.tobytes())
    own = address + 4 * LANE[None]
    return memory, {0: own & 0xFFFF_FFFF, 1: own >> 32}


def load(register: int) -> object:
    """A word from the address in v0 and v1."""
    made = ins.global_load_dword(v[register], v[0:1], v[0])
    made._raw |= 0x7F << 48  # no scalar address
    return made


def test_a_load_that_is_waited_for() -> None:
    numbers = np.arange(64, dtype=np.uint32) * 3
    memory, vector = held(numbers)
    waves = executed(
        load(4), ins.s_waitcnt(VECTOR_ONLY), ins.v_add_u32_e32(v[5], 1, v[4]), vector=vector, memory=memory
    )
    assert (waves.vector[5][0] == numbers + 1).all()


def test_a_load_that_is_not_waited_for() -> None:
    memory, vector = held(np.zeros(64, np.uint32))
    with pytest.raises(WaitFault, match=r"v_add_u32 \(VOP2\) at 0xc uses v4, which a load may still fill"):
        executed(load(4), ins.s_waitcnt(LOCAL_ONLY), ins.v_add_u32_e32(v[5], 1, v[4]), vector=vector, memory=memory)


def test_loads_come_back_in_order() -> None:
    """One of two may be under way: the first is there, the second may not be."""
    memory, vector = held(np.zeros(64, np.uint32))
    one_left = ins.s_waitcnt(VECTOR_ONLY + 1)
    executed(load(4), load(5), one_left, ins.v_mov_b32_e32(v[6], v[4]), vector=vector, memory=memory)
    with pytest.raises(WaitFault, match="uses v5"):
        executed(load(4), load(5), one_left, ins.v_mov_b32_e32(v[6], v[5]), vector=vector, memory=memory)


def test_memory_that_nobody_allocated() -> None:
    memory, vector = held(np.zeros(63, np.uint32))
    with pytest.raises(MemoryFault, match=r"4 bytes at 0x7f0000\w+, which nobody allocated \(1 lanes\)"):
        executed(load(4), vector=vector, memory=memory)


def test_lanes_that_do_not_execute_load_nothing() -> None:
    memory, vector = held(np.full(63, 7, np.uint32))
    masked = (ins.v_cmp_gt_u32_e32(63, v[2]), ins.s_and_saveexec_b64(s[4:5], VCC))
    waves = executed(
        *masked, load(4), ins.s_mov_b64(EXEC, s[4:5]), vector=vector | {2: LANE[None], 4: 1}, memory=memory
    )
    assert waves.vector[4][0].tolist() == [7] * 63 + [1]


def exchange(*between: object) -> object:
    """Two waves write their local words and read each other's."""
    number = LANE + 64 * np.arange(2)[:, None]
    return executed(
        ins.ds_write_b32(addr=v[0], data0=v[2]), *between, ins.ds_read_b32(vdst=v[3], addr=v[1]),
        ins.s_waitcnt(LOCAL_ONLY), vector={0: 4 * number, 1: 4 * (127 - number), 2: 1000 + number}, waves=2, local=512,
    )  # fmt: skip


def test_local_memory_behind_a_barrier() -> None:
    waves = exchange(ins.s_waitcnt(LOCAL_ONLY), ins.s_barrier())
    assert waves.vector[3].ravel().tolist() == [1127 - lane for lane in range(128)]


def test_local_memory_without_a_barrier() -> None:
    with pytest.raises(RaceFault, match=r"ds_read_b32 .* wave \d wrote, with no barrier between"):
        exchange(ins.s_waitcnt(LOCAL_ONLY))


def test_a_barrier_before_what_was_written_is_there() -> None:
    with pytest.raises(WaitFault, match=r"s_barrier .* with accesses to local memory under way"):
        exchange(ins.s_barrier())


def test_local_memory_past_its_end() -> None:
    with pytest.raises(MemoryFault, match="4 local bytes at 0xfc, past the 128 of a workgroup"):
        executed(ins.ds_write_b32(addr=v[0], data0=v[0]), vector={0: 4 * LANE[None]}, local=128)


def test_waves_part_and_meet() -> None:
    """Each wave counts down from its own number; the ones that are done wait behind the loop for nobody."""
    loop = (
        ins.s_add_u32(s[2], s[2], 3), ins.s_sub_u32(s[0], s[0], 1), ins.s_cmp_lg_u32(s[0], 0),
        ins.s_cbranch_scc1(0xFFFC), ins.v_mov_b32_e32(v[1], s[2]),
    )  # fmt: skip
    waves = executed(*loop, scalar={0: np.array([1, 5, 2]), 2: 0}, waves=3)
    assert waves.vector[1][:, 0].tolist() == [3, 15, 6]


def test_a_program_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.backends.rocm_emulator.machine import run

    monkeypatch.setattr(run, "MOST", 1000)
    with pytest.raises(Fault, match="no end after"):
        executed(ins.s_branch(0xFFFF))


def test_an_instruction_that_is_not_modelled_is_refused() -> None:
    with pytest.raises(decode.UnknownInstructionError, match="global_atomic_add"):
        executed(ins.global_atomic_add(v[0], v[0:1], v[2]))
