"""The inputs of an ONNX graph as its users give them: positions are computed, lengths may take the mask's place."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import tape

from headrace.backends.onnx import names


def compute_positions(model: ir.Model, offset: int) -> None:
    """Positions from the mask, on whichever side the padding lies: most callers of an encoder give none.

    A real token's position is `offset` plus the number of real tokens before it.
    """
    given = {value.name: value for value in model.graph.inputs}
    if (positions := given.get(names.POSITIONS)) is None:
        return
    made = Tape("positions")
    counted = made.op("CumSum", [given[names.PADDING], made.constant(1)])
    places = made.op("Max", [made.op("Sub", [counted, made.constant(1)]), made.constant(0)])
    _replace(model, positions, made.op("Add", [places, made.constant(offset)]), made)


def take_lengths(model: ir.Model) -> None:
    """`sequence_lengths` [batch] in place of the mask: what follows a sequence's tokens is padding."""
    given = {value.name: value for value in model.graph.inputs}
    padding, made = given[names.PADDING], Tape("padding")
    lengths = ir.Value(
        name=names.LENGTHS, shape=ir.Shape([names.BATCH]), type=ir.TensorType(ir.DataType.INT64)
    )  # fmt: skip
    model.graph.inputs.append(lengths)
    sequence = made.op("Squeeze", [made.op("Shape", [given[names.IDS]], {"start": 1, "end": 2})])
    places = made.op("Range", [made.constant(0), sequence, made.constant(1)])
    real = made.op("Less", [places, made.op("Unsqueeze", [lengths, made.constant([1])])])
    _replace(model, padding, made.op("Cast", [real], {"to": ir.DataType.INT64}), made)


class Tape(tape.Tape):
    """Nodes in order, each named after what they compute."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def op(self, op_type: str, inputs: Any, attributes: Any = None, **options: Any) -> ir.Value:
        """The value of a new node."""
        name = f"{self._what}_{len(self.nodes)}"
        value = super().op(op_type, inputs, attributes, name=f"node_{name}", **options)
        value.name = name
        return value

    def constant(self, value: int | list[int]) -> ir.Value:
        """An int64 constant."""
        return self.op("Constant", [], {"value": ir.tensor(np.asarray(value, np.int64))})


def _replace(model: ir.Model, given: ir.Value, computed: ir.Value, made: Tape) -> None:
    """Compute at the graph's beginning what was an input."""
    give(given, computed)
    model.graph.inputs.remove(given)
    put_first(model, made)


def give(given: ir.Value, computed: ir.Value) -> None:
    """Have what reads one value read another."""
    for node, place in [(use.node, use.idx) for use in given.uses()]:
        node.replace_input_with(place, computed)


def put_first(model: ir.Model, made: Tape) -> None:
    """Compute at the graph's beginning what was noted."""
    model.graph.insert_before(next(iter(model.graph)), list(made.nodes))
