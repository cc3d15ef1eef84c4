# mypy: disable-error-code="import-not-found, import-untyped"
"""The function of each instruction: translated from AMD's pseudocode, or written here where that says it in words."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.backends.rocm_emulator.isa import functions
from tests.backends.rocm_emulator.isa.decode import Instruction, UnknownInstructionError
from tests.backends.rocm_emulator.isa.functions import Array
from tests.backends.rocm_emulator.isa.pseudocode import UnknownPseudocodeError, translate

# What the pseudocode leaves out: a quotient that needs no scale is passed on.
BEFORE = {"v_div_scale_f32": "D0.f32 = S0.f32;", "v_div_scale_f64": "D0.f64 = S0.f64;"}


@dataclass(frozen=True)
class Semantics:
    """What an instruction computes.

    Attributes:
        call: of the inputs in order; returns the outputs in order.
        outputs: `D0`, `SCC`, `VCC lane` (a bit for each lane), ...
    """

    call: Callable[..., tuple[Any, ...]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def of(instruction: Instruction) -> Semantics:
    """Of an instruction that computes in registers.

    Raises:
        UnknownInstructionError: AMD's pseudocode of it is missing, or says what the translation does not know.
    """
    if instruction.name in WRITTEN:
        return WRITTEN[instruction.name]
    return _translated(instruction.raw.op, instruction.name)


@functools.cache
def _translated(operation: Any, name: str) -> Semantics:
    from tinygrad.runtime.autogen.amd.cdna.str_pcode import PCODE

    if operation not in PCODE:
        raise UnknownInstructionError(f"AMD's manual gives no pseudocode of {name}")
    try:
        made = translate(PCODE[operation], name, BEFORE.get(name, ""))
    except UnknownPseudocodeError as error:
        raise UnknownInstructionError(f"the pseudocode of {name} is beyond the translation: {error}") from error
    names = functions.namespace()
    exec(compile(made.source, f"<pseudocode of {name}>", "exec"), names)
    return Semantics(names[name], made.inputs, made.outputs)


def _mad_u64_u32(S0: Array, S1: Array, S2: Array) -> tuple[Array, Array]:
    """The sum of 65 bits: 64 of them, and the carry."""
    product = S0.astype(np.uint64) * S1.astype(np.uint64)
    total = product + S2
    return total, total < product


def _mad_i64_i32(S0: Array, S1: Array, S2: Array) -> tuple[Array, Array]:
    product = S0.view(np.int32).astype(np.int64) * S1.view(np.int32).astype(np.int64)
    total = product + S2.view(np.int64)
    return total.view(np.uint64), (product < 0) ^ (S2.view(np.int64) < 0) ^ (total < 0)


def _perm_b32(S0: Array, S1: Array, S2: Array) -> tuple[Array]:
    """Each byte of the result is one of the eight of `{S0, S1}`, a sign of one, or a constant."""
    data = functions.together(S0, S1)
    result = np.zeros(np.broadcast(S0, S1, S2).shape, np.uint32)
    for place in range(0, 32, 8):
        select = (S2 >> np.uint32(place)) & np.uint32(0xFF)
        byte = (data >> ((select & np.uint32(7)).astype(np.uint64) * np.uint64(8))) & np.uint64(0xFF)
        signs = (
            data >> (((select - np.uint32(8)) & np.uint32(3)).astype(np.uint64) * np.uint64(16) + np.uint64(15))
        ) & np.uint64(1)
        told = np.where(
            select < 8, byte, np.where(select < 12, signs * np.uint64(0xFF), np.where(select == 12, 0, 0xFF))
        )
        result |= told.astype(np.uint32) << np.uint32(place)
    return (result,)


def _rndne_f32(S0: Array) -> tuple[Array]:
    """To the nearest whole number, to even ones between two; the manual's own sum rounds above 2^22."""
    return (np.rint(S0.view(np.float32)),)


WRITTEN = {
    "v_mad_u64_u32": Semantics(_mad_u64_u32, ("S0", "S1", "S2"), ("D0", "D1 lane")),
    "v_mad_i64_i32": Semantics(_mad_i64_i32, ("S0", "S1", "S2"), ("D0", "D1 lane")),
    "v_perm_b32": Semantics(_perm_b32, ("S0", "S1", "S2"), ("D0",)),
    "v_rndne_f32": Semantics(_rndne_f32, ("S0",), ("D0",)),
}
