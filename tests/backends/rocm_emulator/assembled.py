# mypy: disable-error-code="import-not-found, import-untyped"
"""Instructions by name, assembled by the decoder's own encoder and executed: what known vectors are tried by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.backends.rocm_emulator.isa.decode import decode
from tests.backends.rocm_emulator.machine.memory import Local, Memory
from tests.backends.rocm_emulator.machine.program import blocks
from tests.backends.rocm_emulator.machine.run import run
from tests.backends.rocm_emulator.machine.state import Waves
from tests.backends.rocm_emulator.machine.waits import Waits

REGISTERS, ACCUMULATORS = 128, 96


def code(*instructions: Any) -> bytes:
    """Their bytes, and an end."""
    from tinygrad.runtime.autogen.amd.cdna import ins

    return b"".join(one.to_bytes() for one in (*instructions, ins.s_endpgm()))


def executed(
    *instructions: Any,
    vector: Mapping[int, Any] | None = None,
    scalar: Mapping[int, Any] | None = None,
    waves: int = 1,
    local: int = 0,
    memory: Memory | None = None,
) -> Waves:
    """The registers after a workgroup of so many waves has executed them.

    Args:
        vector: what registers hold before: numbers, or [waves, lanes].
        scalar: the same of scalar registers, [waves].
        local: bytes of local memory.
    """
    group = np.zeros(waves, np.int64)
    made = Waves(waves, REGISTERS, 0, memory or Memory(), Local(1, local), group)
    for register, value in (vector or {}).items():
        made.vector[register] = _bits(value)
    for register, value in (scalar or {}).items():
        made.scalar[register] = _bits(value)
    program = code(*instructions)
    with np.errstate(all="ignore"):
        run(made, blocks(decode(program, 0, 0, len(program)), ACCUMULATORS), 0, Waits())
    return made


def _bits(value: Any) -> Any:
    """As uint32: floats as float32 has them."""
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return array.astype(np.float32).view(np.uint32)
    return array.astype(np.int64).astype(np.uint32)
