"""An exported graph run node by node, each operator by its eager implementation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from headrace.compat.torch import pytree
from headrace.graphs.surgery import replace

HALVES = (torch.bfloat16, torch.float16)
SHORTER = {torch.float32: HALVES, torch.float64: (torch.float32, *HALVES)}


def bindings(
    exported: ExportedProgram, inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None = None
) -> list[Any]:
    """The graph's arguments in placeholder order: weights and constants from the program, the rest from the caller.

    Args:
        weights: in place of the program's own, by name.
    """
    held: dict[str, Any] = {**exported.constants, **exported.state_dict, **(weights or {})}
    return [
        inputs[spec.arg.name] if spec.kind is InputKind.USER_INPUT else held[str(spec.target)]
        for spec in exported.graph_signature.input_specs
    ]


class _Tapped(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, taps: frozenset[str], widened: torch.dtype | None) -> None:
        super().__init__(module)
        self.taps, self.seen, self.widened = taps, dict[str, Any](), widened

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.name in self.taps:
            self.seen[n.name] = result
        return result

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> Any:
        given = super().fetch_args_kwargs_from_env(n)
        # A table of rows is as large as it gets, and is only read: its rows are widened where they are used.
        wide = self.widened
        if wide is None or n.op != "call_function" or n.target is torch.ops.aten.embedding.default:
            return given
        return pytree.tree_map(lambda value: _widened(value, wide), given)


def _widened(value: Any, wide: torch.dtype) -> Any:
    """A float of less width: a tensor, at its use so that no second copy of the weights stays, or a dtype's name."""
    if isinstance(value, Tensor):
        return value.to(wide) if value.dtype in SHORTER[wide] else value
    return wide if isinstance(value, torch.dtype) and value in SHORTER[wide] else value


def _is_wide(exported: ExportedProgram, wide: torch.dtype) -> bool:
    """Whether the graph holds no float of less width: there is nothing to widen."""
    values = pytree.tree_leaves([node.meta.get("val") for node in exported.graph.nodes])
    return not any(isinstance(value, Tensor) and value.dtype in SHORTER[wide] for value in values)


@torch.no_grad()
def run(
    exported: ExportedProgram,
    inputs: Mapping[str, Tensor],
    taps: Iterable[str] = (),
    *,
    widened: torch.dtype | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Run the graph node by node, each operator by its eager implementation.

    Args:
        widened: float32 or float64, to compute in it what the graph computes in less: what the graph does is then told
            from how it rounds, and a model's own upcasts lose nothing either.
        weights: in place of the program's own, by name.

    Returns:
        The outputs in order, and the values of the nodes named in `taps`.
    """
    tapped, bound = frozenset(taps), bindings(exported, inputs, weights)
    if widened is not None and weights is None and _is_wide(exported, widened):
        widened = None
    if not tapped and widened is None:  # the graph's own code does the same without an interpreter's work a node
        return tuple(exported.graph_module(*bound)), {}
    interpreter = _Tapped(exported.graph_module, tapped, widened)
    outputs = interpreter.run(*bound)
    return tuple(outputs), interpreter.seen


@torch.no_grad()
def evaluate(exported: ExportedProgram, nodes: Iterable[fx.Node], inputs: Mapping[str, Tensor]) -> dict[fx.Node, Any]:
    """The values of some nodes, by running only what they are computed from; each is let go after its last use."""
    wanted, needed = set(nodes), ancestors(nodes)
    interpreter = fx.Interpreter(exported.graph_module)
    interpreter.args_iter = iter(bindings(exported, inputs))
    order = [node for node in exported.graph.nodes if node in needed or node.op == "placeholder"]
    last = {arg: node for node in order for arg in node.all_input_nodes}
    for node in order:
        interpreter.env[node] = interpreter.run_node(node)
        for arg in node.all_input_nodes:
            if last[arg] is node and arg not in wanted:
                interpreter.env.pop(arg, None)
    return {node: interpreter.env[node] for node in wanted}


def ancestors(
    nodes: Iterable[fx.Node], reads: Callable[[fx.Node], list[fx.Node]] = lambda node: node.all_input_nodes
) -> set[fx.Node]:
    """The nodes and everything that they are computed from.

    Args:
        reads: by way of which nodes to look at what a node is computed from.
    """
    found, todo = set[fx.Node](), list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += reads(node)
    return found


def flat_module(exported: ExportedProgram) -> fx.GraphModule:
    """The graph as a module that holds its weights, takes its inputs by position and checks none of them."""
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in exported.graph_signature.output_specs):
        return _unlifted(exported)
    graph = copy.deepcopy(exported.graph)
    given = (node for node in list(graph.nodes) if node.op == "placeholder")
    held: dict[str, Any] = {}
    for node, spec in zip(given, exported.graph_signature.input_specs, strict=True):
        if spec.kind is not InputKind.USER_INPUT:
            name = str(spec.target)
            held[name] = exported.constants[name] if name in exported.constants else exported.state_dict[name]
            with graph.inserting_before(node):
                weight = graph.create_node("get_attr", name)
            weight.meta = node.meta
            replace(node, weight)
    return fx.GraphModule(held, graph)


def _unlifted(exported: ExportedProgram) -> fx.GraphModule:
    """The same of a program that writes to what it is given or holds."""
    module = exported.module(check_guards=False)
    module.graph.set_codegen(fx.graph.CodeGen())
    flat = fx.GraphModule(module, module.graph)
    for node in list(flat.graph.nodes):
        if node.op == "call_module" and "guard" in str(node.target):
            flat.graph.erase_node(node)
    return flat
