"""The operators of `headrace.ops.linear_recurrence` in blocks of tokens; see `headrace.backends.inductor.recurrent`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headrace.backends.inductor.opaque import opaque
from headrace.ops import linear_recurrence
from headrace.ops.linear_recurrence import LINEAR_RECURRENCE, MLSTM, WKV
from headrace.ops.recurrent import accumulator

# A weight a pair of tokens and channel makes a channel's block small; a weight a pair and head does not.
CHANNEL_BLOCK, BLOCK = 16, 64


def linear_steps(x: Tensor, decay: Tensor) -> Tensor:
    """`linear_recurrence` in place: one product and sum a token."""
    kept = accumulator(x)
    states = x.to(kept).transpose(0, 1).clone(memory_format=torch.contiguous_format)
    forget = decay.to(kept).transpose(0, 1)
    for t in range(1, x.shape[1]):
        states[t].addcmul_(forget[t], states[t - 1])
    return states.transpose(0, 1).to(x.dtype).contiguous()


def wkv_blocks(decay: Tensor, first: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`wkv` with the weights of a block's tokens on each other at once, and the tokens before it as one."""
    kept = accumulator(k)
    forget, keys, values = -decay.to(kept).exp(), k.to(kept), v.to(kept)
    place = torch.arange(CHANNEL_BLOCK, device=k.device)
    age = (place[:, None] - 1 - place)[..., None]
    # On itself, where its age would be -1, a token weighs `first`.
    log = torch.where(age < 0, first.to(kept), age * forget).masked_fill(age < -1, -torch.inf)
    largest = torch.full_like(keys[:, 0], -torch.inf)
    sums, norm = torch.zeros_like(largest), torch.zeros_like(largest)
    seen = []
    for start in range(0, k.shape[1], CHANNEL_BLOCK):
        block = slice(start, start + CHANNEL_BLOCK)
        key, value = keys[:, block], values[:, block]
        n = key.shape[1]
        inside, before = log[:n, :n] + key[:, None], largest[:, None] + place[:n, None] * forget
        top = torch.maximum(inside.amax(2), before)
        weights, old = (inside - top[:, :, None]).exp(), (before - top).exp()
        total = (weights * value[:, None]).sum(2) + old * sums[:, None]
        seen.append(total / (weights.sum(2) + old * norm[:, None]))
        leaving, staying = key + (n - 1 - place[:n, None]) * forget, largest + n * forget
        largest = torch.maximum(leaving.amax(1), staying)
        weights, old = (leaving - largest[:, None]).exp(), (staying - largest).exp()
        sums, norm = (weights * value).sum(1) + old * sums, weights.sum(1) + old * norm
    return torch.cat(seen, 1).to(k.dtype)


def mlstm_blocks(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, epsilon: float) -> Tensor:
    """`mlstm` with products within a block and its state between blocks (xLSTM's chunkwise form)."""
    kept = accumulator(q)
    queries, keys, values = q.to(kept) * q.shape[3] ** -0.5, k.to(kept), v.to(kept)
    opened, forgot = i.to(kept), functional.logsigmoid(f.to(kept))
    memory = values.new_zeros((*q.shape[:2], q.shape[3], v.shape[3] + 1))
    # A last column of ones makes the normaliser one more value.
    values = functional.pad(values, (0, 1), value=1.0)
    largest = torch.zeros_like(opened[..., :1])
    seen = []
    for start in range(0, q.shape[2], BLOCK):
        block = slice(start, start + BLOCK)
        key, value, opening = keys[:, :, block], values[:, :, block], opened[:, :, block]
        # In float64: differences of sums must not lose small steps.
        since = forgot[:, :, block].double().cumsum(2)
        later = torch.ones(since.shape[2], since.shape[2], dtype=torch.bool, device=q.device).triu(1)
        between = (since[..., None] - since[..., None, :]).masked_fill(later, -torch.inf).to(kept)
        log, before = between + opening[..., None, :], since.to(kept) + largest
        top = torch.maximum(log.amax(3), before)
        weights = queries[:, :, block] @ key.transpose(2, 3) * (log - top[..., None]).exp()
        read = weights @ value + queries[:, :, block] @ memory * (before - top).exp()[..., None]
        size = torch.maximum(read[..., -1].abs(), (-top).exp()) + epsilon
        seen.append(read[..., :-1] / size[..., None])
        leaving, staying = between[:, :, -1] + opening, before[..., -1:]
        largest = torch.maximum(leaving.amax(2, keepdim=True), staying)
        written = key * (leaving - largest).exp()[..., None]
        memory = memory * (staying - largest).exp()[..., None] + written.transpose(2, 3) @ value
    return torch.cat(seen, 2).to(q.dtype)


DECOMPOSITIONS: dict[Any, Callable[..., Tensor]] = {
    LINEAR_RECURRENCE: opaque(
        "linear_recurrence_steps",
        linear_recurrence.LINEAR_SCHEMA,
        linear_steps,
        linear_recurrence.linear_recurrence_shape,
    ),
    WKV: opaque("wkv_blocks", linear_recurrence.WKV_SCHEMA, wkv_blocks, linear_recurrence.wkv_shape),
    MLSTM: opaque("mlstm_blocks", linear_recurrence.MLSTM_SCHEMA, mlstm_blocks, linear_recurrence.mlstm_shape),
}
