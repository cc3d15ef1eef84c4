"""The IR's nodes in an exported graph, their arguments by name."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.export import ExportedProgram

from headrace.ops.attention import ATTENTION

Operands = dict[str, Any]
NAMES = ("q", "k", "v", "mask", "bias", "sinks", "scale", "kind", "window", "softcap")


def attention_nodes(exported: ExportedProgram) -> list[fx.Node]:
    """The attention nodes, in call order."""
    return [node for node in exported.graph.nodes if node.target is ATTENTION]


def operands(node: fx.Node) -> Operands:
    """An attention node's arguments by name."""
    return dict(zip(NAMES, node.args, strict=True))
