"""The recurrences of a cached program: a Scan over the tokens of a batch, from the state that its sequences left.

A body says what one token does, of a whole batch: state [B, ...] and the token's operands to the state after it and the
answer. Padding does nothing: the state passes it by as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from headrace.backends.onnx.export import past
from headrace.backends.onnx.export.body import Step
from headrace.backends.onnx.export.past import PastTranslation, functional
from headrace.backends.onnx.export.translate import as_function, first
from headrace.compat.torch_code import define
from headrace.ops.linear_recurrence import LINEAR_RECURRENCE
from headrace.ops.recurrent import (
    CAUSAL_CONV1D,
    CHUNK_SCAN,
    GATED_DELTA_RULE,
    NORM_EPSILON,
    SELECTIVE_SCAN,
    TOKEN_SHIFT,
)
from headrace.ops.stateful import RECURRENCES, STATE_ARGUMENTS

Body = Callable[["Step", ir.Value, Sequence[ir.Value]], tuple[ir.Value, ir.Value]]


def scan_body(body: Body, rank: int, operands: int) -> ir.Graph:
    """The graph of a Scan: state, whether each sequence's token is real, and its operands, to state and answer.

    Args:
        rank: of the state.
    """
    step = Step()
    state, real, *given = (
        ir.Value(name=name, type=ir.TensorType(kind))
        for name, kind in (
            ("state", ir.DataType.FLOAT), ("real", ir.DataType.BOOL),
            *((f"operand_{place}", ir.DataType.FLOAT) for place in range(operands)),
        )
    )  # fmt: skip
    after, answer = body(step, state, given)
    kept = step.of("Where", step.beside(real, *range(1, rank)), after, state)
    for value in (kept, answer):
        value.type = ir.TensorType(ir.DataType.FLOAT)
    return ir.Graph(inputs=[state, real, *given], outputs=[kept, answer], nodes=step.nodes, name="token")


def selective(a: ir.Value) -> Body:
    """State [B, D, N], by a [D, N]: of dt and x [B, D], b and c [B, N]; answer [B, D]."""

    def body(step: Step, state: ir.Value, given: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
        dt, x, b, c = given
        now = step.beside(dt, 2)
        added = step.of("Mul", step.of("Mul", now, step.beside(x, 2)), step.beside(b, 1))
        after = step.of("Add", step.of("Mul", step.of("Exp", step.of("Mul", now, a)), state), added)
        return after, step.total(step.of("Mul", after, step.beside(c, 1)), 2)

    return body


def chunk(step: Step, state: ir.Value, given: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
    """State [B, H, P, N]: of the decay [B, H], dt * x [B, H, P], b and c [B, H, N]; answer [B, H, P]."""
    decay, x, b, c = given
    added = step.of("Mul", step.beside(x, 3), step.beside(b, 2))
    after = step.of("Add", step.of("Mul", step.beside(decay, 2, 3), state), added)
    return after, step.total(step.of("Mul", after, step.beside(c, 2)), 3)


def delta(step: Step, state: ir.Value, given: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
    """State [B, H, K, V]: of q, k [B, H, K], v [B, H, V], decay [B, H, K or 1], beta [B, H, 1]; answer [B, H, V]."""
    q, k, v, decay, beta = given
    kept, key = step.of("Mul", state, step.beside(decay, 3)), step.beside(k, 3)
    known = step.total(step.of("Mul", kept, key), 2)
    new = step.of("Mul", beta, step.of("Sub", v, known))
    after = step.of("Add", kept, step.of("Mul", key, step.beside(new, 2)))
    return after, step.total(step.of("Mul", after, step.beside(q, 3)), 2)


def linear(step: Step, state: ir.Value, given: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
    """State [B, D]: of x and the decay [B, D]; the answer is the state."""
    x, decay = given
    after = step.of("Add", step.of("Mul", decay, state), x)
    return after, step.of("Identity", after)


FUNCTIONAL = past.FUNCTIONAL | {
    one.going_on: define(
        functional(one.schema.replace("(", f"{one.name}_state(", 1).replace(") ->", f", {STATE_ARGUMENTS}) ->")),
        one.go_on,
        lambda *given, one=one: one.like(*given[:-4]),
    )
    for one in RECURRENCES.values()
}


class StateTranslation(PastTranslation):
    """The translations of a cached program that keeps states beside keys and values, or none of those.

    `rows`, `cu_seqlens` and `context` say where a step's sequences lie, which a batch says by itself.
    """

    def table(self) -> dict[Any, Callable[..., Any]]:
        """What each operator becomes."""
        methods: dict[Any, Callable[..., Any]] = {
            CAUSAL_CONV1D: self.convolution,
            SELECTIVE_SCAN: self.selective_scan,
            CHUNK_SCAN: self.chunk_scan,
            GATED_DELTA_RULE: self.delta_rule,
            TOKEN_SHIFT: self.token_shift,
            LINEAR_RECURRENCE: self.linear_recurrence,
        }
        going_on = {
            FUNCTIONAL[RECURRENCES[operator].going_on]: as_function(method) for operator, method in methods.items()
        }
        return super().table() | going_on

    def convolution(
        self, x: Any, weight: Any, bias: Any, state: Any, rows: Any, cu_seqlens: Any, context: Any
    ) -> Any:  # fmt: skip
        """`causal_conv1d_state`: [1, C, T]."""
        op, (channels, kernel) = self.op, (int(size) for size in weight.shape)
        own = op.Transpose(self._real(self._split(x, 2)), perm=(0, 2, 1))
        whole = op.Concat(state, own, axis=2)
        self._presents[state.name], self._kept[state.name] = (whole, 0), (2, kernel - 1)
        taken = [op.Unsqueeze(weight, self._ints(1)), *([] if bias is None else [bias])]
        made = op.Conv(whole, *taken, group=channels)
        return self._join(op.Transpose(made, perm=(0, 2, 1)), (channels,), 2)

    def token_shift(self, x: Any, state: Any, rows: Any, cu_seqlens: Any, context: Any) -> Any:
        """`token_shift_state`: [1, T, D]."""
        op = self.op
        whole = op.Concat(op.Unsqueeze(state, self._ints(1)), self._real(self._split(x, 1)), axis=1)
        self._presents[state.name], self._kept[state.name] = (whole, 0), (1, 1)
        made = op.Slice(whole, self._ints(0), self._shape(self._dim(self.ids, 1)), self._ints(1))
        return self._join(made, (int(x.shape[2]),), 1)

    def selective_scan(  # noqa: PLR0913, PLR0917 - what the operator takes
        self, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, z: Any, dt_bias: Any, softplus: bool, state: Any,
        rows: Any, cu_seqlens: Any, context: Any,
    ) -> Any:  # fmt: skip
        """`selective_scan_state`: [1, D, T]."""
        op, own = self.op, self._split(x, 2)
        step = self._steps(self._split(dt, 2), dt_bias, softplus)
        y = self._scan(selective(a), state, [step, own, self._split(b, 2), self._split(c, 2)])
        y = y if d is None else op.Add(y, op.Mul(own, d))
        if z is not None:
            gate = self._split(z, 2)
            y = op.Mul(y, op.Mul(gate, op.Sigmoid(gate)))
        return self._join(y, (int(x.shape[1]),), 2)

    def chunk_scan(  # noqa: PLR0913, PLR0917 - what the operator takes
        self, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, dt_bias: Any, softplus: bool, dt_min: Any, dt_max: Any,
        state: Any, rows: Any, cu_seqlens: Any, context: Any,
    ) -> Any:  # fmt: skip
        """`chunk_scan_state`: [1, T, H, P]."""
        op, (heads, width) = self.op, (int(size) for size in x.shape[2:])
        step, own = self._steps(self._split(dt, 1), dt_bias, softplus), self._split(x, 1)
        step = step if dt_min is None else op.Max(step, op.Constant(value_float=float(dt_min)))
        step = step if dt_max is None else op.Min(step, op.Constant(value_float=float(dt_max)))
        scaled = op.Mul(op.Unsqueeze(step, self._ints(3)), own)
        inputs, outputs = (self._per_head(self._split(part, 1), part, heads) for part in (b, c))
        y = self._scan(chunk, state, [op.Exp(op.Mul(step, a)), scaled, inputs, outputs])
        if d is not None:
            y = op.Add(y, op.Mul(own, d if len(d.shape) == 2 else op.Unsqueeze(d, self._ints(1))))
        return self._join(y, (heads, width), 1)

    def delta_rule(
        self, q: Any, k: Any, v: Any, g: Any, beta: Any, normalize: bool, state: Any, rows: Any, cu_seqlens: Any,
        context: Any,
    ) -> Any:  # fmt: skip
        """`gated_delta_rule_state`: [1, T, H, V]."""
        op, (heads, width) = self.op, (int(size) for size in v.shape[2:])
        queries, keys = (self._per_head(self._split(x, 1), x, heads) for x in (q, k))
        if normalize:
            queries, keys = map(self._unit, (queries, keys))
        queries = op.Mul(queries, op.Constant(value_float=int(q.shape[3]) ** -0.5))
        decay = self._split(g, 1)
        decay = op.Exp(decay if len(g.shape) == 4 else op.Unsqueeze(decay, self._ints(3)))
        rates = op.Unsqueeze(self._split(beta, 1), self._ints(3))
        y = self._scan(delta, state, [queries, keys, self._split(v, 1), decay, rates])
        return self._join(y, (heads, width), 1)

    def linear_recurrence(
        self, x: Any, decay: Any, state: Any, rows: Any, cu_seqlens: Any, context: Any
    ) -> Any:  # fmt: skip
        """`linear_recurrence_state`: [1, T, D]."""
        y = self._scan(linear, state, [self._split(x, 1), self._split(decay, 1)])
        return self._join(y, (int(x.shape[2]),), 1)

    def _scan(self, body: Body, state: Any, operands: list[Any]) -> Any:
        """The answers [B, L, ...] of a body to each token's operands [B, L, ...]."""
        count = len(operands) + 1
        made = self.op.Scan(
            state, self._new(), *operands, body=scan_body(body, len(state.shape), len(operands)),
            num_scan_inputs=count, scan_input_axes=[1] * count, scan_output_axes=[1],
        )  # fmt: skip
        node = first(made).producer()
        node.resize_outputs(2)
        node.outputs[1].name = f"{node.outputs[0].name}_answers"
        self._presents[state.name] = (node.outputs[1], 0)
        return node.outputs[1]

    def _split(self, x: Any, along: int) -> Any:
        """Tokens of one row, [1, ...] with them along an axis, as [B, L, ...]."""
        rest = [int(size) for place, size in enumerate(x.shape) if place not in (0, along)]
        if along == 2:
            x = self.op.Transpose(x, perm=(0, 2, 1))
        return self.op.Reshape(x, self._shape(self._dim(self.ids, 0), self._dim(self.ids, 1), *rest))

    def _join(self, y: Any, rest: tuple[int, ...], along: int) -> Any:
        """The reverse of `_split`."""
        row = self.op.Reshape(y, self._ints(1, -1, *rest))
        return self.op.Transpose(row, perm=(0, 2, 1)) if along == 2 else row

    def _new(self) -> Any:
        """Which of the new tokens are real, bool [B, L]."""
        total = self._dim(self.padding, 1)
        own = self.op.Sub(total, self._dim(self.ids, 1))
        return self.op.Slice(self._truth(self.padding), self._shape(own), self._shape(total), self._ints(1))

    def _real(self, x: Any) -> Any:
        """Rows [B, L, D], of padding zeros."""
        return self.op.Where(self.op.Unsqueeze(self._new(), self._ints(2)), x, self.op.Constant(value_float=0.0))

    def _steps(self, dt: Any, bias: Any, softplus: bool) -> Any:
        """`headrace.ops.recurrent.step_sizes`, the last axis that of the bias."""
        biased = dt if bias is None else self.op.Add(dt, bias)
        return self.op.Softplus(biased) if softplus else biased

    def _per_head(self, x: Any, like: Any, heads: int) -> Any:
        """Groups [B, L, G, N] once for each of their heads."""
        op, groups, width = self.op, int(like.shape[2]), int(like.shape[3])
        if groups == heads:
            return x
        batch, length = self._dim(self.ids, 0), self._dim(self.ids, 1)
        wide = self._shape(batch, length, groups, heads // groups, width)
        spread = op.Expand(op.Unsqueeze(x, self._ints(3)), wide)
        return op.Reshape(spread, self._shape(batch, length, heads, width))

    def _unit(self, x: Any) -> Any:
        """`headrace.ops.recurrent.normalised`."""
        op = self.op
        square = op.ReduceSum(op.Mul(x, x), self._ints(3), keepdims=1)
        return op.Div(x, op.Sqrt(op.Add(square, op.Constant(value_float=NORM_EPSILON))))
