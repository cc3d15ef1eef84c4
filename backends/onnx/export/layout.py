"""Values as they lie: what reorders or reshapes them between a product and an attention, and back, is left out.

A cached program's rows [1, T, H * D] are turned to heads, without their batch of one, and to a padded batch again. But
for the last reshape no element moves, and both operators that heads need take rows of heads side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

# Of heads [1, H, T, D] to rows [T, H, D]: out of the batch, then exchanged; and of rows [1, T, H, D] to heads.
EXCHANGED, TURNED = (1, 0, 2), (0, 2, 1, 3)
RESHAPING = frozenset({"Reshape", "Unsqueeze", "Squeeze"})


def lie_flat(model: ir.Model) -> None:
    """Give each reshape the value whose elements lie as those that it is given do."""
    for node in list(model.graph):
        if node.op_type == "RMSNormalization":
            _norm_rows(model, node)
    rotated: dict[ir.Node, ir.Value] = {}
    for node in list(model.graph):
        if node.op_type == "Reshape" and _is_absolute(node):
            value = node.inputs[0]
            assert value is not None
            while (before := _before(model, value, rotated)) is not None:
                value = before
            node.replace_input_with(0, value)
    common.RemoveUnusedNodesPass()(model)


def _before(model: ir.Model, value: ir.Value, rotated: dict[ir.Node, ir.Value]) -> ir.Value | None:
    """A value whose elements lie in the same order, None where the value is the first of them.

    Args:
        rotated: by rotation of heads, what was rotated of their rows.
    """
    node = value.producer()
    if node is None:
        return None
    if node.op_type in RESHAPING or _is_only(node):
        return node.inputs[0]
    if (heads := _exchanged(node)) is None or (made := heads.producer()) is None:
        return None
    if (rows := _turned(made)) is not None:
        return rows
    if made.op_type != "RotaryEmbedding" or made.inputs[0] is None:
        return None
    rows = _turned(made.inputs[0].producer())
    if made not in rotated and rows is not None and (flat := _rotated(model, made, rows)) is not None:
        rotated[made] = flat
    return rotated.get(made)


def _is_absolute(reshape: ir.Node) -> bool:
    """Whether the new sizes hang on no old ones: none is zero, which would keep one."""
    sizes = reshape.inputs[1]
    assert sizes is not None
    made = sizes.producer()
    parts = made.inputs if made is not None and made.op_type == "Concat" else [sizes]
    return not any(held is not None and (held.numpy() == 0).any() for held in map(_held, parts))


def _held(value: ir.Value | None) -> ir.TensorProtocol | None:
    return None if value is None else value.const_value


def _is_only(node: ir.Node) -> bool:
    """Whether a node takes the first, and only, of a batch."""
    if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 0:
        return False
    value, place = node.inputs[0], _held(node.inputs[1])
    if value is None or value.shape is None or value.shape[0] != 1 or place is None:
        return False
    return place.shape.numpy() == () and int(place.numpy()) == 0


def _exchanged(node: ir.Node) -> ir.Value | None:
    """The heads [1, H, T, D] of which a node makes rows [T, H, D]."""
    if not _permutes(node, EXCHANGED) or node.inputs[0] is None:
        return None
    taken = node.inputs[0].producer()
    return taken.inputs[0] if taken is not None and _is_only(taken) else None


def _turned(node: ir.Node | None) -> ir.Value | None:
    """The rows [1, T, H, D] of which a node makes heads."""
    return node.inputs[0] if node is not None and _permutes(node, TURNED) else None


def _norm_rows(model: ir.Model, node: ir.Node) -> None:
    """Let a norm of each head be of rows [1, T, H, D], and turn those after it."""
    value = node.inputs[0]
    rows = _turned(value.producer()) if value is not None else None
    if rows is None or node.attributes.get_int("axis", -1) not in (-1, 3):
        return
    after = node.outputs[0]
    normed = ir.Node("", node.op_type, [rows, *node.inputs[1:]], node.attributes.values(), name=f"{node.name}_rows")
    made = normed.outputs[0]
    made.name, made.type, made.shape = f"{after.name}_rows", after.type, rows.shape
    turned = ir.node("Transpose", [made], {"perm": TURNED}, name=f"{node.name}_turned")
    turned.outputs[0].type, turned.outputs[0].shape = after.type, after.shape
    ir.convenience.replace_nodes_and_values(model.graph, node, [node], [normed, turned], node.outputs, turned.outputs)


def _permutes(node: ir.Node, order: Sequence[int]) -> bool:
    return node.op_type == "Transpose" and tuple(node.attributes["perm"].as_ints()) == order


def _rotated(model: ir.Model, node: ir.Node, rows: ir.Value) -> ir.Value | None:
    """The rotation of rows [1, T, H, D] as one of rows [1, T, H * D]; None where nobody knows their sizes."""
    if rows.shape is None:
        return None
    heads, width = rows.shape[2:]
    if not (isinstance(heads, int) and isinstance(width, int)):
        return None
    producer = rows.producer()
    flat = producer.inputs[0] if producer is not None and producer.op_type == "Reshape" else None
    before = []
    if flat is None or flat.shape is None or list(flat.shape) != [*rows.shape[:2], heads * width]:
        sizes = ir.tensor(np.array([0, 0, heads * width], np.int64), name=f"{node.outputs[0].name}_sizes")
        value = ir.Value(name=sizes.name, const_value=sizes, shape=ir.Shape([3]), type=ir.TensorType(sizes.dtype))
        model.graph.register_initializer(value)
        before = [ir.node("Reshape", [rows, value], name=sizes.name)]
        flat = before[0].outputs[0]
        flat.name = f"{sizes.name}_rows"
    attributes = {**node.attributes, "num_heads": ir.AttrInt64("num_heads", heads)}
    made = ir.Node("", "RotaryEmbedding", [flat, *node.inputs[1:]], attributes.values(), name=f"{node.name}_flat")
    made.outputs[0].name = f"{node.outputs[0].name}_flat"
    model.graph.insert_before(node, [*before, made])
    return made.outputs[0]
