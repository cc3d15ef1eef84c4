"""Attention over packed sequences: one Triton kernel for every mask, bias, dtype and head size, CUDA and ROCm alike.

The work is a list of tiles (`headrace.backends.kernels.tiles`), so that no program starts for padding. Whatever the
mask, the keys that a query sees are one interval, `first..last`; the blocks of keys that every row of a tile sees
whole need no mask and can have a loop of their own.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.backends.kernels import tiles, tuning
from headrace.backends.kernels.tiles import TileList
from headrace.backends.kernels.tuning import Blocks
from headrace.ir import MaskKind, Window

LOG2E = tl.constexpr(1.4426950408889634)
# Below every score, and finite: a row that has seen no key yet needs no special case.
LOWEST = tl.constexpr(-1e38)


@triton.jit
def capped(x):
    """Tanh in float32; near zero a polynomial, where the quotient loses digits."""
    square = x * x
    near = x * (1.0 + square * (-1.0 / 3 + square * (2.0 / 15 + square * (-17.0 / 315 + square * (62.0 / 2835)))))
    far = 1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * LOG2E)))
    return tl.where(tl.abs(x) < 0.25, near, far)


@triton.jit
def biased(scores, rows, keys, scale, softcap, bias, BIAS: tl.constexpr, REACH: tl.constexpr, CAP: tl.constexpr):
    """Scaled scores with the bias of their distance, then the cap, in units of log2."""
    scores = scores * scale
    if BIAS == "alibi":
        scores -= bias[:, None] * tl.abs(keys[None, :] - rows[:, None]).to(tl.float32)
    if BIAS == "relative":
        distance = tl.minimum(tl.maximum(keys[None, :] - rows[:, None], -REACH), REACH)
        scores += tl.load(bias[:, None] + (distance + REACH)).to(tl.float32)
    if CAP:
        scores = softcap * capped(scores / softcap)
    return scores * LOG2E


@triton.jit
def attend_block(
    acc, top, total, q, k_base, v_base, start, end, rows, first, last, k_t, v_t, scale, softcap, bias,
    D: tl.constexpr, DV: tl.constexpr, D_PAD: tl.constexpr, DV_PAD: tl.constexpr, BLOCK_N: tl.constexpr,
    BIAS: tl.constexpr, REACH: tl.constexpr, CAP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax: the keys `start..start + BLOCK_N`."""
    keys = start + tl.arange(0, BLOCK_N)
    d = tl.arange(0, D_PAD)
    dv = tl.arange(0, DV_PAD)
    k_at = k_base + keys[None, :] * k_t + d[:, None]
    v_at = v_base + keys[:, None] * v_t + dv[None, :]
    if MASKED:
        k = tl.load(k_at, mask=(keys[None, :] < end) & (d[:, None] < D), other=0.0)
        v = tl.load(v_at, mask=(keys[:, None] < end) & (dv[None, :] < DV), other=0.0)
    else:
        k = tl.load(k_at) if D == D_PAD else tl.load(k_at, mask=d[:, None] < D, other=0.0)
        v = tl.load(v_at) if DV == DV_PAD else tl.load(v_at, mask=dv[None, :] < DV, other=0.0)
    scores = tl.dot(q, k, input_precision="ieee")
    if BIAS != "none" or CAP:
        scores = biased(scores, rows, keys, scale, softcap, bias, BIAS, REACH, CAP)
        unit = 1.0
    else:
        unit = scale * LOG2E
    if MASKED:
        seen = (keys[None, :] >= first[:, None]) & (keys[None, :] <= last[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1) * unit)
    weights = tl.exp2(scores * unit - higher[:, None])
    shrink = tl.exp2(top - higher)
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return acc, higher, total


@triton.jit
def attend_tiles(
    Q, K, V, OUT, TILES, BOUNDS, SINKS, BIASES,
    q_t, q_h, k_t, k_h, v_t, v_h, o_t, o_h, bounds_end, bias_h, scale, softcap,
    PROGRAMS: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    D_PAD: tl.constexpr, DV_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, BIAS: tl.constexpr, REACH: tl.constexpr, CAP: tl.constexpr,
    SINK: tl.constexpr, MERGED: tl.constexpr, SPLIT: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """One tile of queries, PACK query heads of one key head side by side, against all the keys that it sees."""
    tile = TILES + (tl.program_id(0) // PROGRAMS) * 4
    row_begin = tl.load(tile)
    row_end = tl.load(tile + 1)
    key_begin = tl.load(tile + 2)
    key_end = tl.load(tile + 3)
    if row_begin >= row_end:
        return
    lane = tl.arange(0, BLOCK_M)
    if PAIR:
        head = (tl.program_id(0) % PROGRAMS) * 2 + lane * 0
        kv_head = (tl.program_id(0) % PROGRAMS) * 2
    else:
        head = (tl.program_id(0) % PROGRAMS) * PACK + lane % PACK
        kv_head = (tl.program_id(0) % PROGRAMS) * PACK // GROUP
    # Positions count from the tile's first key, so that offsets fit in 32 bits where tokens x stride does not.
    n = key_end - key_begin
    r0 = row_begin - key_begin
    r1 = row_end - key_begin
    rows = r0 + lane // PACK
    live = rows < r1

    d = tl.arange(0, D_PAD)
    dv = tl.arange(0, DV_PAD)
    base = key_begin.to(tl.int64)
    q_at = Q + base * q_t + (rows[:, None] * q_t + head[:, None] * q_h + d[None, :])
    q = tl.load(q_at, mask=live[:, None] & (d[None, :] < D), other=0.0)
    if PAIR:
        q1 = tl.load(q_at + q_h, mask=live[:, None] & (d[None, :] < D), other=0.0)
        acc1 = tl.zeros([BLOCK_M, DV_PAD], tl.float32)
        top1 = tl.full([BLOCK_M], LOWEST, tl.float32)
        total1 = tl.zeros([BLOCK_M], tl.float32)
    k_base = K + base * k_t + kv_head * k_h
    v_base = V + base * v_t + kv_head * v_h

    first = tl.zeros([BLOCK_M], tl.int32)
    last = tl.zeros([BLOCK_M], tl.int32) + (n - 1)
    if MERGED:
        first = tl.load(BOUNDS + base + rows, mask=live, other=0) - key_begin
        last = tl.load(BOUNDS + bounds_end + base + rows, mask=live, other=0) - key_begin - 1
    lo = 0
    inner_lo = 0
    hi = n
    inner_hi = n
    if LEFT >= 0:
        first = tl.maximum(first, rows - LEFT)
        lo = tl.maximum(r0 - LEFT, 0)
        inner_lo = tl.maximum(r1 - 1 - LEFT, 0)
    if RIGHT >= 0:
        last = tl.minimum(last, rows + RIGHT)
        hi = tl.minimum(r1 + RIGHT, n)
        inner_hi = tl.minimum(r0 + RIGHT + 1, n)

    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if SINK:
        top = tl.load(SINKS + head).to(tl.float32) * LOG2E
        total += 1.0
    bias = first
    if BIAS == "alibi":
        bias = tl.load(BIASES + head).to(tl.float32)
    if BIAS == "relative":
        bias = BIASES + head * bias_h
    acc = tl.zeros([BLOCK_M, DV_PAD], tl.float32)

    blocks = tl.cdiv(hi - lo, BLOCK_N)
    whole_begin = 0
    whole = 0
    if SPLIT:
        whole_begin = tl.cdiv(inner_lo - lo, BLOCK_N)
        whole = tl.maximum((inner_hi - lo) // BLOCK_N - whole_begin, 0)
        if MERGED:
            # A tile whose rows are all its keys may hold several sequences.
            whole = tl.where((r0 == 0) & (r1 == n), 0, whole)
        for block in range(whole_begin, whole_begin + whole):
            acc, top, total = attend_block(
                acc, top, total, q, k_base, v_base, lo + block * BLOCK_N, hi, rows, first, last, k_t, v_t,
                scale, softcap, bias, D, DV, D_PAD, DV_PAD, BLOCK_N, BIAS, REACH, CAP, False,
            )  # fmt: skip
            if PAIR:
                acc1, top1, total1 = attend_block(
                    acc1, top1, total1, q1, k_base + k_h, v_base + v_h, lo + block * BLOCK_N, hi, rows, first, last, k_t, v_t,
                    scale, softcap, bias, D, DV, D_PAD, DV_PAD, BLOCK_N, BIAS, REACH, CAP, False,
                )  # fmt: skip
    for index in range(0, blocks - whole):
        block = index + tl.where(index >= whole_begin, whole, 0) if SPLIT else index
        acc, top, total = attend_block(
            acc, top, total, q, k_base, v_base, lo + block * BLOCK_N, hi, rows, first, last, k_t, v_t,
            scale, softcap, bias, D, DV, D_PAD, DV_PAD, BLOCK_N, BIAS, REACH, CAP, True,
        )  # fmt: skip
        if PAIR:
            acc1, top1, total1 = attend_block(
                acc1, top1, total1, q1, k_base + k_h, v_base + v_h, lo + block * BLOCK_N, hi, rows, first, last, k_t, v_t,
                scale, softcap, bias, D, DV, D_PAD, DV_PAD, BLOCK_N, BIAS, REACH, CAP, True,
            )  # fmt: skip

    acc = acc * (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]
    o_at = OUT + base * o_t + (rows[:, None] * o_t + head[:, None] * o_h + dv[None, :])
    tl.store(o_at, acc.to(OUT.dtype.element_ty), mask=live[:, None] & (dv[None, :] < DV))
    if PAIR:
        acc1 = acc1 * (1.0 / tl.where(total1 == 0.0, 1.0, total1))[:, None]
        tl.store(o_at + o_h, acc1.to(OUT.dtype.element_ty), mask=live[:, None] & (dv[None, :] < DV))


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_length: int,
    *,
    scale: float,
    kind: str = MaskKind.BIDIRECTIONAL,
    window: Window = Window(),  # noqa: B008  a NamedTuple does not change
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    bias_kind: str = tiles.Bias.NONE,
    work: TileList | None = None,
    blocks: Blocks | None = None,
) -> Tensor:
    """Attention within each sequence of a packed batch, `[T, Hq, Dv]`.

    Args:
        q: [T, Hq, D], any strides but the last; `k` [T, Hkv, D] and `v` [T, Hkv, Dv] likewise.
        cu_seqlens: int32 [n + 1], where each sequence begins, and the end of the last. Empty sequences are allowed.
        max_length: of a sequence; only chooses among tunings.
        window: `(left, right)`, inclusive, -1 without bound.
        sinks: [Hq] logits that take weight and give nothing.
        bias: per `bias_kind`; see `headrace.backends.kernels.tiles.Bias`.
        work: the tiles, where the caller shares them among calls; made on the device otherwise.
        blocks: the tuning, chosen from the table otherwise.
    """
    out = q.new_empty((q.shape[0], q.shape[1], v.shape[2]), dtype=v.dtype)
    chosen = blocks or tuning.choose(tuning.family(q.device), q.shape[2], q.dtype, max_length)
    pack = packed_heads(q.shape[1] // k.shape[1], chosen.pack)
    if work is None:
        rows = chosen.m // pack
        work = TileList(tiles.spread(cu_seqlens, q.shape[0], rows), rows)
    arguments, constants = launch(q, k, v, out, work, scale, kind, window, softcap, sinks, bias, bias_kind, chosen)
    grid = (work.tiles.shape[0] * constants["PROGRAMS"],)
    attend_tiles[grid](*arguments, **constants)
    return out


def packed_heads(group: int, wanted: int) -> int:
    """How many query heads of one key head share a tile: the largest power of two that divides the group."""
    return min(group & -group, wanted)


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    work: TileList,
    scale: float,
    kind: str,
    window: Window,
    softcap: float,
    sinks: Tensor | None,
    bias: Tensor | None,
    bias_kind: str,
    blocks: Blocks,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The kernel's arguments and constants."""
    assert scale > 0, "the kernel takes the largest score before it scales"
    assert q.stride(2) == k.stride(2) == v.stride(2) == 1, "a head's elements lie side by side"
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    pack = packed_heads(group, blocks.pack)
    assert work.rows * pack <= blocks.m, f"tiles of {work.rows} rows of {pack} heads do not fit in {blocks.m}"
    left, right = window
    bounds = q if work.bounds is None else work.bounds
    arguments = (
        q, k, v, out, work.tiles, bounds, q if sinks is None else sinks, q if bias is None else bias,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), out.stride(0), out.stride(1),
        bounds.stride(0), 0 if bias is None else bias.stride(0), scale, softcap,
    )  # fmt: skip
    constants = {
        "PROGRAMS": heads // pack,
        "GROUP": group,
        "PACK": pack,
        "D": q.shape[2],
        "DV": v.shape[2],
        "D_PAD": max(16, triton.next_power_of_2(q.shape[2])),
        "DV_PAD": max(16, triton.next_power_of_2(v.shape[2])),
        "BLOCK_M": blocks.m,
        "BLOCK_N": blocks.n,
        "LEFT": left if left >= 0 else -1,
        "RIGHT": 0 if kind == MaskKind.CAUSAL else right if right >= 0 else -1,
        "BIAS": str(bias_kind),
        "REACH": (bias.shape[1] - 1) // 2 if bias is not None and bias_kind == tiles.Bias.RELATIVE else 0,
        "CAP": softcap > 0,
        "SINK": sinks is not None,
        "MERGED": work.bounds is not None,
        "SPLIT": blocks.split,
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }
    return arguments, constants
