"""A launch: arguments laid out as the metadata says, waves started as the hardware starts them, all executed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.backends.rocm_emulator import code_object
from tests.backends.rocm_emulator.code_object import CodeObject
from tests.backends.rocm_emulator.isa import decode
from tests.backends.rocm_emulator.machine.memory import Local, Memory
from tests.backends.rocm_emulator.machine.program import Block, blocks
from tests.backends.rocm_emulator.machine.run import Retired, run
from tests.backends.rocm_emulator.machine.state import LANES, Waves
from tests.backends.rocm_emulator.machine.waits import Waits

TOGETHER = 256  # waves that are executed side by side, a bound on memory
FORMATS = {
    "i32": "<i",
    "i64": "<q",
    "u32": "<I",
    "u64": "<Q",
    "fp32": "<f",
    "fp64": "<d",
    "i1": "<b",
    "i8": "<b",
    "i16": "<h",
}


@dataclass(frozen=True)
class Kernel:
    """A kernel that can be launched.

    Attributes:
        local: bytes of LDS of a workgroup.
        warps: waves of a workgroup.
    """

    code: CodeObject
    blocks: dict[int, Block]
    local: int
    warps: int


def kernel(binary: bytes, name: str, local: int, warps: int) -> Kernel:
    """Read and decode a code object.

    Args:
        local: bytes of LDS that the launch asks for.

    Raises:
        UnknownInstructionError: it holds an instruction that the emulator does not model.
    """
    code = code_object.read(binary, name)
    instructions = decode.decode(code.code, code.address, code.entry, code.end)
    with np.errstate(all="ignore"):
        made = blocks(instructions, code.accumulators)
    return Kernel(code, made, code.local + local, warps)


def launch(kernel: Kernel, grid: Sequence[int], arguments: Sequence[tuple[str, Any]]) -> Retired:
    """Execute a launch; the tensors among its arguments, on the CPU, hold afterwards what the kernel wrote.

    Args:
        grid: workgroups along x, y and z; missing ones are 1.
        arguments: Triton's type of each, without those that are constants, and its value: `("*bf16", tensor)`, ...

    Raises:
        Fault: the kernel did what no kernel may.
    """
    memory = Memory()
    storages: dict[int, tuple[int, Tensor]] = {}
    packed = bytearray(kernel.code.kernarg)
    given = [*arguments, *[("i64", 0)] * (len(kernel.code.arguments) - len(arguments))]  # Triton's own scratch memory
    for place, (kind, value) in zip(kernel.code.arguments, given, strict=True):
        if isinstance(value, Tensor):
            data = struct.pack("<Q", _address(memory, storages, value))
        else:
            data = struct.pack(FORMATS["i64" if kind.startswith("*") else kind], value)
        assert place.size == len(data), f"an argument of {kind} where the kernel has {place.size} bytes"
        packed[place.offset : place.offset + len(data)] = data
    kernarg = memory.allocate(len(packed))
    memory.put(kernarg, bytes(packed))
    retired = Retired()
    with np.errstate(all="ignore"):
        for groups in _batches([*grid, 1, 1][:3], max(1, TOGETHER // kernel.warps)):
            retired += _execute(kernel, memory, kernarg, bytes(packed), groups)
    for address, held in storages.values():
        held.copy_(torch.from_numpy(memory.get(address, held.numel())))
    return retired


def _address(memory: Memory, storages: dict[int, tuple[int, Tensor]], tensor: Tensor) -> int:
    """Where a tensor's first element lies; tensors that share memory share it there too."""
    storage = tensor.untyped_storage()
    key = storage.data_ptr()
    if key not in storages:
        data = torch.empty(0, dtype=torch.uint8).set_(storage)
        address = memory.allocate(data.numel())
        memory.put(address, data.numpy())
        storages[key] = (address, data)
    return storages[key][0] + int(tensor.storage_offset()) * tensor.element_size()


def _batches(grid: Sequence[int], count: int) -> Any:
    """The numbers of workgroups, [groups, 3], so many at a time."""
    x, y, z = grid
    every = np.stack(np.unravel_index(np.arange(x * y * z), (z, y, x)), 1)[:, ::-1].astype(np.uint32)
    for begin in range(0, len(every), count):
        yield every[begin : begin + count]


def _execute(kernel: Kernel, memory: Memory, kernarg: int, packed: bytes, groups: Any) -> Retired:
    """Some workgroups, from the state in which the hardware starts their waves."""
    code, warps = kernel.code, kernel.warps
    group = np.repeat(np.arange(len(groups)), warps)
    local = Local(len(groups), kernel.local)
    registers = max(code.registers, code.accumulators)
    waves = Waves(len(group), (registers + 15) // 8 * 8, code.private, memory, local, group)
    first, length = code.preload
    user = code.user
    waves.put_pair(user["kernarg"], np.full(len(group), kernarg, np.uint64))
    for place, word in enumerate(struct.unpack_from(f"<{length}I", packed, 4 * first)):
        waves.scalar[user["preloaded"] + place] = word
    at = user["end"]
    for axis in range(3):
        if code.groups[axis]:
            waves.scalar[at] = groups[group, axis]
            at += 1
    wave = np.arange(len(group)) % warps
    waves.vector[0] = wave[:, None] * LANES + np.arange(LANES)
    return run(waves, kernel.blocks, code.entry, Waits())
