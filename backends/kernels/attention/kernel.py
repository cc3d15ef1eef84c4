# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0915, PLR0917, PIE808 - a kernel takes plain arguments, and is one function where it can
"""The Triton kernel of attention over packed sequences: every mask, bias, dtype and head size, CUDA and ROCm alike.

Whatever the mask, the keys that a query sees are one interval, `first..last`. The blocks of keys that every row of a
tile sees whole need no mask, and can have a loop of their own.
"""

import triton
import triton.language as tl

from headrace.backends.kernels.early import wait_if

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
def biased(
    scores, rows, keys, bias, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, REACH: tl.constexpr
):  # fmt: skip
    """Scaled scores with the bias of their distance, then the cap, in units of log2."""
    scores = scores * SCALE
    if BIAS == "alibi":
        scores -= bias[:, None] * tl.abs(keys[None, :] - rows[:, None]).to(tl.float32)
    if BIAS == "relative":
        distance = tl.minimum(tl.maximum(keys[None, :] - rows[:, None], -REACH), REACH)
        scores += tl.load(bias[:, None] + (distance + REACH)).to(tl.float32)
    if SOFTCAP > 0:
        scores = SOFTCAP * capped(scores * (1.0 / SOFTCAP))
    return scores * LOG2E


@triton.jit
def attend_block(
    acc, top, total, q, k_base, v_base, keys, places, end, rows, first, last, k_t, v_t, bias,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, D_PAD: tl.constexpr,
    DV_PAD: tl.constexpr, BIAS: tl.constexpr, REACH: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax: some keys and the places where they lie; zeros past `end`, where others' do."""
    d = tl.arange(0, D_PAD)
    dv = tl.arange(0, DV_PAD)
    k_at = k_base + places[None, :] * k_t + d[:, None]
    v_at = v_base + places[:, None] * v_t + dv[None, :]
    if MASKED:
        k = tl.load(k_at, mask=(keys[None, :] < end) & (d[:, None] < D), other=0.0)
        v = tl.load(v_at, mask=(keys[:, None] < end) & (dv[None, :] < DV), other=0.0)
    else:
        k = tl.load(k_at) if D == D_PAD else tl.load(k_at, mask=d[:, None] < D, other=0.0)
        v = tl.load(v_at) if DV == DV_PAD else tl.load(v_at, mask=dv[None, :] < DV, other=0.0)
    scores = tl.dot(q, k, input_precision="ieee")
    return add_values(
        acc, top, total, scores, v, total, keys, rows, first, last, bias, SCALE, SOFTCAP, BIAS, REACH, MASKED, False
    )


@triton.jit
def add_values(
    acc, top, total, scores, v, v_scale, keys, rows, first, last, bias, SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr, REACH: tl.constexpr, MASKED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """The values of some keys, weighed by their scores; where SCALED, each by `v_scale` of its key too."""
    unit: tl.constexpr = 1.0 if BIAS != "none" or SOFTCAP > 0 else SCALE * LOG2E
    if BIAS != "none" or SOFTCAP > 0:
        scores = biased(scores, rows, keys, bias, SCALE, SOFTCAP, BIAS, REACH)
    if MASKED:
        seen = (keys[None, :] >= first[:, None]) & (keys[None, :] <= last[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1) * unit)
    weights = tl.exp2(scores * unit - higher[:, None])
    shrink = tl.exp2(top - higher)
    total = total * shrink + tl.sum(weights, 1)
    if SCALED:
        weights *= v_scale[None, :]
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return acc, higher, total


@triton.jit
def attend_tiles(
    Q, K, V, OUT, TILES, SINKS, BIASES,
    q_t, q_h, k_t, k_h, v_t, v_h, o_t, o_h, bias_h,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, PROGRAMS: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, D_PAD: tl.constexpr, DV_PAD: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CHUNK: tl.constexpr, BIAS: tl.constexpr,
    REACH: tl.constexpr, SINK: tl.constexpr, SPLIT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One tile of queries, PACK query heads of one key head side by side, against all the keys that it sees."""
    wait_if(EARLY)
    tile = TILES + (tl.program_id(0) // PROGRAMS) * 4
    row_begin = tl.load(tile)
    row_end = tl.load(tile + 1)
    key_begin = tl.load(tile + 2)
    key_end = tl.load(tile + 3)
    if row_begin >= row_end:
        return
    lane = tl.arange(0, BLOCK_M)
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
    k_base = K + base * k_t + kv_head * k_h
    v_base = V + base * v_t + kv_head * v_h

    first = tl.zeros([BLOCK_M], tl.int32)
    last = tl.zeros([BLOCK_M], tl.int32) + (n - 1)
    lo = 0
    inner_lo = 0
    hi = n
    inner_hi = n
    if LEFT >= 0:
        first = tl.maximum(first, rows - LEFT)
        lo = tl.maximum(r0 - LEFT, 0)
        inner_lo = tl.maximum(r1 - 1 - LEFT, 0)
    if CHUNK > 0:
        first = tl.maximum(first, rows // CHUNK * CHUNK)
        lo = r0 // CHUNK * CHUNK
        inner_lo = (r1 - 1) // CHUNK * CHUNK
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

    # `ahead` masked blocks, then the blocks that every row sees whole, then the other masked ones.
    masked = tl.cdiv(hi - lo, BLOCK_N)
    ahead = masked
    whole = 0
    if SPLIT:
        ahead = tl.cdiv(inner_lo - lo, BLOCK_N)
        whole = tl.maximum((inner_hi - lo) // BLOCK_N - ahead, 0)
        masked -= whole
        for index in range(0, whole):
            keys = lo + (ahead + index) * BLOCK_N + tl.arange(0, BLOCK_N)
            acc, top, total = attend_block(
                acc, top, total, q, k_base, v_base, keys, keys, hi, rows, first, last,
                k_t, v_t, bias, SCALE, SOFTCAP, D, DV, D_PAD, DV_PAD, BIAS, REACH, False,
            )  # fmt: skip
    for index in range(0, masked):
        block = index + tl.where(index >= ahead, whole, 0) if SPLIT else index
        keys = lo + block * BLOCK_N + tl.arange(0, BLOCK_N)
        acc, top, total = attend_block(
            acc, top, total, q, k_base, v_base, keys, keys, hi, rows, first, last,
            k_t, v_t, bias, SCALE, SOFTCAP, D, DV, D_PAD, DV_PAD, BIAS, REACH, True,
        )  # fmt: skip

    acc = acc * (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]
    o_at = OUT + base * o_t + (rows[:, None] * o_t + head[:, None] * o_h + dv[None, :])
    tl.store(o_at, acc.to(OUT.dtype.element_ty), mask=live[:, None] & (dv[None, :] < DV))


@triton.jit
def list_tiles(
    CU_SEQLENS, TILES, n, tokens, ROWS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, NAMED: tl.constexpr
):  # fmt: skip
    """`tiles.spread` in one launch: BLOCK tiles, each of which counts the sequences whose tiles come before it."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sequence = tl.zeros([BLOCK], tl.int32)
    before = tl.zeros([BLOCK], tl.int32)
    listed = 0
    for chunk in range(0, n + 1, CHUNK):
        each = chunk + tl.arange(0, CHUNK)
        begin = tl.load(CU_SEQLENS + each, mask=each <= n, other=0)
        end = tl.load(CU_SEQLENS + each + 1, mask=each < n, other=tokens)
        counts = tl.where(each <= n, tl.cdiv(end - begin, ROWS), 0)
        past = listed + tl.cumsum(counts, 0)
        passed = (past[None, :] <= index[:, None]) & (each[None, :] <= n)
        sequence += tl.sum(passed.to(tl.int32), 1)
        before = tl.maximum(before, tl.max(tl.where(passed, past[None, :], 0), 1))
        listed += tl.sum(counts, 0)
    begin = tl.load(CU_SEQLENS + sequence, mask=sequence <= n, other=0)
    stop = tl.load(CU_SEQLENS + sequence + 1, mask=sequence < n, other=0)
    end = tl.where(sequence < n, stop, tl.where(sequence == n, tokens, 0))
    stop = tl.where(sequence < n, stop, begin)
    row = tl.minimum(begin + (index - before) * ROWS, end)
    tile = TILES + index * 4
    inside = index < tokens // ROWS + n + 1
    tl.store(tile, row, mask=inside)
    tl.store(tile + 1, tl.minimum(row + ROWS, end), mask=inside)
    tl.store(tile + 2, begin, mask=inside)
    tl.store(tile + 3, sequence if NAMED else stop, mask=inside)
