"""Keep Inductor from computing again, in each of many readers, what is small and costs much."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

WAVES = (torch.ops.aten.cos.default, torch.ops.aten.sin.default)
# What may follow a wave before it is used: its scale and its cast are as small as it is.
FOLLOWS = (torch.ops.aten.mul.Tensor, torch.ops.aten._to_copy.default)


@torch.library.custom_op("headrace::hold", mutates_args=())
def hold(x: Tensor) -> Tensor:
    """The same values, in memory: an operator that Inductor does not look into."""
    return x.clone()


@hold.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@dataclass(frozen=True)
class MaterializeWaves:
    """Cosines and sines of positions, one a token, are computed once and not again for every head of every layer."""

    name: str = "materialize-waves"

    def __call__(self, graph: fx.Graph) -> None:
        """Hold what is read often."""
        for node in list(graph.nodes):
            # With a fourth dimension they would have heads already.
            if node.target in WAVES and len(node.meta["val"].shape) <= 3:
                _hold(graph, _last(node))


def _hold(graph: fx.Graph, node: fx.Node) -> None:
    with graph.inserting_after(node):
        held = graph.call_function(torch.ops.headrace.hold.default, (node,))
    held.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(held, delete_user_cb=lambda user: user is not held)


def _last(node: fx.Node) -> fx.Node:
    while len(node.users) == 1:
        (user,) = node.users
        if user.target not in FOLLOWS or any(arg is not node for arg in user.all_input_nodes):
            break
        node = user
    return node
