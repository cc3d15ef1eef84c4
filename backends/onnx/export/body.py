"""The body of a loop: operators that lie in a graph of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import tape


class Step(tape.Tape):
    """The operators of one turn."""

    def of(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """The value of a new node, named by its place."""
        made = self.op(op_type, [*inputs], attributes or None, name=f"step_{len(self.nodes)}")
        made.name = f"step_value_{len(self.nodes)}"
        return made

    def axes(self, *values: int) -> ir.Value:
        """Whole numbers."""
        return self.of("Constant", value=ir.tensor(np.array(values, np.int64)))

    def beside(self, x: ir.Value, *axes: int) -> ir.Value:
        """The value with axes of size one."""
        return self.of("Unsqueeze", x, self.axes(*axes))

    def total(self, x: ir.Value, axis: int) -> ir.Value:
        """The sum along an axis, which goes."""
        return self.of("ReduceSum", x, self.axes(axis), keepdims=0)
