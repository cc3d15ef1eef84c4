"""Weights in 4 or 8 bits: each few neighbours within a row share a scale and a zero, which only onnxruntime reads.

What goes into a product is rounded to 8 bits with a scale for each few of its own, whatever stands beside it in a
batch; where the processor has no instructions for that, it stays in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

DOMAIN = "com.microsoft"
# Weights that share a scale: of 4 bits so many, of 8 bits twice as many where a row is whole blocks of those, which
# onnxruntime multiplies a tenth faster and which moves SmolLM2's perplexity by less than a thousandth.
BLOCK = 32
# Of a head and of embeddings, whose rows are one token's alone; of products that lead a wide layer back, as what they
# add is in every later layer's input; and of those that an attention reads. In 4 bits all products of SmolLM2's layers
# turn its next tokens by a divergence of 0.31, without those that lead back 0.17, without those for attention too 0.08.
FINE, COARSE = 8, 4
# Into how many steps the range of a block's weights is tried to be cut. In 4 bits there are 15, which a grid of fewer
# may fit better, as where weights were in few bits before; more of them cut the range off at its ends.
TRIED = {8: (255,), 4: (15, 14, 13, 12, 11, 10, 9, 8, 16, 17, 18, 20)}
# Of MatMulNBits: products of 8 bits, without which those of 8-bit weights unpack all of them at every call.
EIGHT_BITS = 4
ATTENDING = frozenset({"Attention", "Softmax"})
# Weights that are looked at together, so that they stay in the processor's caches.
AT_ONCE = 1 << 16


class Blocks(NamedTuple):
    """A weight [N, K] in few bits.

    Attributes:
        packed: uint8 [N, blocks, bytes of one], the first of two weights in a byte's low half.
        scales: float32 [N, blocks].
        zeros: uint8 [N, bytes], packed as the weights are.
    """

    packed: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8]


def block_size(width: int, bits: int) -> int:
    """How many of a row's weights share a scale."""
    return BLOCK * 2 if bits == FINE and width % (BLOCK * 2) == 0 else BLOCK


def quantize(weight: NDArray[Any], bits: int) -> Blocks:
    """A weight [N, K] in blocks along K, each with the scale and zero of the least square error among those tried."""
    rows, width = weight.shape
    size = block_size(width, bits)
    blocks = -(-width // size)
    held = np.zeros((rows, blocks * size), np.float32)
    held[:, :width] = weight
    held = held.reshape(-1, size)
    made, scales, zeros = np.empty(held.shape, np.uint8), np.empty(len(held), np.float32), np.empty(len(held), np.uint8)
    for begin in range(0, len(held), AT_ONCE // size):
        part = slice(begin, begin + AT_ONCE // size)
        made[part], scales[part], zeros[part] = _best(held[part], bits)
    return Blocks(
        _packed(made.reshape(rows, blocks, size), bits), scales.reshape(rows, blocks),
        _packed(zeros.reshape(rows, blocks), bits),
    )  # fmt: skip


def _best(held: NDArray[np.float32], bits: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Of blocks [n, size] the weights, scales and zeros in whole numbers."""
    top = 2**bits - 1
    least, most = np.minimum(held.min(1), 0), np.maximum(held.max(1), 0)
    best = (np.zeros_like(held), np.ones(len(held), np.float32), np.zeros(len(held), np.float32))
    least_error = np.full(len(held), np.inf)
    for steps in TRIED[bits]:
        scale = np.maximum((most - least) / steps, np.finfo(np.float32).tiny).astype(np.float32)
        zero = np.clip(np.rint(-least / scale), 0, top)
        whole = np.clip(np.rint(held / scale[:, None]) + zero[:, None], 0, top)
        error = np.square((whole - zero[:, None]) * scale[:, None] - held).sum(1)
        better = error < least_error
        for kept, found in zip(best, (whole, scale, zero), strict=True):
            kept[better] = found[better]
        least_error[better] = error[better]
    return best


def _packed(whole: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Numbers of so many bits in bytes, along the last axis."""
    given = whole.astype(np.uint8)
    if bits == 8:
        return given
    if given.shape[-1] % 2:
        given = np.concatenate([given, np.zeros_like(given[..., :1])], -1)
    halves: NDArray[np.uint8] = given[..., ::2] | given[..., 1::2] << np.uint8(4)
    return halves


class Reading(NamedTuple):
    """How a node reads a weight.

    Attributes:
        weight: the initializer.
        turned: whether a row of the product's answer is made of the weight's column.
    """

    weight: ir.Value
    turned: bool

    @property
    def sizes(self) -> tuple[int, int]:
        """The product's outputs and inputs, N and K."""
        assert self.weight.const_value is not None
        first, second = (int(size) for size in self.weight.const_value.shape.numpy())
        return (second, first) if self.turned else (first, second)

    def rows(self) -> NDArray[Any]:
        """The weight as [N, K]."""
        assert self.weight.const_value is not None
        array: NDArray[Any] = self.weight.const_value.numpy()
        return array.T if self.turned else array


def in_blocks(model: ir.Model, coarse: int = COARSE) -> None:
    """Keep the weights of products in so many bits, some in 8, and those of embeddings; what both read, once."""
    products = {node: found for node in model.graph if (found := _of_product(node)) is not None}
    tables = {node: found for node in model.graph if (found := _of_table(node)) is not None}
    # A product with a row for each token is a head.
    tokens = {found.sizes[0] for found in tables.values()}
    made: dict[Reading, list[ir.Value]] = {}
    for node, found in [*products.items(), *tables.items()]:
        outputs, inputs = found.sizes
        fine = outputs in tokens or inputs > outputs or (node in products and _is_attended(node, products))
        bits = FINE if fine else coarse
        if found not in made:
            made[found] = _registered(model, str(found.weight.name), quantize(found.rows(), bits))
        if node in products:
            _multiply(model, node, made[found], found, bits)
        else:
            _look_up(model, node, made[found], inputs)
    model.opset_imports[DOMAIN] = 1
    common.RemoveUnusedNodesPass()(model)


def _of_product(node: ir.Node) -> Reading | None:
    """The weight of a product, None where it has none; one that an embedding shares is turned in the graph."""
    if node.op_type != "MatMul" or (value := node.inputs[1]) is None:
        return None
    if _is_matrix(value):
        return Reading(value, turned=True)
    made = value.producer()
    if made is None or made.op_type != "Transpose" or (given := made.inputs[0]) is None or not _is_matrix(given):
        return None
    return Reading(given, turned=False)


def _of_table(node: ir.Node) -> Reading | None:
    """The weight whose rows a node looks up, None where they are no whole blocks."""
    if node.op_type != "Gather" or (value := node.inputs[0]) is None or not _is_matrix(value):
        return None
    found = Reading(value, turned=False)
    along = node.attributes.get_int("axis", 0)
    return found if along == 0 and found.sizes[1] % BLOCK == 0 else None


def _is_attended(node: ir.Node, products: Mapping[ir.Node, Reading]) -> bool:
    """Whether an attention reads what a product makes, with no other product between."""
    seen, todo = set[ir.Node](), [node]
    while todo:
        following = {use.node for value in todo.pop().outputs for use in value.uses()} - seen
        if any(one.op_type in ATTENDING for one in following):
            return True
        seen |= following
        todo += [one for one in following if one not in products]
    return False


def _is_matrix(value: ir.Value) -> bool:
    held = value.const_value
    return held is not None and held.dtype == ir.DataType.FLOAT and len(held.shape) == 2


def _registered(model: ir.Model, name: str, blocks: Blocks) -> list[ir.Value]:
    found = []
    for what, array in blocks._asdict().items():
        tensor = ir.tensor(array, name=f"{name}_{what}")
        value = ir.Value(
            name=tensor.name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype)
        )
        model.graph.register_initializer(value)
        found.append(value)
    return found


def _multiply(model: ir.Model, node: ir.Node, held: list[ir.Value], found: Reading, bits: int) -> None:
    outputs, inputs = found.sizes
    block = block_size(inputs, bits)
    sizes = {"N": outputs, "K": inputs, "bits": bits, "block_size": block, "accuracy_level": EIGHT_BITS}
    _swap(model, node, ir.node("MatMulNBits", [node.inputs[0], *held], sizes, domain=DOMAIN, name=node.name))


def _look_up(model: ir.Model, node: ir.Node, held: list[ir.Value], width: int) -> None:
    packed, scales, zeros = held
    flat = ir.node("Flatten", [packed], {"axis": 1}, name=f"{packed.name}_rows")
    sizes = {"gather_axis": 0, "quantize_axis": 1, "block_size": block_size(width, FINE), "bits": FINE}
    given = [flat.outputs[0], node.inputs[1], scales, zeros]
    _swap(model, node, ir.node("GatherBlockQuantized", given, sizes, domain=DOMAIN, name=node.name), flat)


def _swap(model: ir.Model, node: ir.Node, made: ir.Node, *before: ir.Node) -> None:
    """Put a node, and what it needs before it, in another's place."""
    ir.convenience.replace_nodes_and_values(model.graph, node, [node], [*before, made], node.outputs, made.outputs)
