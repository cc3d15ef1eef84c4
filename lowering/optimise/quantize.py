"""Multiply the rows of tokens by large weights in eight bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from headrace import graphs
from headrace.errors import InputError
from headrace.ir import Program, Quantized
from headrace.ops.attention import POOL
from headrace.ops.packed import POOL_VARLEN
from headrace.ops.quantized import LINEAR_FP8, LINEAR_INT8, WEIGHT_LEVELS, round_to_float8, round_to_integers

LINEAR, ADDMM, MM = torch.ops.aten.linear.default, torch.ops.aten.addmm.default, torch.ops.aten.mm.default
EMBEDDING = torch.ops.aten.embedding.default
FP8, INT8 = "fp8", "int8"
# Of each scheme the operator, and how a weight [N, K] is rounded for it.
SCHEMES: dict[str, tuple[Any, Callable[[Tensor], tuple[Tensor, Tensor]]]] = {
    FP8: (LINEAR_FP8, round_to_float8),
    INT8: (LINEAR_INT8, lambda weight: round_to_integers(weight, WEIGHT_LEVELS)),
}
# Products in eight bits take sizes that divide by this.
STEP = 16


@dataclass(frozen=True)
class Layer:
    """A linear layer of the graph.

    Attributes:
        weight: the name of its placeholder.
        across: whether the weight lies [in, out], where `aten.linear` has [out, in].
    """

    node: fx.Node
    rows: fx.Node
    weight: str
    across: bool
    bias: fx.Node | None


@dataclass(frozen=True)
class QuantizeLinear:
    """Every linear layer over rows of tokens is the scheme's, where its weight's sizes divide by 16 and are large.

    What a pooled vector goes through stays as it is: its rows are few, and nothing after it evens an error out. So
    does a table that tokens are looked up in, whoever else reads it.

    Attributes:
        scheme: of `SCHEMES`.
        least: what both sizes of a weight must reach; below, a product takes less time than rounding its rows.
    """

    scheme: str = FP8
    least: int = 256
    name: str = "quantize"

    def __call__(self, program: Program) -> Program:
        """Round the weights once, and swap the layers that read them.

        Raises:
            InputError: no layer is as large as that.
        """
        held = graphs.weights_of(program.graph)
        layers = list(_layers(program.graph.graph, held))
        tables = {str(node.args[0]) for node in program.graph.graph.nodes if node.target is EMBEDDING}
        large = {layer.weight for layer in layers if self._large(held[layer.weight])} - tables
        if not large:
            raise InputError(
                f"None of the {len(layers)} linear layers over tokens has a weight whose sizes divide by {STEP} and "
                f'reach {self.least}, so that quantize="{self.scheme}" would change nothing. Leave it out.'
            )
        across = {layer.weight: layer.across for layer in layers}
        operator, rounded = SCHEMES[self.scheme]
        weights: dict[str, Tensor] = {}
        for name in sorted(large):
            weight = held[name].detach()
            values, scale = rounded(weight.t().contiguous() if across[name] else weight)
            weights |= {_rounded(name): values, _scale(name): scale[:, 0]}
        swap = partial(_swap, operator=operator, held=held, large=large)
        exported = graphs.rewrite(graphs.with_weights(program.graph, weights), swap)
        count = sum(layer.weight in large for layer in layers)
        return program.with_(exported=exported, quantized=Quantized(self.scheme, count, len(layers)))

    def _large(self, weight: Tensor) -> bool:
        return all(size >= self.least and size % STEP == 0 for size in weight.shape)


def _layers(graph: fx.Graph, held: dict[str, Tensor]) -> Iterator[Layer]:
    """The linear layers by weights of the program's own, but for those behind a pooling; each may be swapped."""
    pooled = set[fx.Node]()
    for node in list(graph.nodes):
        if node.target in (POOL, POOL_VARLEN) or not pooled.isdisjoint(node.all_input_nodes):
            pooled.add(node)
        elif (layer := _layer(node, held)) is not None:
            yield layer


def _layer(node: fx.Node, held: dict[str, Tensor]) -> Layer | None:
    """The node as a linear layer; None where it is none, or multiplies by something that was computed."""
    args: tuple[Any, ...] = (*node.args, None)
    if node.target is LINEAR:
        rows, weight, bias = args[:3]
    elif node.target is MM:
        rows, weight, bias = args[0], args[1], None
    elif node.target is ADDMM and not node.kwargs:
        bias, rows, weight = args[:3]
    else:
        return None
    return Layer(node, rows, weight.name, node.target is not LINEAR, bias) if weight.name in held else None


def _rounded(weight: str) -> str:
    return f"{weight}_rounded"


def _scale(weight: str) -> str:
    return f"{weight}_rounded_scale"


def _swap(graph: fx.Graph, operator: Any, held: dict[str, Tensor], large: set[str]) -> None:
    given = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for layer in _layers(graph, held):
        if layer.weight in large:
            weight, scale = given[_rounded(layer.weight)], given[_scale(layer.weight)]
            with graph.inserting_before(layer.node):
                swapped = graphs.call(graph, operator, (layer.rows, weight, scale, layer.bias), like=layer.node)
            graphs.replace(layer.node, swapped)
