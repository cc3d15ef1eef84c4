# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0917 - a kernel takes plain arguments
"""The gated delta rule over packed sequences: in chunks by the UT transform of arXiv 2406.06484, section 3.

What a chunk's tokens write depends on one another by a triangular system, which is solved for all chunks at once; then
a program walks along each sequence with the state in registers. Where each key channel decays by itself there is no
such product of keys, and the rule goes token by token.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.backends.kernels.recurrent.rows import clear_rows, decays, sequence_rows, side_by_side
from headrace.ops.recurrent import NORM_EPSILON

BLOCK = 16  # rows of the triangular system that are solved one after another
EPSILON = tl.constexpr(NORM_EPSILON)


@triton.jit
def load_unit(X, first, place, real, x_t, head, x_h, keys, KEY: tl.constexpr, NORMALIZE: tl.constexpr):
    """Rows of one head in float32, of unit length where that is asked for."""
    at = X + first * x_t + head * x_h + place[:, None] * x_t + keys[None, :]
    x = tl.load(at, mask=real[:, None] & (keys[None, :] < KEY), other=0.0).to(tl.float32)
    if NORMALIZE:
        x *= (1.0 / tl.sqrt(tl.sum(x * x, 1) + EPSILON))[:, None]
    return x


@triton.jit
def solve_chunks(
    K, G, BETA, TILES, OUT, k_t, k_h, g_t, g_h, beta_t, beta_h, HEADS: tl.constexpr, GROUP: tl.constexpr,
    KEY: tl.constexpr, NORMALIZE: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The inverse of `1 + L` of one chunk and head, `L[i, j] = beta[i] k[i].k[j] exp(g[j+1..i])` below its diagonal.

    Blocks on the diagonal row by row, which is stable however alike the keys are. The rest, of so few blocks that its
    powers vanish at once, by products: `(1 + D)^-1 (1 + M)^-1` with `(1 + M)^-1 = (1 - M)(1 + M^2)`.
    """
    tile = TILES + tl.program_id(0) * 4
    head = tl.program_id(1)
    row_end = tl.load(tile + 1)
    end = tl.load(tile + 3)
    place = tl.arange(0, CHUNK)
    keys = tl.arange(0, KEYS)
    row = tl.load(tile)
    real = (row + place < row_end) & (row + place < end)
    first = row.to(tl.int64)
    kind: tl.constexpr = OUT.dtype.element_ty
    k = load_unit(K, first, place, real, k_t, head // GROUP, k_h, keys, KEY, NORMALIZE).to(kind)
    beta = tl.load(BETA + first * beta_t + head * beta_h + place * beta_t, mask=real, other=0.0).to(tl.float32)
    log = tl.load(G + first * g_t + head * g_h + place * g_t, mask=real, other=0.0).to(tl.float32)
    _, between, _, _ = decays(log, CHUNK)
    lower = tl.dot(k, tl.trans(k), input_precision="ieee") * between * beta[:, None]
    lower = tl.where(place[:, None] > place[None, :], lower, 0.0)
    same = (place[:, None] // BLOCK) == (place[None, :] // BLOCK)
    # All blocks at once: their columns differ, so that one row of numbers holds a row of each.
    solved = tl.where(same, -lower, 0.0)
    for step in range(1, BLOCK):
        chosen = (place % BLOCK == step)[:, None] & same
        line = tl.sum(tl.where(chosen, solved, 0.0), 0)
        line += tl.sum(line[:, None] * solved, 0)
        solved = tl.where(chosen, line[None, :], solved)
    one = tl.where(place[:, None] == place[None, :], 1.0, 0.0)
    solved += one
    if CHUNK > BLOCK:
        rest = tl.dot(solved.to(kind), tl.where(same, 0.0, lower).to(kind), input_precision="ieee")
        twice = tl.dot(rest.to(kind), rest.to(kind), input_precision="ieee")
        gone = tl.dot((one - rest).to(kind), (one + twice).to(kind), input_precision="ieee")
        solved = tl.dot(gone.to(kind), solved.to(kind), input_precision="ieee")
    at = OUT + (first * HEADS + head) * CHUNK + place[:, None] * (HEADS * CHUNK) + place[None, :]
    tl.store(at, solved.to(kind), mask=real[:, None])


@triton.jit
def scan_delta(
    Q, K, V, G, BETA, SOLVED, CU_SEQLENS, OUT, count, tokens, q_t, q_h, k_t, k_h, v_t, v_h, g_t, g_h, beta_t, beta_h,
    SCALE: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    NORMALIZE: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One sequence, one head and some columns of its values."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    within = columns < VALUE
    keys = tl.arange(0, KEYS)
    place = tl.arange(0, CHUNK)
    begin, end = sequence_rows(CU_SEQLENS, sequence, count)
    clear_rows(OUT, begin, tokens, sequence, count, HEADS * VALUE, head * VALUE + columns, within, CHUNK)
    kind: tl.constexpr = SOLVED.dtype.element_ty
    state = tl.zeros([KEYS, COLUMNS], tl.float32)
    for start in range(begin, end, CHUNK):
        real = place < end - start
        shown = real[:, None] & within[None, :]
        # Offsets from the chunk's first row fit in 32 bits, those from the first of all need not.
        first = tl.cast(start, tl.int64)
        log = tl.load(G + first * g_t + head * g_h + place * g_t, mask=real, other=0.0).to(tl.float32)
        since, between, until, whole = decays(log, CHUNK)
        k = load_unit(K, first, place, real, k_t, head // GROUP, k_h, keys, KEY, NORMALIZE)
        held = state.to(kind)
        known = tl.dot(k.to(kind), held, input_precision="ieee") * since[:, None]
        v = tl.load(V + first * v_t + head * v_h + place[:, None] * v_t + columns[None, :], mask=shown, other=0.0)
        beta = tl.load(BETA + first * beta_t + head * beta_h + place * beta_t, mask=real, other=0.0).to(tl.float32)
        at = SOLVED + (first * HEADS + head) * CHUNK + place[:, None] * (HEADS * CHUNK) + place[None, :]
        solved = tl.load(at, mask=real[:, None], other=0.0)
        written = (beta[:, None] * (v.to(tl.float32) - known)).to(kind)
        new = tl.dot(solved, written, input_precision="ieee").to(kind)
        q = (load_unit(Q, first, place, real, q_t, head // GROUP, q_h, keys, KEY, NORMALIZE) * SCALE).to(kind)
        y = tl.dot(q, held, input_precision="ieee") * since[:, None]
        scores = tl.dot(q, tl.trans(k.to(kind)), input_precision="ieee") * between
        y += tl.dot(scores.to(kind), new, input_precision="ieee")
        left = (k * until[:, None]).to(kind)
        state = state * whole + tl.dot(tl.trans(left), new, input_precision="ieee")
        out = OUT + first * (HEADS * VALUE) + head * VALUE
        tl.store(out + place[:, None] * (HEADS * VALUE) + columns[None, :], y.to(OUT.dtype.element_ty), mask=shown)


@triton.jit
def step_delta(
    Q, K, V, G, BETA, CU_SEQLENS, OUT, count, tokens, q_t, q_h, k_t, k_h, v_t, v_h, g_t, g_h, beta_t, beta_h,
    SCALE: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    NORMALIZE: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One sequence, one head and some columns of its values, a token at a time, each key channel with its decay."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    within = columns < VALUE
    keys = tl.arange(0, KEYS)
    seen = keys < KEY
    begin, end = sequence_rows(CU_SEQLENS, sequence, count)
    clear_rows(OUT, begin, tokens, sequence, count, HEADS * VALUE, head * VALUE + columns, within, 16)
    state = tl.zeros([KEYS, COLUMNS], tl.float32)
    for token in range(begin, end):
        row = tl.cast(token, tl.int64)
        q = tl.load(Q + row * q_t + (head // GROUP) * q_h + keys, mask=seen, other=0.0).to(tl.float32)
        k = tl.load(K + row * k_t + (head // GROUP) * k_h + keys, mask=seen, other=0.0).to(tl.float32)
        g = tl.load(G + row * g_t + head * g_h + keys, mask=seen, other=0.0).to(tl.float32)
        v = tl.load(V + row * v_t + head * v_h + columns, mask=within, other=0.0).to(tl.float32)
        beta = tl.load(BETA + row * beta_t + head * beta_h).to(tl.float32)
        if NORMALIZE:
            q *= 1.0 / tl.sqrt(tl.sum(q * q, 0) + EPSILON)
            k *= 1.0 / tl.sqrt(tl.sum(k * k, 0) + EPSILON)
        state *= tl.exp(g)[:, None]
        known = tl.sum(state * k[:, None], 0)
        state += k[:, None] * (beta * (v - known))[None, :]
        y = tl.sum(state * q[:, None], 0) * SCALE
        at = OUT + row * (HEADS * VALUE) + head * VALUE + columns
        tl.store(at, y.to(OUT.dtype.element_ty), mask=within)


@torch.library.triton_op("headrace::gated_delta_rule_triton", mutates_args=())
def gated_delta_rule_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    normalize: bool,
    cu_seqlens: Tensor,
    tiles: Tensor,
    blocks: list[int],
) -> Tensor:
    """`headrace::gated_delta_rule_varlen`.

    Args:
        tiles: of `headrace::varlen_tiles`, of as many rows as a chunk has.
        blocks: the tuning, the fields of a `Scan`.
    """
    kernels = map(torch.library.wrap_triton, (solve_chunks, scan_delta, step_delta))
    return delta_ruled(q, k, v, g, beta, normalize, cu_seqlens, tiles, blocks, *kernels)


def delta_ruled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    normalize: bool,
    cu_seqlens: Tensor,
    tiles: Tensor,
    blocks: list[int],
    solve: Any = solve_chunks,
    scan: Any = scan_delta,
    step: Any = step_delta,
) -> Tensor:
    """The launches: of all chunks and then of the sequences, or of the sequences token by token."""
    _, tokens, heads, width = v.shape
    q, k, v, g = (side_by_side(rows) if rows.dim() == 4 else rows for rows in (q, k, v, g))
    out, keys = q.new_empty((1, tokens, heads, width)), q.shape[3]
    chunk, columns, warps, stages = blocks
    columns = min(columns if g.dim() == 3 else 16, max(16, triton.next_power_of_2(width)))
    padded = max(16, triton.next_power_of_2(keys))
    shape = {"HEADS": heads, "GROUP": heads // q.shape[2], "KEY": keys, "NORMALIZE": normalize, "KEYS": padded}
    values = {"VALUE": width, "SCALE": keys**-0.5, "COLUMNS": columns}
    strides = [size for rows in (q, k, v, g, beta) for size in rows.stride()[1:3]]
    operands, sizes = (q, k, v, g, beta), (cu_seqlens.shape[0] - 1, tokens, *strides)
    grid = (cu_seqlens.shape[0], heads, (width + columns - 1) // columns)
    if g.dim() == 4:
        step[grid](*operands, cu_seqlens, out, *sizes, num_warps=4, **values, **shape)
        return out
    solved = q.new_empty((tokens, heads, chunk))
    systems = {"CHUNK": chunk, "BLOCK": BLOCK, "num_warps": min(warps, 4 * chunk // BLOCK)}
    solve[(tiles.shape[0], heads)](k, g, beta, tiles, solved, *strides[2:4], *strides[6:], **systems, **shape)
    tuned = {"CHUNK": chunk, "num_warps": warps, "num_stages": stages}
    scan[grid](*operands, solved, cu_seqlens, out, *sizes, **tuned, **values, **shape)
    return out
