"""The long short-term memory, over a text's rows in either direction. It has a padded form alone.

Its gates read the state before, so that no sum over tokens stands for it, and one of two directions looks at later
tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.ops.recurrent import accumulator

LSTM_SCHEMA = "(Tensor x, Tensor padding, Tensor w, Tensor r, Tensor bias) -> Tensor"


@torch.library.custom_op("headrace::lstm", mutates_args=(), schema=LSTM_SCHEMA)
def lstm(x: Tensor, padding: Tensor, w: Tensor, r: Tensor, bias: Tensor) -> Tensor:
    """One layer of an LSTM (Hochreiter and Schmidhuber 1997, with forget gates), with states `h` and `c` [H] a text.

    `i, f, g, o = w x[t] + r h[t-1] + bias`, `c[t] = sigmoid(f) c[t-1] + sigmoid(i) tanh(g)`,
    `h[t] = sigmoid(o) tanh(c[t])`. Of two directions the second goes from a text's last token to its first. Padding
    does nothing: the states pass it by as they are, wherever it lies.

    Args:
        x: [B, L, D]. padding: [B, L], nonzero at real tokens.
        w: [1 or 2 directions, 4 H, D], r: [directions, 4 H, H], bias: [directions, 4 H]; the gates i, f, g, o.

    Returns:
        [B, L, directions * H], every `h[t]`, in `x`'s dtype; zeros at padding.
    """
    kept = accumulator(x)
    rows, real = x.to(kept), padding.bool()[..., None]
    sides = []
    for side, (into, over, added) in enumerate(zip(w.to(kept), r.to(kept), bias.to(kept), strict=True)):
        given = rows @ into.T + added
        h = c = rows.new_zeros((x.shape[0], over.shape[1]))
        seen = [h] * x.shape[1]
        for t in reversed(range(x.shape[1])) if side else range(x.shape[1]):
            i, f, g, o = (given[:, t] + h @ over.T).chunk(4, -1)
            memory = f.sigmoid() * c + i.sigmoid() * g.tanh()
            c, h = torch.where(real[:, t], memory, c), torch.where(real[:, t], o.sigmoid() * memory.tanh(), h)
            seen[t] = h * real[:, t]
        sides.append(torch.stack(seen, 1))
    return torch.cat(sides, -1).to(x.dtype)


@lstm.register_fake
def lstm_shape(x: Tensor, padding: Tensor, w: Tensor, r: Tensor, bias: Tensor) -> Tensor:
    """[B, L, directions * H], in the rows' dtype."""
    return x.new_empty((*x.shape[:2], r.shape[0] * r.shape[2]))


LSTM = torch.ops.headrace.lstm.default
