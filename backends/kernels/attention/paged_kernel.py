# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0915, PLR0917 - a kernel takes plain arguments, and is one function where it can
"""The Triton kernels of attention over paged caches: prefill, pieces of it and decoding alike, CUDA and ROCm alike.

Few long sequences, as decoding has them, would leave most of a device idle: their keys are split among programs, and
what those found is put together after.

What is kept of a token is its keys and its values, or a row that is both: its first numbers are the value, and all of
them the key. They may be codes of eight bits, with a scale for each token and head.
"""

import triton
import triton.language as tl

from headrace.backends.kernels.attention.kernel import LOG2E, LOWEST, add_values
from headrace.backends.kernels.float8 import decoded, encoded, scale_of


@triton.jit
def write_row(at, CACHE, SCALES, row, WIDTH: tl.constexpr, PADDED: tl.constexpr, CODED: tl.constexpr):
    """Numbers that lie side by side into a row of a cache, as codes where it holds codes."""
    d = tl.arange(0, PADDED)
    x = tl.load(at + d, mask=d < WIDTH, other=0.0)
    to = CACHE + row * WIDTH + d
    if CODED:
        x = x.to(tl.float32)
        scale = scale_of(tl.max(tl.abs(x), 0))
        tl.store(SCALES + row, scale)
        tl.store(to, encoded(x, scale), mask=d < WIDTH)
    else:
        tl.store(to, x.to(CACHE.dtype.element_ty), mask=d < WIDTH)


@triton.jit
def write_paged(
    K, V, K_CACHE, V_CACHE, K_SCALES, V_SCALES, SLOTS, k_t, k_h, v_t, v_h, HEADS: tl.constexpr, D: tl.constexpr,
    DV: tl.constexpr, D_PAD: tl.constexpr, DV_PAD: tl.constexpr, ROW: tl.constexpr, CODED: tl.constexpr,
):  # fmt: skip
    """One head of one token: its key and its value, or the ROW that is both, into the slot that it was given."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(SLOTS + token)
    if slot < 0:
        return
    row = slot * HEADS + head
    write_row(K + token * k_t + head * k_h, K_CACHE, K_SCALES, row, D, D_PAD, CODED)
    if not ROW:
        write_row(V + token * v_t + head * v_h, V_CACHE, V_SCALES, row, DV, DV_PAD, CODED)


@triton.jit
def attend_kept(
    acc, top, total, q, q_rest, k_base, v_base, k_scales, v_scales, keys, places, end, rows, first, last, bias,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    D_PAD: tl.constexpr, DV_PAD: tl.constexpr, BIAS: tl.constexpr, REACH: tl.constexpr, ROW: tl.constexpr,
    REST_PAD: tl.constexpr, CODED: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """`attend_block` over what is kept of some keys, zeros past `end`; a ROW's value is what was read of its key."""
    d = tl.arange(0, D_PAD)
    dv = tl.arange(0, DV_PAD)
    width: tl.constexpr = DV if ROW else D
    there = keys < end
    k_at = k_base + places[None, :] * (HEADS * D)
    k = tl.load(k_at + d[:, None], mask=there[None, :] & (d[:, None] < width), other=0)
    if REST_PAD > 0:
        r = DV + tl.arange(0, REST_PAD)
        rest = tl.load(k_at + r[:, None], mask=there[None, :] & (r[:, None] < D), other=0)
    if not ROW:
        v_at = v_base + places[:, None] * (HEADS * DV) + dv[None, :]
        v = tl.load(v_at, mask=there[:, None] & (dv[None, :] < DV), other=0)
    v_scale = total
    if CODED:
        k = decoded(k, q, NATIVE)
        k_scale = tl.load(k_scales + places * HEADS, mask=there, other=0.0)
        v_scale = k_scale
    scores = tl.dot(q, k, input_precision="ieee")
    if REST_PAD > 0:
        if CODED:
            rest = decoded(rest, q, NATIVE)
        scores = tl.dot(q_rest, rest, scores, input_precision="ieee")
    if CODED:
        scores *= k_scale[None, :]
    if ROW:
        v = tl.trans(k)
    elif CODED:
        v = decoded(v, q, NATIVE)
        v_scale = tl.load(v_scales + places * HEADS, mask=there, other=0.0)
    return add_values(
        acc, top, total, scores, v, v_scale, keys, rows, first, last, bias, SCALE, SOFTCAP, BIAS, REACH, True, CODED
    )


@triton.jit
def attend_paged(
    Q, K_CACHE, V_CACHE, K_SCALES, V_SCALES, OUT, PARTS, TILES, BLOCKS, COUNTS, SINKS, BIASES,
    n, splits, q_t, q_h, o_t, o_h, b_n, bias_h,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, PROGRAMS: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr,
    HEADS: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, D_PAD: tl.constexpr,
    DV_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, LEFT: tl.constexpr,
    CHUNK: tl.constexpr, BIAS: tl.constexpr, REACH: tl.constexpr, SINK: tl.constexpr, ROW: tl.constexpr,
    REST_PAD: tl.constexpr, CODED: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """One tile of queries, PACK query heads of one key head side by side, against its share of the keys.

    COUNTS are the tokens that came before the step's; where it is not CAUSAL, all keys of the sequence, each seen.
    Where a ROW is both, D_PAD holds the DV numbers of it that are the value, which are read once, and REST_PAD the
    others, which are none where it is 0.
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
    width: tl.constexpr = DV if ROW else D  # of what D_PAD holds
    q_row = Q + tokens[:, None].to(tl.int64) * q_t + head[:, None] * q_h
    q = tl.load(q_row + d[None, :], mask=live[:, None] & (d[None, :] < width), other=0.0)
    q_rest = q
    if REST_PAD > 0:
        r = DV + tl.arange(0, REST_PAD)
        q_rest = tl.load(q_row + r[None, :], mask=live[:, None] & (r[None, :] < D), other=0.0)

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
        acc, top, total = attend_kept(
            acc, top, total, q, q_rest, k_base, v_base, K_SCALES + kv_head, V_SCALES + kv_head, keys, places, hi, rows,
            first, last, bias, SCALE, SOFTCAP, HEADS, D, DV, D_PAD, DV_PAD, BIAS, REACH, ROW, REST_PAD, CODED, NATIVE,
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
