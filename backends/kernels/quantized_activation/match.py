"""Find activations that go into a product in eight bits and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from headrace import graphs
from headrace.backends.gpu.passes.scaled_products import product
from headrace.backends.kernels.linear_activation.match import Activated, activations
from headrace.backends.kernels.quantized_activation.op import WIDEST
from headrace.ops.quantized import LINEAR_FP8

CLONE = torch.ops.aten.clone.default


def activated_product(
    y: Tensor, kind: str, gated: bool, late: bool, weight: Tensor, scale: Tensor, bias: Tensor | None
) -> Tensor:
    """`headrace::linear_fp8` of `act(y)`, whose rows are never in memory but in eight bits."""
    rows, own = torch.ops.headrace.round_activated(y.reshape(-1, y.shape[-1]), kind, gated, late)
    return product(rows, own, weight, scale, bias, y.dtype).reshape(*y.shape[:-1], weight.shape[0])


@dataclass(frozen=True)
class FuseQuantizedActivation:
    """Each activation that goes into a product in eight bits alone is an `activated_product` with it.

    Inductor goes over a row three times where it is wider than 1024.
    """

    name: str = "fuse-quantized-activation"

    def __call__(self, graph: fx.Graph) -> None:
        """Put one in the place of each such pair."""
        for found in list(activations(graph, LINEAR_FP8)):
            reader = _reader(found.last)
            if reader is not None and found.last.meta["val"].shape[-1] <= WIDEST:
                _fuse(graph, found, reader)
        graph.eliminate_dead_code()


def _fuse(graph: fx.Graph, found: Activated, reader: fx.Node) -> None:
    with graph.inserting_before(reader):
        arguments = (found.linear, found.kind, found.gated, found.late, *reader.args[1:])
        made = graph.call_function(activated_product, arguments)
    made.meta["val"] = reader.meta["val"]
    graphs.replace(reader, made)


def _reader(node: fx.Node) -> fx.Node | None:
    """The product in eight bits that alone reads the value; a dropout that does nothing leaves a copy between them."""
    while len(node.users) == 1:
        (node,) = node.users
        if node.target is not CLONE:
            return node if node.target is LINEAR_FP8 else None
    return None
