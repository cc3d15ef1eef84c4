"""The IR's nodes in an exported graph, and their arguments by the names of their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from torch import fx
from torch.export import ExportedProgram

from headrace.compat.torch import argument_names
from headrace.ops.attention import ATTENTION


def attention_nodes(exported: ExportedProgram) -> list[fx.Node]:
    """The attention nodes, in call order."""
    return [node for node in exported.graph.nodes if node.target is ATTENTION]


def arguments(node: fx.Node) -> dict[str, Any]:
    """An operator's arguments by the names of its schema."""
    return dict(zip(_names(node.target), node.args, strict=False)) | dict(node.kwargs)


def in_order(target: Any, named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of an operator, all of them among `named`, in the order of its schema."""
    return tuple(named[name] for name in _names(target))


@cache
def _names(target: Any) -> tuple[str, ...]:
    return argument_names(target)
