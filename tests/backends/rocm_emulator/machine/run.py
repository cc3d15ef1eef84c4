"""Waves to their end: those at one place execute together, the ones furthest behind first, so that they meet again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.rocm_emulator.isa.decode import Instruction
from tests.backends.rocm_emulator.machine.faults import Fault, WaitFault
from tests.backends.rocm_emulator.machine.program import JUMPS_IF, READ_BY_JUMPS, Block
from tests.backends.rocm_emulator.machine.state import Waves
from tests.backends.rocm_emulator.machine.waits import Waits

Array = NDArray[Any]
MOST = 50_000_000  # instructions of one wave: past that the program has no end


@dataclass
class Group:
    """Waves at one address."""

    active: Array
    waits: Waits


@dataclass
class Retired:
    """What was executed.

    Attributes:
        waves: instructions, each counted once for every wave that executed it.
        names: the same by block: how often each was executed, by any number of waves.
    """

    waves: int = 0
    blocks: Counter[int] = field(default_factory=Counter)

    def __iadd__(self, other: Retired) -> Retired:
        """Both together."""
        self.waves += other.waves
        self.blocks += other.blocks
        return self


def run(waves: Waves, blocks: dict[int, Block], entry: int, start: Waits) -> Retired:
    """Execute until every wave has ended.

    Raises:
        Fault: a program did what no program may; the message names the instruction.
    """
    running = {entry: Group(np.ones(waves.count, bool), start)}
    waiting: dict[int, Group] = {}
    ended = np.zeros(waves.count, bool)
    retired = Retired()
    while running or waiting:
        if not running:
            running, waiting = _released(waves, waiting, ended)
        at = min(running)
        group, block = running.pop(at), blocks[at]
        waves.activate(group.active, group.waits)
        _execute(waves, block)
        retired.waves += block.size * int(group.active.sum())
        retired.blocks[at] += 1
        if retired.waves > MOST * waves.count:
            raise Fault(f"no end after {retired.waves:,} instructions")
        _leave(waves, block, group, running, waiting, ended)
    return retired


def _execute(waves: Waves, block: Block) -> None:
    waits = waves.waits
    for step, touched, instruction in block.steps:
        if waits.pending and not waits.pending.isdisjoint(touched):
            raise WaitFault(f"{instruction} uses {_named(waits.pending & touched)}, which a load may still fill")
        try:
            step(waves)
        except Fault as fault:
            raise type(fault)(f"{instruction}: {fault}") from fault


def _named(registers: frozenset[int]) -> str:
    return ", ".join(f"v{one}" if one < 1000 else f"s{one - 1000}" for one in sorted(registers))


def _leave(
    waves: Waves, block: Block, group: Group, running: dict[int, Group], waiting: dict[int, Group], ended: Array
) -> None:
    """Waves go where the block's last instruction sends them."""
    last = block.last
    if last is None:
        _arrive(running, block.after, group)
    elif last.name == "s_endpgm":
        ended |= group.active
    elif last.name == "s_barrier":
        _at_barrier(group.waits, last)
        _arrive(waiting, block.after, group)
    else:
        if not group.waits.pending.isdisjoint(READ_BY_JUMPS.get(last.name, frozenset())):
            raise WaitFault(f"{last} reads VCC, which a load may still fill")
        taken = group.active & JUMPS_IF[last.name](waves)
        stays = group.active & ~taken
        if taken.any():
            _arrive(running, block.target, Group(taken, group.waits.copy()))
        if stays.any():
            _arrive(running, block.after, Group(stays, group.waits))


def _at_barrier(waits: Waits, barrier: Instruction) -> None:
    """Who comes to a barrier has waited for what it wrote to local memory, or others may not see it behind."""
    if any(not unordered for _, unordered in waits.scalar):
        raise WaitFault(f"{barrier} is reached with accesses to local memory under way")


def _arrive(groups: dict[int, Group], address: int, group: Group) -> None:
    there = groups.get(address)
    if there is None:
        groups[address] = group
    else:
        groups[address] = Group(there.active | group.active, there.waits.joined(group.waits))


def _released(waves: Waves, waiting: dict[int, Group], ended: Array) -> tuple[dict[int, Group], dict[int, Group]]:
    """The waves of those workgroups of which every wave waits or has ended.

    Raises:
        Fault: of no workgroup all do.
    """
    here = np.zeros(waves.count, bool)
    for group in waiting.values():
        here |= group.active
    missing = np.unique(waves.group[~(here | ended)])
    free = here & ~np.isin(waves.group, missing)
    if not free.any():
        raise Fault("every wave waits for another")
    waves.local.forget(np.unique(waves.group[free]))
    released = {at: Group(group.active & free, group.waits.copy()) for at, group in waiting.items()}
    held = {at: Group(group.active & ~free, group.waits) for at, group in waiting.items()}
    return _some(released), _some(held)


def _some(groups: dict[int, Group]) -> dict[int, Group]:
    return {at: group for at, group in groups.items() if group.active.any()}
