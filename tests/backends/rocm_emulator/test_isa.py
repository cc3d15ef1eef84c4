# mypy: disable-error-code="import-not-found, import-untyped"
"""The decoder against LLVM's text, and instructions against what AMD's manual says of single values."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from tests.backends.rocm_emulator.isa import decode, text

if importlib.util.find_spec("tinygrad") is None:
    pytest.skip(decode.MISSING, allow_module_level=True)
if importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton: pip install triton", allow_module_level=True)

from tinygrad.renderer.amd.dsl import DPP, VCC, s, v
from tinygrad.runtime.autogen.amd.cdna import ins

from headrace.backends.kernels.compile import cross_compile
from tests.backends.kernels.test_attention import CASES
from tests.backends.rocm_emulator import code_object
from tests.backends.rocm_emulator.assembled import executed
from tests.backends.rocm_emulator.kernels import GFX942
from tests.gate import ours

NAN, INF = float("nan"), float("inf")


def compared(launch: Any) -> int:
    """How many instructions of a kernel the decoder and LLVM agree on, one by one; all of them."""
    made = cross_compile.compiled(launch, GFX942)
    code = code_object.read(made.asm["hsaco"], launch.name)
    found = decode.decode(code.code, code.address, code.entry, code.end)
    told = text.written(made.asm["amdgcn"], behind_preload=bool(code.preload[1]))
    assert [text.read(one) for one in found] == told
    return len(found)


def test_the_decoder_reads_what_llvm_wrote() -> None:
    assert compared(dict(ours.others())["list_tiles"]) > 500
    assert compared(ours.attention(CASES["bidirectional"], ours.BF16, GFX942)) > 1000


@pytest.mark.slow(reason="two kernels are compared by default")
def test_the_decoder_reads_what_llvm_wrote_of_every_kernel() -> None:
    launches = [ours.attention(CASES[name], dtype, GFX942) for name, dtype in ours.ATTENTIONS]
    for _, dtype, case in ours.paged_cases(GFX942):
        launches += ours.paged_attention(case, dtype, GFX942)
    launches += [launch for _, launch in ours.others()] + [ours.to_eighths("gelu", False)]
    assert sum(map(compared, launches)) > 40_000


def test_an_instruction_that_is_none_is_refused() -> None:
    with pytest.raises(decode.UnknownInstructionError, match="the word 0xffffffff at 0x40"):
        decode.decode(b"\xff" * 8, 0x40, 0x40, 0x48)


ONE = 0x3F80_0000
# An instruction of v0, v1 and v2 (or s0 and s1) that writes v3 (or s2), what those hold, and what it makes.
VECTORS: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
    "v_bfe_i32": (ins.v_bfe_i32_e64(v[3], v[0], v[1], v[2]), (0x0000_0F80, 7, 5), -1),
    "v_bfe_i32 of no bits": (ins.v_bfe_i32_e64(v[3], v[0], v[1], v[2]), (0xFFFF, 0, 0), 0),
    "v_bfe_u32": (ins.v_bfe_u32_e64(v[3], v[0], v[1], v[2]), (0xABCD_1234, 8, 8), 0x12),
    "v_bfi_b32": (ins.v_bfi_b32_e64(v[3], v[0], v[1], v[2]), (0xFF00FF00, 0x11223344, 0x55667788), 0x11663388),
    "v_alignbit_b32": (ins.v_alignbit_b32_e64(v[3], v[0], v[1], v[2]), (0x1, 0x8000_0001, 1), 0xC000_0000),
    "v_perm_b32": (ins.v_perm_b32_e64(v[3], v[0], v[1], v[2]), (0x03020100, 0x87868584, 0x0C_05_0B_09), 0x00_01_00_FF),
    "v_med3_i32": (ins.v_med3_i32_e64(v[3], v[0], v[1], v[2]), (-40, -20, 20), -20),
    "v_ashrrev_i32": (ins.v_ashrrev_i32_e64(v[3], v[0], v[1]), (33, -8), -4),
    "v_mul_hi_i32": (ins.v_mul_hi_i32(v[3], v[0], v[1]), (-2, 3), -1),
    "v_mad_i32_i24": (ins.v_mad_i32_i24_e64(v[3], v[0], v[1], v[2]), (0x0180_0003, -2, 5), 0x00FF_FFFF),
    "v_xad_u32": (ins.v_xad_u32_e64(v[3], v[0], v[1], v[2]), (0b1100, 0b1010, 1), 0b0111),
    "v_ffbh_u32": (ins.v_ffbh_u32_e32(v[3], v[0]), (0x0001_0000,), 15),
    "v_ffbh_u32 of nothing": (ins.v_ffbh_u32_e32(v[3], v[0]), (0,), -1),
    "v_ffbh_i32": (ins.v_ffbh_i32_e32(v[3], v[0]), (-2,), 31),
    "v_bfrev_b32": (ins.v_bfrev_b32_e32(v[3], v[0]), (0b1011,), 0xD000_0000),
    "v_cvt_u32_f32 of a negative": (ins.v_cvt_u32_f32_e32(v[3], v[0]), (-3.7,), 0),
    "v_cvt_i32_f32 towards zero": (ins.v_cvt_i32_f32_e32(v[3], v[0]), (-3.7,), -3),
    "v_cvt_i32_f32 of no number": (ins.v_cvt_i32_f32_e32(v[3], v[0]), (NAN,), 0),
    "v_cvt_i32_f32 of too much": (ins.v_cvt_i32_f32_e32(v[3], v[0]), (1e20,), 0x7FFF_FFFF),
    "v_cvt_f16_f32": (ins.v_cvt_f16_f32_e32(v[3], v[0]), (1.0,), 0x3C00),
    "v_rndne_f32": (ins.v_rndne_f32_e32(v[3], v[0]), (2.5,), 2.0),
    "v_rndne_f32 of a large one": (ins.v_rndne_f32_e32(v[3], v[0]), (8388609.0,), 8388609.0),
    "v_floor_f32": (ins.v_floor_f32_e32(v[3], v[0]), (-0.5,), -1.0),
    "v_trunc_f32": (ins.v_trunc_f32_e32(v[3], v[0]), (-1.5,), -1.0),
    "v_ldexp_f32": (ins.v_ldexp_f32(v[3], v[0], v[1]), (3.0, np.int64(-4)), 0.1875),
    "v_max_f32 of no number": (ins.v_max_f32_e32(v[3], v[0], v[1]), (NAN, 2.0), 2.0),
    "v_max3_f32": (ins.v_max3_f32_e64(v[3], v[0], v[1], v[2]), (1.0, 7.0, -2.0), 7.0),
    "v_fma_f32 rounds once": (
        ins.v_fma_f32_e64(v[3], v[0], v[1], v[2]), (1 + 2.0**-23, 1 + 2.0**-23, -1 - 2.0**-22), 2.0**-46,
    ),
    "v_exp_f32": (ins.v_exp_f32_e32(v[3], v[0]), (-3.0,), 0.125),
    "v_log_f32": (ins.v_log_f32_e32(v[3], v[0]), (8.0,), 3.0),
    "v_div_fixup_f32 by zero": (ins.v_div_fixup_f32_e64(v[3], v[0], v[1], v[2]), (5.0, 0.0, -1.0), -INF),
    "v_pack_b32_f16": (ins.v_pack_b32_f16(v[3], v[0], v[1]), (0xAAAA_1111, 0xBBBB_2222), 0x2222_1111),
    "v_lshlrev_b32 by a literal": (ins.v_lshlrev_b32_e32(v[3], 4, v[0]), (3,), 48),
    "v_add_f32 of a constant": (ins.v_add_f32_e32(v[3], -0.5, v[0]), (2.0,), 1.5),
    "s_bfe_i32": (ins.s_bfe_i32(s[2], s[0], s[1]), (0x8000_0000, 31 | 1 << 16), -1),
    "s_abs_i32": (ins.s_abs_i32(s[2], s[0]), (-7,), 7),
    "s_mul_hi_u32": (ins.s_mul_hi_u32(s[2], s[0], s[1]), (0xFFFF_FFFF, 2), 1),
    "s_brev_b32": (ins.s_brev_b32(s[2], s[0]), (1,), 0x8000_0000),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_known_values(name: str) -> None:
    instruction, given, wanted = VECTORS[name]
    scalar = name.startswith("s_")
    held = dict(enumerate(given))
    waves = executed(instruction, scalar=held) if scalar else executed(instruction, vector=held)
    found = waves.scalar[2] if scalar else waves.vector[3]
    if isinstance(wanted, float):
        assert (found.view(np.float32) == np.float32(wanted)).all(), found.view(np.float32)
    else:
        assert (found == np.uint32(wanted & 0xFFFF_FFFF)).all(), hex(int(found.flat[0]))


def test_a_carry_goes_from_word_to_word() -> None:
    """Of lane 3 alone: 64 bits added as two words."""
    low = np.zeros((1, 64), np.int64)
    low[0, 3] = 0xFFFF_FFFF
    waves = executed(ins.v_add_co_u32_e32(v[4], 1, v[0]), ins.v_addc_co_u32_e32(v[5], 0, v[1]), vector={0: low, 1: 7})
    assert waves.vector[4][0, 3] == 0
    assert waves.vector[5][0].tolist() == [8 if lane == 3 else 7 for lane in range(64)]
    assert waves.pair(106)[0] == 0  # the second sum carries nothing


def test_products_of_64_bits() -> None:
    waves = executed(
        ins.v_mad_u64_u32(v[4:5], VCC, v[0], v[1], v[2:3]),
        vector={0: 0xFFFF_FFFF, 1: 0xFFFF_FFFF, 2: 1, 3: 0xFFFF_FFFE},
    )
    total = 0xFFFF_FFFF**2 + (0xFFFF_FFFE << 32 | 1)
    assert int(waves.vector[4][0, 0]) | int(waves.vector[5][0, 0]) << 32 == total & ((1 << 64) - 1)
    assert waves.pair(106)[0] == (1 << 64) - 1, "every lane carries"


def test_packed_floats_select_and_negate() -> None:
    """`v_pk_fma_f32` with both words of a product from the low one, and the second word of the sum negated."""
    packed = ins.v_pk_fma_f32(v[6:7], v[0:1], v[2:3], v[4:5], opsel_hi=0b10, opsel_hi2=1, neg_hi=0b100)
    waves = executed(packed, vector={0: 2.0, 1: 100.0, 2: 3.0, 3: 5.0, 4: 1.0, 5: 1.0})
    assert waves.vector[6].view(np.float32)[0, 0] == 2.0 * 3.0 + 1.0
    assert waves.vector[7].view(np.float32)[0, 0] == 2.0 * 5.0 - 1.0


def test_halves_are_shifted_each_by_its_own() -> None:
    """And by the low half of another, both of them."""
    word, by = 0x8001_0003, 0x0004_0011  # 17 bits are one
    packed = [ins.v_pk_lshlrev_b16(v[3], v[0], v[1], opsel_hi=which) for which in (0b11, 0b10)]
    made = [int(executed(one, vector={0: by, 1: word}).vector[3][0, 0]) for one in packed]
    assert made == [0x0010_0006, 0x0002_0006]


LANE = np.arange(64)[None]
MOVES = {
    "quad_perm:[1,0,3,2]": (0xB1, LANE ^ 1),
    "row_shr:1": (0x111, np.where(LANE % 16 == 0, -1, LANE - 1)),
    "row_ror:8": (0x128, LANE // 16 * 16 + (LANE + 8) % 16),
    "row_half_mirror": (0x141, LANE // 8 * 8 + 7 - LANE % 8),
    "row_bcast:15": (0x142, np.where(LANE < 16, -1, LANE // 16 * 16 - 1)),
    "row_bcast:31": (0x143, np.where(LANE < 32, -1, 31)),
}


@pytest.mark.parametrize("name", MOVES)
def test_lanes_move(name: str) -> None:
    """What comes from nowhere is zero."""
    control, origin = MOVES[name]
    moved = ins.VOP1_DPP16(ins.VOP1Op.V_MOV_B32, v[3], DPP, vsrc0=v[0], dpp=control, bc=1, row_mask=15, bank_mask=15)
    waves = executed(moved, vector={0: LANE + 1})
    assert (waves.vector[3] == origin + 1).all()


@pytest.mark.parametrize(("name", "m", "k"), [("f16", 32, 8), ("bf16", 32, 8), ("f32", 32, 2), ("f32", 16, 4)])
def test_where_the_elements_of_a_product_lie(name: str, m: int, k: int) -> None:
    """By AMD's matrix instruction calculator: lane and register of each element, one by one."""
    generator = np.random.default_rng(0)
    a, b, c = (generator.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, m), (m, m)))
    per = k * m // 64  # elements of a lane
    vector = {register: np.zeros((1, 64), np.uint32) for register in range(64)}
    for row in range(m):
        for step in range(k):
            lane, place = row + m * (step // per), step % per
            for begin, value in ((0, a[row, step]), (2, b[step, row])):
                _set(vector, begin, lane, place, value, name)
    for row in range(m):
        for column in range(m):
            register, lane = _place(row, column, m)
            vector[8 + register][0, lane] = np.float32(c[row, column]).view(np.uint32)
    words = 1 if name == "f32" else 2
    operation = getattr(ins, f"v_mfma_f32_{m}x{m}x{k}_{name}")
    results = m * m // 64
    first, second = (v[0], v[2]) if words == 1 else (v[0:1], v[2:3])
    product = operation(v[8 : 8 + results - 1], first, second, v[8 : 8 + results - 1])
    waves = executed(product, vector=vector)
    wanted = a @ b + c
    for row in range(m):
        for column in range(m):
            register, lane = _place(row, column, m)
            assert waves.vector[8 + register][0, lane].view(np.float32) == wanted[row, column], (row, column)


def _place(row: int, column: int, m: int) -> tuple[int, int]:
    """Four rows lie in four registers of a lane, the next four in the next m lanes."""
    lanes = 64 // m
    return row % 4 + 4 * (row // (4 * lanes)), column + m * (row // 4 % lanes)


def _set(vector: dict[int, Any], begin: int, lane: int, place: int, value: Any, name: str) -> None:
    if name == "f32":
        vector[begin + place][0, lane] = np.float32(value).view(np.uint32)
        return
    bits = int(np.float16(value).view(np.uint16)) if name == "f16" else int(np.float32(value).view(np.uint32)) >> 16
    vector[begin + place // 2][0, lane] |= np.uint32(bits << 16 * (place % 2))
