"""The forms that weights are kept in: float32, float16, or int8 and int4 with a gate on what that costs."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from headrace.backends.onnx.export.blocks import COARSE, FINE, in_blocks
from headrace.backends.onnx.export.graph import forget_shapes

SUFFIXES = {"float32": "", "float16": "_fp16", "int8": "_int8", "int4": "_q4"}
# Sums over tokens and squares of activations pass a half's 65,504; what norms do inside is in float32 anyway.
WIDE = ["ReduceSum", "ReduceL2", "ReduceMean", "Pow", "Sqrt", "Reciprocal"]


def write(model: ir.Model, path: Path, external_from: int) -> None:
    """Write a model, its weights beside it in `<name>_data` where they have so many bytes or more."""
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    ir.save(model, path, external_data=f"{path.name}_data" if size >= external_from else None)


def convert(source: Path, path: Path, dtype: str, external_from: int, generates: bool = False) -> None:
    """Rewrite a float32 model file in another form.

    Args:
        generates: whether reading the weights is what the model's time goes to, so that int8 keeps them in blocks.

    Raises:
        OSError: the disk has no room for it.
    """
    _require_room(source)
    if dtype == "int4" or (dtype == "int8" and generates):
        in_blocks(model := ir.load(source), COARSE if dtype == "int4" else FINE)
    else:
        model = ir.serde.deserialize_model({"float16": _in_float16, "int8": _in_int8}[dtype](source))
    # The converters insert nodes where they fall, and leave types that no longer hold.
    forget_shapes(model)
    if dtype == "float16":
        _join_casts(model)
    common.TopologicalSortPass()(model)
    write(model, path, external_from)


def _require_room(source: Path) -> None:
    """Both converters have a copy with shapes written beside the file, by what does not see that a disk is full."""
    with tempfile.TemporaryFile(dir=source.parent) as file:
        os.posix_fallocate(file.fileno(), 0, source.stat().st_size * 5 // 4 + (1 << 18))


def _in_float16(source: Path) -> onnx.ModelProto:
    """Weights and products in half precision; inputs and outputs as they were."""
    from onnxruntime.transformers import float16

    # By path: what infers the shapes takes no message as large as some models.
    converted: onnx.ModelProto = float16.convert_float_to_float16(
        str(source), keep_io_types=True, op_block_list=[*float16.DEFAULT_OP_BLOCK_LIST, *WIDE],
        node_block_list=_between_wide(source),
    )  # fmt: skip
    return converted


def _between_wide(source: Path) -> list[str]:
    """The sums that stand between two operators kept in float32: what a norm adds to the mean of squares."""
    nodes = onnx.load(source, load_external_data=False).graph.node
    made = {name: node.op_type for node in nodes for name in node.output}
    read = {name: node.op_type for node in nodes for name in node.input}
    return [
        node.name
        for node in nodes
        if node.op_type == "Add"
        and {made.get(name) for name in node.input} & {*WIDE}
        and read.get(node.output[0]) in WIDE
    ]


def _join_casts(model: ir.Model) -> None:
    """Leave out the half between two operators in float32, in which a square overflows.

    The converter narrows what each of them returns; onnxruntime's CPU skips that, and others need not.
    """
    for node in list(model.graph):
        narrowed = _cast_of(node.outputs[0], ir.DataType.FLOAT) if not node.outputs[0].is_graph_output() else None
        exact = _cast_of(narrowed, ir.DataType.FLOAT16) if narrowed is not None else None
        made = exact.producer() if exact is not None else None
        # Sums may be of whole numbers, which the model itself casts.
        if exact is not None and made is not None and made.op_type in {*WIDE, "Add"} - {"ReduceSum"}:
            ir.convenience.replace_all_uses_with(node.outputs[0], exact)
    common.RemoveUnusedNodesPass()(model)


def _cast_of(value: ir.Value, to: ir.DataType) -> ir.Value | None:
    """What the value was cast from to that type, None where it is no such cast."""
    node = value.producer()
    is_cast = node is not None and node.op_type == "Cast" and node.attributes["to"].as_int() == to
    return node.inputs[0] if is_cast and node is not None else None


def _in_int8(source: Path) -> onnx.ModelProto:
    """The weights of products in 8 bits a channel; a scale for each tensor of activations is found as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = source.with_name("int8.onnx")
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises a preprocessing for convolutions
    try:
        # By default Attention would be quantised too, which breaks it.
        quantize_dynamic(
            source, target, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8,
            use_external_data_format=True,
        )  # fmt: skip
    finally:
        root.setLevel(level)
    return onnx.load(target)
