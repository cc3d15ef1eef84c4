"""Routed experts: a product of rows that lie in groups, each with a weight of its own, as a loop over the experts.

Those that no row chose are passed by, so that a step of one token reads the weights of its experts alone.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnx import TensorProto
from onnxscript.values import Opset

from headrace.backends.onnx.export.body import Step

PARTS = ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))


def grouped_product(op: Opset, rows: Any, weight: Any, ends: Any) -> Any:
    """Rows [S, K] in the order of their experts, and each one's weight, to [S, N]; past the last expert's are zeros.

    Args:
        weight: [E, K, N].
        ends: where each expert's rows end, [E].
    """
    ends = op.Cast(ends, to=TensorProto.INT64)
    first, last, zero = (op.Constant(value_ints=[place]) for place in (0, -1, 0))
    begins = op.Concat(zero, op.Slice(ends, first, last, zero), axis=0)
    chosen = op.Squeeze(op.NonZero(op.Greater(ends, begins)), zero)
    body = _body(rows, weight, begins, ends, chosen)
    nothing = op.SequenceEmpty(dtype=TensorProto.FLOAT)
    nothing.type = PARTS
    going = op.Equal(zero, zero)  # ONNX's own evaluator makes no turn where none is given
    # By name: torch takes what stands before a variadic input for part of it.
    parts = op.Loop(M=op.Size(chosen), cond=op.Squeeze(going), v_initial=(nothing,), body=body)
    parts.type = PARTS
    left = op.Sub(op.Shape(rows, start=0, end=1), op.Gather(ends, last))
    width = op.Shape(weight, start=2, end=3)
    rest = op.Expand(op.Constant(value_float=0.0), op.Concat(left, width, axis=0))
    return op.ConcatFromSequence(op.SequenceInsert(parts, rest), axis=0)


def _body(rows: Any, weight: Any, begins: Any, ends: Any, chosen: Any) -> ir.Graph:
    """One expert's rows by its weight, behind the parts before it."""
    turn, step = ir.Value(name="turn", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64)), Step()
    going = ir.Value(name="going", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
    parts = ir.Value(name="parts", type=PARTS)
    expert = step.of("Gather", chosen, turn)
    begin, end = (step.beside(step.of("Gather", bounds, expert), 0) for bounds in (begins, ends))
    own = step.of("Slice", rows, begin, end, step.axes(0))
    made = step.of("SequenceInsert", parts, step.of("MatMul", own, step.of("Gather", weight, expert)))
    made.type = PARTS
    on = step.of("Identity", going)
    on.type, on.shape = going.type, going.shape
    return ir.Graph(inputs=[turn, going, parts], outputs=[on, made], nodes=step.nodes, name="expert")
