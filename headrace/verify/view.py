"""A program and its graph as the rules of the specification read them, indexed once for all of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch import Tensor, fx

from headrace import graphs
from headrace.ir.program import Program


class View:
    """What the rules ask of a program. Its nodes stand in the order of the graph."""

    def __init__(self, program: Program) -> None:
        """Walk the graph once."""
        self.program = program
        self.nodes: list[fx.Node] = list(program.graph.graph.nodes)
        self.named = {node.name: node for node in self.nodes}
        self.given = graphs.inputs_of(program.graph)
        self.returned: tuple[Any, ...] = graphs.outputs_of(program.graph)
        self._of: dict[Any, list[fx.Node]] = defaultdict(list)
        for node in self.nodes:
            self._of[node.target].append(node)

    def of(self, *targets: Any) -> list[fx.Node]:
        """The nodes that call one of the operators."""
        if len(targets) == 1:
            return self._of.get(targets[0], [])
        return [node for node in self.nodes if node.target in targets]

    def placeholder(self, name: str) -> fx.Node | None:
        """The node of an input that a caller gives; None where the graph has none of that name."""
        node = self.named.get(name)
        return node if node is not None and node.op == "placeholder" and name in self.given else None


def shape(node: Any) -> tuple[Any, ...] | None:
    """The sizes of a node's value, numbers and symbols; None where it is no tensor."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(value.shape) if isinstance(value, Tensor) else None


def dtype(node: Any) -> str:
    """The dtype of a node's value, as torch names it; empty where it is no tensor."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else ""


def differs(size: Any, said: int) -> bool:
    """Whether a size is a number, and another. To compare a symbol would decide what it stands for."""
    return isinstance(size, int) and size != said
