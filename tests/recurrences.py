"""Operands of the recurrent operators, and their published recurrences written out a number at a time in float64."""

from __future__ import annotations

import math

import torch

from headrace.ops.recurrent import accumulator


def draw(seed: int, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def convolution_operands(length: int, dtype: torch.dtype = torch.float64):
    return draw(length, (2, 3, length), (3, 4), (3,), dtype=dtype)


def scan_operands(length: int, dtype: torch.dtype = torch.float64):
    """x, dt, a, b, c, d, z, dt_bias, softplus for 3 channels with a state of 2 each."""
    x, dt, z = draw(length, *[(2, 3, length)] * 3, dtype=dtype)
    b, c = draw(length + 1, *[(2, 2, length)] * 2, dtype=dtype)
    a, d, bias = draw(length + 2, (3, 2), (3,), (3,), dtype=accumulator(x))
    return x, dt, -a.exp(), b, c, d, z, bias, True


def chunk_operands(length: int, dtype: torch.dtype = torch.float64):
    """x, dt, a, b, c, d, dt_bias, softplus, bounds for 4 heads in 2 groups."""
    x, b, c = draw(length, (2, length, 4, 3), *[(2, length, 2, 2)] * 2, dtype=dtype)
    (dt,) = draw(length + 1, (2, length, 4), dtype=dtype)
    a, d, bias = draw(length + 2, *[(4,)] * 3, dtype=accumulator(x))
    return x, dt, -a.exp(), b, c, d, bias, True, 0.1, 2.0


def delta_operands(length: int, dtype: torch.dtype = torch.float64, *, channels: bool = False):
    """q, k, v, g, beta, normalize for 2 key heads and 4 value heads; 4 of both where channels decay apart."""
    q, k = draw(length, *[(2, length, 4 if channels else 2, 3)] * 2, dtype=dtype)
    v, beta = draw(length + 1, (2, length, 4, 5), (2, length, 4), dtype=dtype)
    (g,) = draw(length + 2, (2, length, 4, 3) if channels else (2, length, 4), dtype=accumulator(q))
    return q, k, v, -g.exp(), beta.sigmoid(), True


def convolved(x, weight, bias):
    out = torch.zeros_like(x)
    for batch, channel, t in torch.cartesian_prod(*(torch.arange(n) for n in x.shape)).tolist():
        taps = [(k, t - weight.shape[1] + 1 + k) for k in range(weight.shape[1])]
        out[batch, channel, t] = bias[channel] + sum(
            weight[channel, k] * x[batch, channel, s] for k, s in taps if s >= 0
        )
    return out


def scanned(x, dt, a, b, c, d, z, bias, _softplus):
    out = torch.zeros_like(x)
    for batch, channel in torch.cartesian_prod(torch.arange(x.shape[0]), torch.arange(x.shape[1])).tolist():
        state = [0.0] * a.shape[1]
        for t in range(x.shape[2]):
            now, step = float(x[batch, channel, t]), math.log1p(math.exp(dt[batch, channel, t] + bias[channel]))
            for n in range(len(state)):
                state[n] = math.exp(step * a[channel, n]) * state[n] + step * float(b[batch, n, t]) * now
            y = sum(float(c[batch, n, t]) * h for n, h in enumerate(state)) + float(d[channel]) * now
            gate = float(z[batch, channel, t])
            out[batch, channel, t] = y * gate / (1 + math.exp(-gate))
    return out


def chunk_scanned(x, dt, a, b, c, d, bias, _softplus, least, most):
    out = torch.zeros_like(x)
    for batch, head in torch.cartesian_prod(torch.arange(x.shape[0]), torch.arange(x.shape[2])).tolist():
        group, state = head * b.shape[2] // x.shape[2], torch.zeros(x.shape[3], b.shape[3], dtype=x.dtype)
        for t in range(x.shape[1]):
            step = min(max(math.log1p(math.exp(dt[batch, t, head] + bias[head])), least), most)
            state = math.exp(step * a[head]) * state + step * torch.outer(x[batch, t, head], b[batch, t, group])
            out[batch, t, head] = state @ c[batch, t, group] + d[head] * x[batch, t, head]
    return out


def delta_ruled(q, k, v, g, beta, _normalize):
    """The published form, with the projection (I - beta k k^T) as a matrix."""
    out = torch.zeros_like(v)
    eye = torch.eye(q.shape[3], dtype=q.dtype)
    for batch, head in torch.cartesian_prod(torch.arange(v.shape[0]), torch.arange(v.shape[2])).tolist():
        key_head, state = head * k.shape[2] // v.shape[2], torch.zeros(q.shape[3], v.shape[3], dtype=q.dtype)
        for t in range(v.shape[1]):
            key, query = (x[batch, t, key_head] / (x[batch, t, key_head].square().sum() + 1e-6).sqrt() for x in (k, q))
            decay = torch.diag(g[batch, t, head].exp() * torch.ones(q.shape[3], dtype=q.dtype))
            rate = beta[batch, t, head]
            state = (eye - rate * torch.outer(key, key)) @ decay @ state + rate * torch.outer(key, v[batch, t, head])
            out[batch, t, head] = state.T @ query / q.shape[3] ** 0.5
    return out


def kimi_operands(length: int, dtype: torch.dtype = torch.float64):
    return delta_operands(length, dtype, channels=True)


def linear_operands(length: int, dtype: torch.dtype = torch.float64):
    """x, decay."""
    x, decay = draw(length, *[(2, length, 3)] * 2, dtype=dtype)
    return x, decay.sigmoid()


def wkv_operands(length: int, dtype: torch.dtype = torch.float64):
    """decay, first, k, v; keys far enough apart that a plain exponential would overflow."""
    decay, first = draw(length, (3,), (3,), dtype=accumulator(torch.empty((), dtype=dtype)))
    k, v = draw(length + 1, *[(2, length, 3)] * 2, dtype=dtype)
    return decay, first, 50 * k, v


def mlstm_operands(length: int, dtype: torch.dtype = torch.float64):
    """q, k, v, i, f, epsilon."""
    q, k = draw(length, *[(2, 3, length, 4)] * 2, dtype=dtype)
    v, i, f = draw(length + 1, (2, 3, length, 5), *[(2, 3, length)] * 2, dtype=dtype)
    return q, k, v, i, 2 * f, 1e-6


def lstm_operands(length: int, dtype: torch.dtype = torch.float64):
    """x, padding, w, r, bias, both ways; padding stands around and within the second text, and is all of the third."""
    x, w, r, bias = draw(length, (3, length, 4), (2, 12, 4), (2, 12, 3), (2, 12), dtype=dtype)
    padding = torch.ones(3, length, dtype=torch.int64)
    padding[1, : length // 4] = padding[1, length // 2] = padding[1, length - length // 4 :] = padding[2] = 0
    return x, padding, w, r, bias


def linearly_recurred(x, decay):
    out = torch.zeros_like(x)
    for batch, t in torch.cartesian_prod(torch.arange(x.shape[0]), torch.arange(x.shape[1])).tolist():
        carried = decay[batch, t] * out[batch, t - 1] if t else 0
        out[batch, t] = carried + x[batch, t]
    return out


def weighed(decay, first, k, v):
    """As a softmax of every earlier token's log weight: no state, no running maximum."""
    out = torch.zeros_like(k)
    for batch, t in torch.cartesian_prod(torch.arange(k.shape[0]), torch.arange(k.shape[1])).tolist():
        ages = torch.arange(t - 1, -1, -1, dtype=k.dtype)[:, None]
        logs = torch.cat([k[batch, :t] - ages * decay.exp(), (k[batch, t] + first)[None]])
        out[batch, t] = (torch.softmax(logs, 0) * v[batch, : t + 1]).sum(0)
    return out


def remembered(q, k, v, i, f, epsilon):
    """Without the running maximum, which only keeps the exponentials from overflowing: `epsilon` is scaled by it."""
    out = torch.zeros_like(v)
    for batch, head in torch.cartesian_prod(torch.arange(q.shape[0]), torch.arange(q.shape[1])).tolist():
        memory, norm = torch.zeros(q.shape[3], v.shape[3], dtype=q.dtype), torch.zeros(q.shape[3], dtype=q.dtype)
        largest = 0.0
        for t in range(q.shape[2]):
            forget, write = f[batch, head, t].sigmoid(), i[batch, head, t].exp()
            memory = forget * memory + write * torch.outer(k[batch, head, t], v[batch, head, t])
            norm = forget * norm + write * k[batch, head, t]
            largest = max(largest + math.log(forget), float(i[batch, head, t]))
            query = q[batch, head, t] / q.shape[3] ** 0.5
            size = max(abs(float(query @ norm)), 1.0) + epsilon * math.exp(largest)
            out[batch, head, t] = memory.T @ query / size
    return out


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((one.double() - other.double()).abs().max() / other.double().abs().max())


def widened(operands: tuple) -> list:
    """The same operands in float64."""
    return [x.double() if isinstance(x, torch.Tensor) else x for x in operands]
