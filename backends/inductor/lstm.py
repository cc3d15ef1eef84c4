"""The operator of `headrace.ops.lstm` by torch's own, which knows no padding: a text's rows come first, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace.backends.inductor.opaque import opaque
from headrace.ops.lstm import LSTM, LSTM_SCHEMA, lstm_shape
from headrace.ops.recurrent import accumulator


def lstm_rows(x: Tensor, padding: Tensor, w: Tensor, r: Tensor, bias: Tensor) -> Tensor:
    """`lstm` with real rows first, those of the second direction from the last on: what comes after them is not read.

    No length is asked of a tensor, so that nothing waits for the device.
    """
    kept, real = accumulator(x), padding.bool()
    seen, places = real.cumsum(1), torch.arange(x.shape[1], device=x.device)
    orders = (x.shape[1] - places, seen - 1), (places + 1, seen[:, -1:] - seen)
    sides = []
    for side in range(w.shape[0]):
        early, place = orders[side]
        rows = _taken(x.to(kept), (real * early).argsort(1, descending=True))
        weights = [w[side].to(kept), r[side].to(kept), bias[side].to(kept), torch.zeros_like(bias[side], dtype=kept)]
        state = rows.new_zeros((1, x.shape[0], r.shape[2]))
        made = torch.lstm(rows, (state, state), weights, True, 1, 0.0, False, False, True)[0]
        sides.append(_taken(made, place.clamp(min=0)) * real[..., None])
    return torch.cat(sides, -1).to(x.dtype).contiguous()


def _taken(rows: Tensor, places: Tensor) -> Tensor:
    """Of rows [B, L, D] those at places [B, L]."""
    return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[2]))


DECOMPOSITIONS: dict[Any, Callable[..., Tensor]] = {LSTM: opaque("lstm_rows", LSTM_SCHEMA, lstm_rows, lstm_shape)}
