"""Where in the model's code a node comes from: for messages only, never for a decision."""

from __future__ import annotations

from torch import fx


def provenance(node: fx.Node) -> str:
    """The path of the module that made the node, as `named_modules` gives it."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else "unknown module"
    return str(path).removeprefix("L['self'].")
