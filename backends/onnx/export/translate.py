"""The IR's operators in terms of ONNX: the tables of translations that `torch.onnx.export` takes.

Each translation says what `headrace.ops` says, in operators that the profile may use. The values are onnxscript's; a
size that the graph fixes arrives as an int.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from onnx import TensorProto
from onnxscript.values import Opset

from headrace.backends.onnx.export.experts import grouped_product
from headrace.backends.onnx.profiles import Form, Profile
from headrace.ir import MaskKind, PoolKind, Window
from headrace.ops.attention import ATTENTION, MASK, POOL
from headrace.ops.lstm import LSTM

# A score that a softmax turns into nothing, without the NaN that a whole row of infinities gives.
HIDDEN = -1e30


def table(profile: Profile) -> dict[Any, Callable[..., Any]]:
    """What each operator of the IR becomes in a profile."""
    return Translation(profile).table()


def as_function(method: Callable[..., Any]) -> Callable[..., Any]:
    """The exporter notes the signature on what it is given, which a method cannot hold."""

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        return method(*args, **options)

    return call


def says_all(kind: str, window: Sequence[int]) -> bool:
    """Whether kind and lengths say what a query sees, so that no mask has to be written out.

    Under a causal mask the lengths need not even be said: padding on the right comes after every real token.
    """
    return not Window(*window).bounded


class Translation:
    """The translations of one profile."""

    def __init__(self, profile: Profile) -> None:
        """Keep the form, and the opset's operators."""
        # By number: onnxscript has no module of the newest opsets.
        self.form, self.op = profile.attention, Opset("", profile.written)

    def table(self) -> dict[Any, Callable[..., Any]]:
        """What each operator of the IR becomes."""
        methods: dict[Any, Callable[..., Any]] = {
            ATTENTION: self.attention, MASK: self.mask, POOL: self.pool, LSTM: self.lstm,
        }  # fmt: skip
        return {operator: as_function(method) for operator, method in methods.items()}

    def mask(
        self, padding: Any, batch: Any, q_len: Any, kv_len: Any, q_offset: Any, kv_offset: Any, kind: str,
        window: Sequence[int], device: str,
    ) -> Any:  # fmt: skip
        """`headrace::mask`: bool [batch, 1, q_len, kv_len]; with lengths that say it all, int64 [batch]."""
        op = self.op
        if self.form is Form.LENGTHS and says_all(kind, window):
            if padding is None:
                real = op.Expand(self._ints(1), self._shape(batch, kv_len))
            else:
                real = op.Cast(self._truth(padding), to=TensorProto.INT64)
            return op.ReduceSum(real, self._ints(1), keepdims=0)
        seen = self._visible(self._places(q_len, q_offset), self._places(kv_len, kv_offset), kind, window, padding)
        if padding is not None:
            end = op.Add(self._size(kv_len), self._size(kv_offset))
            real = op.Slice(self._truth(padding), self._shape(kv_offset), self._shape(end), self._ints(1))
            real = op.Unsqueeze(real, self._ints(1, 2))
            seen = real if seen is None else op.And(seen, real)
        shape = self._shape(batch, 1, q_len, kv_len)
        return op.Expand(op.Constant(value=_true()) if seen is None else seen, shape)

    def attention(
        self, q: Any, k: Any, v: Any, mask: Any, bias: Any, sinks: Any, scale: float, kind: str,
        window: Sequence[int], softcap: float,
    ) -> Any:  # fmt: skip
        """`headrace::attention`: [B, L, Hq, Dv]."""
        # The operator knows no sinks, and caps before it adds.
        if self.form is Form.PLAIN or sinks is not None or (bias is not None and softcap > 0):
            return self._plain(q, k, v, self._written(q, k, mask, kind, window), bias, sinks, scale, softcap)
        options = {"scale": scale, "softcap": softcap}
        whole, causal = says_all(kind, window), kind == MaskKind.CAUSAL
        if whole and causal and q.shape[2] == k.shape[2] and (mask is None or self.form is Form.LENGTHS):
            mask, options["is_causal"] = None, 1
        elif bias is not None or causal or not whole or self.form is not Form.LENGTHS:
            # Else the lengths stay in the mask's place; `graph.build` moves them to their own.
            mask = self._written(q, k, mask, kind, window)
        found = self.op.Attention(q, k, v, *self._added(mask, bias), **options)
        return self.op.Transpose(first(found), perm=(0, 2, 1, 3))

    def _added(self, mask: Any, bias: Any) -> list[Any]:
        """What the operator Attention is given of a mask and a bias in one: nothing where there is neither."""
        op = self.op
        if mask is not None and bias is not None:
            return [op.Where(mask, bias, op.CastLike(op.Constant(value_float=-float("inf")), bias))]
        return [one for one in (bias, mask) if one is not None]

    def _written(self, q: Any, k: Any, mask: Any, kind: str, window: Sequence[int]) -> Any:
        """The mask as bool [B, 1, L, S], None where every query sees every key."""
        op = self.op
        lengths = self.form is Form.LENGTHS and says_all(kind, window)
        if mask is not None and not lengths:
            return mask
        if kind == MaskKind.BIDIRECTIONAL and says_all(kind, window) and mask is None:
            return None
        q_len, kv_len = self._dim(q, 2), self._dim(k, 2)
        seen = self._visible(self._places(q_len, op.Sub(kv_len, q_len)), self._places(kv_len, 0), kind, window)
        if lengths and mask is not None:
            real = op.Less(self._places(kv_len, 0), op.Unsqueeze(mask, self._ints(1, 2, 3)))
            seen = real if seen is None else op.And(seen, real)
        return op.Expand(seen, self._shape(self._dim(q, 0), 1, q_len, kv_len))

    def _plain(
        self, q: Any, k: Any, v: Any, mask: Any, bias: Any, sinks: Any, scale: float, softcap: float
    ) -> Any:  # fmt: skip
        """`attention_scores` and `attend` of headrace.ops, line by line."""
        op = self.op
        k, v = self._repeated(q, k), self._repeated(q, v)
        scores = op.MatMul(q, op.Transpose(k, perm=(0, 1, 3, 2)))
        scores = op.Mul(scores, op.CastLike(op.Constant(value_float=scale), scores))
        if bias is not None:
            scores = op.Add(scores, bias)
        if softcap > 0:
            cap = op.CastLike(op.Constant(value_float=softcap), scores)
            scores = op.Mul(op.Tanh(op.Div(scores, cap)), cap)
        scores = op.Cast(scores, to=TensorProto.FLOAT)
        if mask is not None:
            scores = op.Where(mask, scores, op.Constant(value_float=HIDDEN))
        if sinks is not None:
            rows = op.Slice(op.Shape(scores), self._ints(0), self._ints(3), self._ints(0))
            sink = op.Reshape(op.Cast(sinks, to=TensorProto.FLOAT), self._ints(1, -1, 1, 1))
            scores = op.Concat(scores, op.Expand(sink, op.Concat(rows, self._ints(1), axis=0)), axis=-1)
        weights = op.Softmax(scores, axis=-1)
        if sinks is not None:
            weights = op.Slice(weights, self._ints(0), self._ints(-1), self._ints(3))
        if mask is not None:
            # A query that sees no key gets zeros.
            weights = op.Where(mask, weights, op.Constant(value_float=0.0))
        return op.Transpose(op.MatMul(op.CastLike(weights, v), v), perm=(0, 2, 1, 3))

    def _repeated(self, q: Any, x: Any) -> Any:
        """Keys or values [B, Hkv, S, D] once per query head."""
        op = self.op
        heads, own = int(q.shape[1]), int(x.shape[1])
        if heads == own:
            return x
        batch, length, width = self._dim(x, 0), self._dim(x, 2), int(x.shape[3])
        grouped = op.Expand(op.Unsqueeze(x, self._ints(2)), self._shape(batch, own, heads // own, length, width))
        return op.Reshape(grouped, self._shape(batch, heads, length, width))

    def pool(self, hidden: Any, padding: Any, kind: str) -> Any:
        """`headrace::pool`: [B, S, H] to [B, H] by the formulas of `headrace.ops.pool_rows`."""
        op = self.op
        real = op.Cast(self._truth(padding), to=TensorProto.INT64)
        if kind in (PoolKind.CLS, PoolKind.LAST):
            return op.GatherND(hidden, op.Unsqueeze(self._edge(real, kind), self._ints(1)), batch_dims=1)
        kept = op.Unsqueeze(self._truth(padding), self._ints(2))
        if kind == PoolKind.MAX:
            least = op.CastLike(op.Constant(value_float=-float("inf")), hidden)
            return op.ReduceMax(op.Where(kept, hidden, least), self._ints(1), keepdims=0)
        weights = op.Mul(op.CumSum(real, self._size(1)), real) if kind == PoolKind.WEIGHTED_MEAN else real
        weights = op.Cast(weights, to=TensorProto.FLOAT)
        rows = op.Where(kept, op.Cast(hidden, to=TensorProto.FLOAT), op.Constant(value_float=0.0))
        total = op.ReduceSum(op.Mul(rows, op.Unsqueeze(weights, self._ints(2))), self._ints(1), keepdims=0)
        count = op.Max(op.ReduceSum(weights, self._ints(1), keepdims=1), op.Constant(value_float=1.0))
        divisor = op.Sqrt(count) if kind == PoolKind.MEAN_SQRT_LEN else count
        return op.CastLike(op.Div(total, divisor), hidden)

    def grouped(self, rows: Any, weight: Any, ends: Any, bias: Any = None, out_dtype: Any = None) -> Any:
        """The grouped product of routed experts, [S, N]; of torch's no float32 program has the other arguments."""
        assert bias is None
        assert out_dtype is None
        return grouped_product(self.op, rows, weight, ends)

    def _edge(self, real: Any, kind: str) -> Any:
        """The place of the first or last real row of each sequence, [B]; ArgMax would do, where runtimes agreed."""
        op = self.op
        length = self._dim(real, 1)
        places = self._places(length, 0)
        if kind == PoolKind.LAST:
            return op.ReduceMax(op.Mul(real, places), self._ints(1), keepdims=0)
        past = op.Sub(length, self._size(1))
        return op.ReduceMin(op.Where(op.Cast(real, to=TensorProto.BOOL), places, past), self._ints(1), keepdims=0)

    def lstm(self, x: Any, padding: Any, w: Any, r: Any, bias: Any) -> Any:
        """`headrace::lstm`: [B, L, directions * H], by the operator LSTM with a text's real rows first.

        Of two directions the second is given its rows from the last on: lengths are not said, since what comes after
        the real rows is not read, and padding may lie anywhere.
        """
        op, length = self.op, self._dim(x, 1)
        real, places = op.Cast(self._truth(padding), to=TensorProto.INT64), self._places(length, 0)
        seen, one = op.CumSum(real, self._size(1)), self._size(1)
        left = op.Sub(op.ReduceSum(real, self._ints(1), keepdims=1), seen)
        orders = (op.Sub(length, places), op.Sub(seen, one)), (op.Add(places, one), left)
        sides = []
        for side in range(int(r.shape[0])):
            weights = [self._gates(part, side) for part in (w, r, bias)]
            sides.append(self._one_way(x, real, orders[side], weights, int(r.shape[2])))
        made = sides[0] if len(sides) == 1 else op.Concat(*sides, axis=2)
        zero = op.Constant(value_float=0.0)
        return op.CastLike(op.Where(op.Unsqueeze(self._truth(padding), self._ints(2)), made, zero), x)

    def _one_way(self, x: Any, real: Any, order: tuple[Any, Any], weights: list[Any], width: int) -> Any:
        """The states [B, L, H] of one direction, in float32.

        Args:
            order: how early each row is read, and at which place it then lies.
        """
        op, (early, place), (w, r, bias) = self.op, order, weights
        found = op.TopK(op.Mul(real, early), self._shape(self._dim(x, 1)), axis=1)
        rows = op.Cast(op.GatherND(x, op.Unsqueeze(found[1], self._ints(2)), batch_dims=1), to=TensorProto.FLOAT)
        both = op.Concat(bias, op.Sub(bias, bias), axis=1)  # it takes two, and adds them
        made = op.LSTM(op.Transpose(rows, perm=(1, 0, 2)), w, r, both, hidden_size=width)
        states = op.Transpose(op.Squeeze(first(made), self._ints(1)), perm=(1, 0, 2))
        at = op.Max(place, self._size(0))
        return op.GatherND(states, op.Unsqueeze(at, self._ints(2)), batch_dims=1)

    def _gates(self, part: Any, side: int) -> Any:
        """The weights of one direction in float32, its gates in ONNX's order: i, o, f, g."""
        op, width = self.op, int(part.shape[1]) // 4
        one = op.Cast(op.Slice(part, self._ints(side), self._ints(side + 1), self._ints(0)), to=TensorProto.FLOAT)
        i, f, g, o = (
            op.Slice(one, self._ints(width * k), self._ints(width * (k + 1)), self._ints(1)) for k in range(4)
        )
        return op.Concat(i, o, f, g, axis=1)

    def _visible(self, q: Any, k: Any, kind: str, window: Sequence[int], padding: Any = None) -> Any:
        """`headrace.ops.visible` for places q [L] and k [S]: bool, broadcast to [B, 1, L, S]; None for all.

        Args:
            padding: [B, S] where blocks are counted from a sequence's first real token.
        """
        q = self.op.Unsqueeze(q, self._ints(1))
        if kind == MaskKind.CHUNKED and padding is not None:
            real = self.op.Cast(self._truth(padding), to=TensorProto.INT64)
            first = self.op.Reshape(self._edge(real, PoolKind.CLS), self._ints(-1, 1, 1, 1))
            q, k = self.op.Sub(q, first), self.op.Sub(k, first)
        return self._related(q, k, kind, window)

    def _related(self, q: Any, k: Any, kind: str, window: Sequence[int]) -> Any:
        """`headrace.ops.visible` for positions that broadcast: bool; None for all."""
        op, (left, right) = self.op, window
        if kind == MaskKind.CHUNKED:
            size = self._size(left + 1)
            # Division truncates here: places before the first token fall into its block, and are padding.
            return op.And(op.LessOrEqual(k, q), op.Equal(op.Div(k, size), op.Div(q, size)))
        bounds = [op.LessOrEqual(k, q)] if kind == MaskKind.CAUSAL else []
        bounds += [op.GreaterOrEqual(k, op.Sub(q, self._size(left)))] if left >= 0 else []
        if right > 0 or (right == 0 and kind != MaskKind.CAUSAL):
            bounds.append(op.LessOrEqual(k, op.Add(q, self._size(right))))
        return functools.reduce(op.And, bounds) if bounds else None

    def _places(self, length: Any, offset: Any) -> Any:
        """Positions [length], from an offset on."""
        op = self.op
        places = op.Range(self._size(0), self._size(length), self._size(1))
        return places if isinstance(offset, int) and offset == 0 else op.Add(places, self._size(offset))

    def _truth(self, padding: Any) -> Any:
        return self.op.Cast(padding, to=TensorProto.BOOL)

    def _size(self, value: Any) -> Any:
        """A size as a scalar."""
        return self.op.Constant(value_int=value) if isinstance(value, int) else value

    def _dim(self, x: Any, axis: int) -> Any:
        """One dimension of a tensor as a scalar."""
        return self.op.Squeeze(self.op.Shape(x, start=axis, end=axis + 1), self._ints(0))

    def _shape(self, *sizes: Any) -> Any:
        """Sizes as a vector."""
        if all(isinstance(size, int) for size in sizes):
            return self._ints(*sizes)
        parts = [self._ints(s) if isinstance(s, int) else self.op.Reshape(s, self._ints(1)) for s in sizes]
        return self.op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]

    def _ints(self, *values: int) -> Any:
        return self.op.Constant(value_ints=values)


def first(found: Any) -> Any:
    """Of an operator's outputs the first, where it has several."""
    return found[0] if isinstance(found, (tuple, list)) else found


def _true() -> Any:
    from onnx import helper

    return helper.make_tensor("everything", TensorProto.BOOL, (1, 1, 1, 1), [True])
