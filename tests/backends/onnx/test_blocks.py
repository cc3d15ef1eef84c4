"""Weights in few bits: what onnxruntime makes of their blocks, which of them have more bits, and what is held once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")

import onnx_ir as ir
import onnxruntime as ort

from headrace.backends.onnx.export.blocks import BLOCK, block_size, in_blocks, quantize

RANDOM = np.random.default_rng(0)


def value(name: str, *shape: int | str, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


def weight(name: str, array: Any) -> ir.Value:
    return ir.Value(name=name, const_value=ir.tensor(array, name=name), shape=ir.Shape(array.shape))


def tied(table: Any, up: Any, down: Any) -> ir.Model:
    """Rows of a table through two products, and back to its tokens."""
    ids, held = (
        value("ids", "n", dtype=ir.DataType.INT64),
        [weight(*one) for one in zip("tud", (table, up, down), strict=True)],
    )
    rows = ir.node("Gather", [held[0], ids])
    wide = ir.node("MatMul", [rows.outputs[0], held[1]])
    back = ir.node("MatMul", [wide.outputs[0], held[2]])
    turned = ir.node("Transpose", [held[0]], {"perm": [1, 0]})
    head = ir.node("MatMul", [back.outputs[0], turned.outputs[0]])
    head.outputs[0].type, head.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["n", len(table)])
    head.outputs[0].name = "logits"
    graph = ir.Graph(
        [ids], head.outputs, nodes=[rows, wide, back, turned, head], initializers=held, opset_imports={"": 18}, name="g"
    )
    return ir.Model(graph, ir_version=8)


def run(model: ir.Model, ids: Any) -> Any:
    session = ort.InferenceSession(
        ir.serde.serialize_model(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"ids": ids})[0]


def test_a_table_that_a_head_shares_is_held_once_and_what_leads_back_has_more_bits() -> None:
    """Sizes that are no whole blocks, and an odd number of blocks, whose zeros fill half a byte."""
    shapes = (50, 96), (96, 200), (200, 96)
    table, up, down = (RANDOM.standard_normal(shape).astype(np.float32) / 10 for shape in shapes)
    model, ids = tied(table, up, down), np.arange(50)
    wanted = run(model, ids)
    in_blocks(model)
    found = run(model, ids)
    assert (found * wanted).sum() / np.linalg.norm(found) / np.linalg.norm(wanted) > 0.99
    assert [node.op_type for node in model.graph if node.domain] == ["GatherBlockQuantized", *["MatMulNBits"] * 3]
    bits = [node.attributes["bits"].as_int() for node in model.graph if node.op_type == "MatMulNBits"]
    assert bits == [4, 8, 8]
    held = {name.split("_")[0] for name in model.graph.initializers}
    assert held == set("tud")
    assert len(model.graph.initializers) == 9


@pytest.mark.parametrize(("bits", "width"), [(4, 3 * BLOCK), (8, 3 * BLOCK), (8, 4 * BLOCK)])
def test_onnxruntime_reads_the_weights_that_were_meant(bits: int, width: int) -> None:
    """Products with single inputs are the weights themselves; of 8 bits in whole blocks of twice as many, in those."""
    array = RANDOM.standard_normal((6, width)).astype(np.float32)
    blocks = quantize(array, bits)
    size = block_size(width, bits)
    assert size == (2 * BLOCK if width == 4 * BLOCK else BLOCK)
    low, high = blocks.packed & 15, blocks.packed >> 4
    whole = blocks.packed if bits == 8 else np.stack([low, high], -1).reshape(6, -1, size)
    zeros = (
        blocks.zeros
        if bits == 8
        else np.stack([blocks.zeros & 15, blocks.zeros >> 4], -1).reshape(6, -1)[:, : width // size]
    )
    meant = ((whole.astype(np.float32) - zeros[..., None]) * blocks.scales[..., None]).reshape(array.shape)
    assert np.abs(meant - array).max() < {4: 0.4, 8: 0.02}[bits]
    given = value("x", width, width)
    held = [weight(name, one) for name, one in blocks._asdict().items()]
    sizes = {"N": 6, "K": width, "bits": bits, "block_size": size}
    node = ir.node("MatMulNBits", [given, *held], sizes, domain="com.microsoft")
    node.outputs[0].type, node.outputs[0].name = given.type, "y"
    graph = ir.Graph(
        [given], node.outputs, nodes=[node], initializers=held, opset_imports={"": 18, "com.microsoft": 1}, name="g"
    )
    model = ir.serde.serialize_model(ir.Model(graph, ir_version=8)).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert np.abs(session.run(None, {"x": np.eye(width, dtype=np.float32)})[0].T - meant).max() < 1e-6


def test_weights_that_lay_on_a_grid_of_few_steps_stay_there() -> None:
    """As of a model that was in 4 bits before: its blocks use some of the 15 steps, and are cut into as many again."""
    whole = RANDOM.integers(0, 16, (64, 2 * BLOCK))
    whole[:, ::7] = 8  # a zero lies on the grid
    scales = RANDOM.uniform(0.01, 0.1, (64, 2)).repeat(BLOCK, 1)
    narrow = np.clip(whole, 3, 12)
    array = ((narrow - 8) * scales).astype(np.float32)
    blocks = quantize(array, 4)
    low, high = blocks.packed & 15, blocks.packed >> 4
    found = np.stack([low, high], -1).reshape(64, 2, BLOCK).astype(np.float32)
    zeros = np.stack([blocks.zeros & 15, blocks.zeros >> 4], -1).reshape(64, 2, 1)
    assert np.allclose(((found - zeros) * blocks.scales[..., None]).reshape(array.shape), array, atol=1e-5)
