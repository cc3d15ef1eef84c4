"""The recurrent operators in blocks of tokens, for targets that must be fast: few large products, no step a token.

They stand in compiled graphs as calls of operators of their own, since their loop over blocks follows a length that
is not known when the graph is compiled. Each means what its namesake in `headrace.ops.recurrent` means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headrace.backends.inductor import linear_recurrence, lstm
from headrace.backends.inductor.opaque import opaque
from headrace.ops import recurrent
from headrace.ops.recurrent import CAUSAL_CONV1D, CHUNK_SCAN, GATED_DELTA_RULE, SELECTIVE_SCAN

# Tokens a block. A scan's block is what stays in cache. In the others work grows with the block and calls fall; a
# decay a key channel makes [block, block, channels] weights, so its block is small.
SCAN_BLOCK, BLOCK, CHANNEL_BLOCK = 8, 64, 16


def convolution_taps(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`causal_conv1d` as a sum of shifted rows, which Inductor fuses with what surrounds it."""
    kept, taps, length = recurrent.accumulator(weight), weight.shape[1], x.shape[2]
    padded = functional.pad(x.to(weight.dtype).to(kept), (taps - 1, 0))
    rows = padded[:, :, :length] * weight[:, :1]
    for k in range(1, taps):
        rows = rows + padded[:, :, k : k + length] * weight[:, k : k + 1]
    return (rows if bias is None else rows + bias[:, None]).to(weight.dtype)


def scan_blocks(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    softplus: bool,
) -> Tensor:
    """`selective_scan` with decays, inputs and outputs of a block at once: one product and sum is left a token."""
    kept = recurrent.accumulator(x)
    steps = recurrent.step_sizes(dt, None if dt_bias is None else dt_bias[:, None], softplus).to(kept)
    rows = x.to(kept)
    # Laid out by time, so that a token's states lie together in all that is made from them.
    step, drive, inputs, outputs = (part.to(kept).movedim(2, 0).contiguous() for part in (steps, steps * rows, b, c))
    y = torch.empty_like(step)
    state = rows.new_zeros((x.shape[0], *a.shape))
    # Two buffers serve every block: fresh memory would cost more than what is computed in it.
    forgets, states = (rows.new_empty((SCAN_BLOCK, *state.shape)) for _ in range(2))
    for start in range(0, x.shape[2], SCAN_BLOCK):
        block = slice(start, start + SCAN_BLOCK)
        count = y[block].shape[0]
        forget = torch.mul(step[block, ..., None], a, out=forgets[:count]).exp_()
        seen = torch.mul(drive[block, ..., None], inputs[block, :, None], out=states[:count])
        for now, left in zip(seen, forget, strict=True):
            state = now.addcmul_(left, state)
        y[block] = (seen @ outputs[block, ..., None])[..., 0]
        state = state.clone()
    y = y.movedim(0, 2)
    y = y if d is None else y + rows * d[:, None]
    return (y if z is None else y * functional.silu(z.to(kept))).contiguous()


def _in_blocks(x: Tensor, block: int) -> Tensor:
    """[B, L, H, ...] as [B, H, blocks, block, ...]; past the sequence lie zeros."""
    missing = -x.shape[1] % block
    padded = functional.pad(x, (*[0, 0] * (x.dim() - 2), 0, missing))
    return padded.reshape(x.shape[0], -1, block, *x.shape[2:]).movedim(3, 1)


def _out_of_blocks(x: Tensor, length: int) -> Tensor:
    """[B, H, blocks, block, P] as [B, length, H, P]."""
    return x.flatten(2, 3)[:, :, :length].transpose(1, 2).contiguous()


def _decays(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """What is left at each token of a block of the state before it, and of every earlier token's input.

    Args:
        log_decay: [B, H, blocks, block, K]. Sums run in float64: their differences must not lose small steps.

    Returns:
        [B, H, blocks, block, K] and [B, H, blocks, block, block, K].
    """
    sums = log_decay.double().cumsum(3)
    later = torch.ones(log_decay.shape[3], log_decay.shape[3], dtype=torch.bool, device=log_decay.device).triu(1)
    between = (sums[:, :, :, :, None] - sums[:, :, :, None]).masked_fill(later[..., None], -torch.inf)
    return sums.to(log_decay.dtype).exp(), between.to(log_decay.dtype).exp()


def chunk_scan_blocks(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    dt_bias: Tensor | None,
    softplus: bool,
    dt_min: float | None,
    dt_max: float | None,
) -> Tensor:
    """`chunk_scan` by the block decomposition of arXiv 2405.21060, listing 1: products within, a recurrence between."""
    kept = recurrent.accumulator(x)
    step = recurrent.bounded(recurrent.step_sizes(dt, dt_bias, softplus), dt_min, dt_max).to(kept)
    rows = x.to(kept)
    drive = _in_blocks(rows * step[..., None], BLOCK)
    inputs, outputs = (_in_blocks(part.to(kept), BLOCK) for part in (b, c))
    since_start, between = _decays(_in_blocks((step * a.to(kept))[..., None], BLOCK))
    heads = x.shape[2] // b.shape[2]
    scores = (outputs @ inputs.transpose(-1, -2)).repeat_interleave(heads, 1)
    inputs, outputs = (part.repeat_interleave(heads, 1) for part in (inputs, outputs))
    y = (scores * between[..., 0]) @ drive
    added = (drive * between[..., -1, :, :]).transpose(-1, -2) @ inputs
    state = torch.zeros_like(added[:, :, 0])
    for i in range(added.shape[2]):
        y[:, :, i] += outputs[:, :, i] @ state.transpose(-1, -2) * since_start[:, :, i]
        state = state * since_start[:, :, i, -1:] + added[:, :, i]
    seen = _out_of_blocks(y, x.shape[1])
    return seen if d is None else seen + rows * (d if d.dim() == 2 else d[:, None])


def delta_blocks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, normalize: bool) -> Tensor:
    """`gated_delta_rule` by the UT transform of arXiv 2406.06484, section 3: one triangular system a block."""
    block = CHANNEL_BLOCK if g.dim() == 4 else BLOCK
    operands = recurrent.delta_operands(q, k, v, g, beta, normalize)
    queries, keys, values, log_decay, rates = (_in_blocks(part, block) for part in operands)
    since_start, between = _decays(log_decay)
    rated = keys * rates
    within, mixing = (_weighed(rows, keys, between) for rows in (queries, rated))
    right = torch.cat([values * rates, rated * since_start], -1)
    solved = torch.linalg.solve_triangular(mixing, right, upper=False, unitriangular=True)
    written, read = solved.split([v.shape[3], q.shape[3]], -1)
    asking, kept = queries * since_start, keys * between[..., -1, :, :]
    state = values.new_zeros((v.shape[0], v.shape[2], q.shape[3], v.shape[3]))
    y = torch.empty_like(written)
    for i in range(y.shape[2]):
        new = written[:, :, i] - read[:, :, i] @ state
        y[:, :, i] = asking[:, :, i] @ state + within[:, :, i] @ new
        state = state * since_start[:, :, i, -1, :, None] + kept[:, :, i].transpose(-1, -2) @ new
    return _out_of_blocks(y, v.shape[1]).to(q.dtype)


def _weighed(rows: Tensor, keys: Tensor, between: Tensor) -> Tensor:
    """Products of rows and keys within a block, each weighed by the decay between them: [..., block, block]."""
    if between.shape[-1] == 1:
        return (rows @ keys.transpose(-1, -2)) * between[..., 0]
    return torch.einsum("...ik,...jk,...ijk->...ij", rows, keys, between)


DECOMPOSITIONS: dict[Any, Callable[..., Tensor]] = {
    CAUSAL_CONV1D: convolution_taps,
    SELECTIVE_SCAN: opaque(
        "selective_scan_blocks", recurrent.SELECTIVE_SCHEMA, scan_blocks, recurrent.selective_scan_shape
    ),
    CHUNK_SCAN: opaque("chunk_scan_blocks", recurrent.CHUNK_SCHEMA, chunk_scan_blocks, recurrent.chunk_scan_shape),
    GATED_DELTA_RULE: opaque(
        "gated_delta_rule_blocks", recurrent.DELTA_SCHEMA, delta_blocks, recurrent.gated_delta_rule_shape
    ),
    **linear_recurrence.DECOMPOSITIONS,
    **lstm.DECOMPOSITIONS,
}
