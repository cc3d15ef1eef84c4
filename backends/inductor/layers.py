"""Layers that repeat as a loop: compiled once, run with the weights of each.

The weights that stand in one place of all layers lie in one tensor, of which a layer reads its part where that lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx

from headrace import debug
from headrace.compat.torch import index_below, while_loop
from headrace.graphs.repeats import Repeat, find_repeats

STACK = "headrace_layers"


def roll_layers(module: fx.GraphModule) -> tuple[int, ...]:
    """Put a loop in place of each stretch of a graph that repeats.

    Args:
        module: a graph with its weights as attributes.

    Returns:
        How many layers each loop runs.
    """
    # They assert what an export has made sure of, and would be no part of any layer.
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    repeats = find_repeats(module)
    for number, repeat in enumerate(repeats):
        _roll(module, repeat, f"{STACK}_{number}")
        debug.say(debug.STAGES, f"{len(repeat.layers)} layers of {len(repeat.layers[0])} operators are compiled as one")
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.graph.lint()
    module.recompile()
    return tuple(len(repeat.layers) for repeat in repeats)


def _roll(module: fx.GraphModule, repeat: Repeat, name: str) -> None:
    graph, count = module.graph, len(repeat.layers)
    stacks = _stack(module, repeat, name)
    body = _body(repeat, module, count)
    module.add_module(f"{name}_body", body)
    module.add_module(f"{name}_goes_on", _condition(1 + len(repeat.carried) + len(stacks) + len(repeat.shared), count))
    last = repeat.layers[-1]
    with graph.inserting_after(_latest(graph, repeat)):
        here = graph.call_function(int)  # a place to insert before
    with graph.inserting_before(here):
        held = [graph.get_attr(stack) for stack in stacks]
        zero = graph.call_function(torch.ops.aten.zeros.default, ([],), {"dtype": torch.int64, "device": _device(last)})
        begin = [graph.call_function(torch.ops.aten.contiguous.default, (value,)) for value, _ in repeat.carried]
        branches = graph.get_attr(f"{name}_goes_on"), graph.get_attr(f"{name}_body")
        looped = graph.call_function(while_loop, (*branches, (zero, *begin), (*held, *repeat.shared)))
        for order, (_, place) in enumerate(repeat.carried):
            result = graph.call_function(_item, (looped, 1 + order))
            result.meta["val"] = last[place].meta["val"]
            inside = {node for layer in repeat.layers for node in layer}
            last[place].replace_all_uses_with(result, delete_user_cb=lambda user: user not in inside)  # noqa: B023
    graph.erase_node(here)
    for node in reversed([node for layer in repeat.layers for node in layer]):
        graph.erase_node(node)


def _item(values: Sequence[Any], place: int) -> Any:
    return values[place]


def _latest(graph: fx.Graph, repeat: Repeat) -> fx.Node:
    """The last node of all that the loop reads: what comes after the layers stands behind it."""
    read = {*repeat.shared, *(value for value, _ in repeat.carried), repeat.layers[0][0]}
    latest: fx.Node = next(node for node in reversed(graph.nodes) if node in read)
    return latest


def _device(layer: Sequence[fx.Node]) -> torch.device:
    return next(value.device for node in layer if isinstance(value := node.meta.get("val"), Tensor))


def _stack(module: fx.GraphModule, repeat: Repeat, name: str) -> list[str]:
    """Put the layers' weights into tensors of the module, [layers, ...] each, and leave it the others alone."""
    names = []
    for order, weights in enumerate(repeat.weights.values()):
        names.append(f"{name}_{order}")
        held = [attrgetter(str(weight.target))(module).detach() for weight in weights]
        module.register_buffer(names[-1], torch.stack(held), persistent=False)
    return names


def _condition(taken: int, count: int) -> fx.GraphModule:
    graph = fx.Graph()
    given = [graph.placeholder(f"arg_{order}") for order in range(taken)]
    graph.output(graph.call_function(torch.ops.aten.lt.Scalar, (given[0], count)))
    return fx.GraphModule(torch.nn.Module(), graph)


def _body(repeat: Repeat, module: fx.GraphModule, count: int) -> fx.GraphModule:
    """One layer: takes its number, what it is handed, all weights and what all share; gives the next number and values."""
    graph = fx.Graph()
    number = graph.placeholder("number")
    known = {value: graph.placeholder(f"carried_{order}") for order, (value, _) in enumerate(repeat.carried)}
    stacks = [graph.placeholder(f"weights_{order}") for order in range(len(repeat.weights))]
    shared = {value: graph.placeholder(f"shared_{order}") for order, value in enumerate(repeat.shared)}
    index = graph.call_function(index_below, (number, count))
    for weight, stack in zip(repeat.weights, stacks, strict=True):
        known[weight] = graph.call_function(torch.ops.aten.select.int, (stack, 0, index))
    known |= shared
    for node in repeat.layers[0]:
        known[node] = graph.node_copy(node, known.__getitem__)
    handed = [
        graph.call_function(torch.ops.aten.contiguous.default, (known[repeat.layers[0][place]],))
        for _, place in repeat.carried
    ]
    following = graph.call_function(torch.ops.aten.add.Tensor, (number, 1))
    graph.output((following, *handed))
    return fx.GraphModule(torch.nn.Module(), graph)
