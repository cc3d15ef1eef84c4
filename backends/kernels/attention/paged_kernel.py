# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0915, PLR0917 - a kernel takes plain arguments, and is one function where it can
"""The Triton kernels of attention over paged caches: prefill, pieces of it and decoding alike, CUDA and ROCm alike.

Few long sequences, as decoding has them, would leave most of a device idle: their keys are split among programs, and
what those found is put together after.
"""

import triton
import triton.language as tl

from headrace.backends.kernels.attention.kernel import LOG2E, LOWEST, attend_block


@triton.jit
def write_paged(
    K, V, K_CACHE, V_CACHE, SLOTS, k_t, k_h, v_t, v_h, HEADS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    D_PAD: tl.constexpr, DV_PAD: tl.constexpr,
):  # fmt: skip
    """One head of one token: its key and its value into the slot that it was given, if it was."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(SLOTS + token)
    if slot < 0:
        return
    d = tl.arange(0, D_PAD)
    dv = tl.arange(0, DV_PAD)
    row = slot * HEADS + head
    k = tl.load(K + token * k_t + head * k_h + d, mask=d < D, other=0.0)
    tl.store(K_CACHE + row * D + d, k.to(K_CACHE.dtype.element_ty), mask=d < D)
    v = tl.load(V + token * v_t + head * v_h + dv, mask=dv < DV, other=0.0)
    tl.store(V_CACHE + row * DV + dv, v.to(V_CACHE.dtype.element_ty), mask=dv < DV)


@triton.jit
def attend_paged(
    Q, K_CACHE, V_CACHE, OUT, PARTS, TILES, BLOCKS, COUNTS, SINKS, BIASES,
    n, splits, q_t, q_h, o_t, o_h, b_n, bias_h,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, PROGRAMS: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr,
    HEADS: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, D_PAD: tl.constexpr,
    DV_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, LEFT: tl.constexpr,
    CHUNK: tl.constexpr, BIAS: tl.constexpr, REACH: tl.constexpr, SINK: tl.constexpr,
):  # fmt: skip
    """One tile of queries, PACK query heads of one key head side by side, against its share of the keys.

    COUNTS are the tokens that came before the step's; where it is not CAUSAL, all keys of the sequence, each seen.
    """
    tile = TILES + (tl.program_id(0) // PROGRAMS) * 4
    split = tl.program_id(1)
    row_begin = tl.load(tile)
    row_end = tl.load(tile + 1)
    begin = tl.load(tile + 2)
    sequence = tl.load(tile + 3)
    if row_begin >= row_end:
        return
    lane = tl.arange(0, BLOCK_M)
    head = (tl.program_id(0) % PROGRAMS) * PACK + lane % PACK
    kv_head = (tl.program_id(0) % PROGRAMS) * PACK // GROUP
    tokens = row_begin + lane // PACK
    live = tokens < row_end
    count = tl.load(COUNTS + sequence, mask=sequence < n, other=0)
    rows = tokens - begin + count  # the queries' positions
    r0 = row_begin - begin + count
    r1 = row_end - begin + count

    d = tl.arange(0, D_PAD)
    dv = tl.arange(0, DV_PAD)
    q_at = Q + tokens[:, None].to(tl.int64) * q_t + head[:, None] * q_h + d[None, :]
    q = tl.load(q_at, mask=live[:, None] & (d[None, :] < D), other=0.0)

    lo = 0
    hi = r1 if CAUSAL else count
    first = tl.zeros([BLOCK_M], tl.int32)
    last = rows if CAUSAL else first + (count - 1)
    if LEFT >= 0:
        first = tl.maximum(first, rows - LEFT)
        lo = tl.maximum(r0 - LEFT, 0)
    if CHUNK > 0:
        first = tl.maximum(first, rows // CHUNK * CHUNK)
        lo = r0 // CHUNK * CHUNK
    hi = tl.where(sequence < n, hi, lo)
    share = tl.cdiv(tl.cdiv(hi - lo, BLOCK_N), splits) * BLOCK_N
    lo += split * share
    hi = tl.minimum(lo + share, hi)

    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if SINK:
        own = split == 0
        top = tl.where(own, tl.load(SINKS + head).to(tl.float32) * LOG2E, top)
        total = tl.where(own, total + 1.0, total)
    bias = first
    if BIAS == "alibi":
        bias = tl.load(BIASES + head).to(tl.float32)
    if BIAS == "relative":
        bias = BIASES + head * bias_h
    acc = tl.zeros([BLOCK_M, DV_PAD], tl.float32)
    table = BLOCKS + sequence.to(tl.int64) * b_n
    k_base = K_CACHE + kv_head * D
    v_base = V_CACHE + kv_head * DV
    for start in range(lo, hi, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        blocks = tl.load(table + keys // SIZE, mask=keys < hi, other=0)
        places = blocks.to(tl.int64) * SIZE + keys % SIZE
        acc, top, total = attend_block(
            acc, top, total, q, k_base, v_base, keys, places, hi, rows, first, last,
            HEADS * D, HEADS * DV, bias, SCALE, SOFTCAP, D, DV, D_PAD, DV_PAD, BIAS, REACH, True,
        )  # fmt: skip

    kept = live[:, None] & (dv[None, :] < DV)
    if splits == 1:
        acc = acc * (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]
        o_at = OUT + tokens[:, None].to(tl.int64) * o_t + head[:, None] * o_h + dv[None, :]
        tl.store(o_at, acc.to(OUT.dtype.element_ty), mask=kept)
    else:
        part = (tokens.to(tl.int64) * (PROGRAMS * PACK) + head) * splits + split
        tl.store(PARTS + part[:, None] * (DV + 2) + dv[None, :], acc, mask=kept)
        tl.store(PARTS + part * (DV + 2) + DV, top, mask=live)
        tl.store(PARTS + part * (DV + 2) + DV + 1, total, mask=live)


@triton.jit
def join_splits(
    PARTS, OUT, splits, o_t, o_h, HEADS: tl.constexpr, DV: tl.constexpr, DV_PAD: tl.constexpr, MOST: tl.constexpr
):  # fmt: skip
    """One head of one token: what the splits of its keys found, weighed by how high each one's scores were."""
    if splits == 1:
        return
    pair = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, MOST)
    dv = tl.arange(0, DV_PAD)
    part = PARTS + (pair * splits + split) * (DV + 2)
    there = split < splits
    tops = tl.load(part + DV, mask=there, other=LOWEST)
    totals = tl.load(part + DV + 1, mask=there, other=0.0)
    found = tl.load(part[:, None] + dv[None, :], mask=there[:, None] & (dv[None, :] < DV), other=0.0)
    weights = tl.exp2(tops - tl.max(tops, 0))
    total = tl.sum(totals * weights, 0)
    out = tl.sum(found * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(OUT + pair // HEADS * o_t + pair % HEADS * o_h + dv, out.to(OUT.dtype.element_ty), mask=dv < DV)
