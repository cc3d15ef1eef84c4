"""Changes of a graph in place: nodes added, and nodes erased that nothing needs."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx

from headrace.compat.torch import enable_python_dispatcher, free_unbacked_symbols, operator_name, pytree

SIZE = torch.ops.aten.sym_size.int
# What a node's metadata says of the model's code that it comes from.
PLACE = ("nn_module_stack", "stack_trace", "source_fn_stack", "torch_fn")


def call(
    graph: fx.Graph,
    target: Any,
    args: tuple[Any, ...],
    like: fx.Node | None = None,
    kwargs: dict[str, Any] | None = None,
) -> fx.Node:
    """A new node at the graph's insertion point, its value's shape and strides worked out.

    Args:
        like: the node whose place in the model's code it takes.
        kwargs: none of them nodes.
    """
    node: fx.Node = graph.create_node("call_function", target, args, kwargs, name=operator_name(target))
    node.meta |= {key: like.meta[key] for key in PLACE if key in like.meta} if like is not None else {}
    values = pytree.tree_map_only(fx.Node, lambda arg: arg.meta["val"], args)
    # Composite operators in C++ refuse symbolic sizes; their decompositions in Python do not.
    with fake_mode(graph), enable_python_dispatcher(), torch.no_grad():
        node.meta["val"] = target(*values, **(kwargs or {}))
    return node


def replace(old: fx.Node, new: fx.Node) -> None:
    """Have all that reads a node read another, and erase it."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def fake_mode(graph: fx.Graph) -> Any:
    """The mode that the graph's example values were made in: new values are made in it too."""
    return next(node.meta["val"].fake_mode for node in graph.nodes if hasattr(node.meta.get("val"), "fake_mode"))


def counts_data(node: fx.Node) -> bool:
    """Whether the node's value, or its shape, counts what the inputs hold: no size of an input says it."""
    return bool(free_unbacked_symbols(node.meta.get("val")))


def drop_data_assertions(graph: fx.Graph) -> None:
    """Erase what is asserted of such counts, and what nothing but an assertion read."""
    for node in reversed(list(graph.nodes)):
        effect = node.op == "call_function" and node.is_impure() and not node.users
        if effect and any(counts_data(given) for given in node.all_input_nodes):
            graph.erase_node(node)


def drop_assertions(graph: fx.Graph) -> None:
    """Erase what asserts something of values that no output is computed from: it would keep them alive."""
    needed, todo = set[fx.Node](), [graph.output_node()]
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo += node.all_input_nodes
    for node in list(graph.nodes):
        asserts = node.op == "call_function" and node.is_impure() and not node.users
        if asserts and not needed.issuperset(node.all_input_nodes):
            graph.erase_node(node)


def lift_weights(module: fx.GraphModule) -> list[Tensor]:
    """Put an input behind the others for each weight that a module's graph reads.

    Returns:
        The weights, in the order of those inputs.
    """
    graph, inputs, weights = module.graph, dict[str, fx.Node](), list[Tensor]()
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.find_nodes(op="get_attr")):
        if not isinstance(held := attrgetter(name := str(node.target))(module), Tensor):
            continue
        if name not in inputs:
            weights.append(held.detach())
            with graph.inserting_after(last):
                last = inputs[name] = graph.placeholder(f"weight_{len(inputs)}")
            last.meta = dict(node.meta)
        replace(node, inputs[name])
    module.recompile()
    return weights


def drop_unused(graph: fx.Graph, given: set[str]) -> frozenset[str]:
    """Erase the weights and inputs that nothing reads, but for those `given` in any case."""
    unused = [n for n in graph.nodes if n.op == "placeholder" and not n.users and n.name not in given]
    for node in unused:
        graph.erase_node(node)
    return frozenset(node.name for node in unused)


def measure_elsewhere(graph: fx.Graph, optional: frozenset[str]) -> None:
    """Read sizes that several inputs share off one that stays: a batch has one size, whoever is asked."""
    given = [node for node in graph.nodes if node.op == "placeholder" and isinstance(node.meta.get("val"), Tensor)]
    staying = {
        str(size): (node, dim)
        for node in given
        for dim, size in enumerate(node.meta["val"].shape)
        if node.name not in optional and isinstance(size, torch.SymInt)
    }
    for node in [user for one in given if one.name in optional for user in one.users if user.target is SIZE]:
        if (found := staying.get(str(node.meta["val"]))) is not None:
            node.args = found
