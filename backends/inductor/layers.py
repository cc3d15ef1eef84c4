"""Layers that repeat as a loop: compiled once, run with the weights of each.

The weights that stand in one place of all layers lie in one tensor, of which a layer reads its part where that lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx

from headrace import debug
from headrace.backends.inductor.weights import Parts
from headrace.compat.torch import index_below, while_loop
from headrace.graphs.repeats import Repeat, find_repeats

STACK = "headrace_layers"


def roll_layers(module: fx.GraphModule) -> dict[str, Parts]:
    """Put a loop in place of each stretch of a graph that repeats.

    Args:
        module: a graph with its weights as attributes.

    Returns:
        The attributes that now stand for the weights of all layers in one tensor [layers, ...], which are left without
        values, and those weights.
    """
    stacks: dict[str, Parts] = {}
    for number, repeat in enumerate(repeats(module)):
        stacks |= _roll(module, repeat, f"{STACK}_{number}")
    finish(module)
    return stacks


def repeats(module: fx.GraphModule, **chosen: Any) -> Iterator[Repeat]:
    """What repeats in a graph, as `find_repeats` finds it, each said as it is met."""
    # They assert what an export has made sure of, and would be no part of any layer.
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    for repeat in find_repeats(module, **chosen):
        debug.say(debug.STAGES, f"{len(repeat.layers)} layers of {len(repeat.layers[0])} operators are compiled as one")
        yield repeat


def finish(module: fx.GraphModule) -> None:
    """Leave a graph of which layers were taken as one that runs."""
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()


def _roll(module: fx.GraphModule, repeat: Repeat, name: str) -> dict[str, Parts]:
    graph, count = module.graph, len(repeat.layers)
    stacks = _stack(module, repeat, name)
    module.add_module(f"{name}_body", _body(repeat, count))
    module.add_module(f"{name}_goes_on", _condition(1 + len(repeat.carried) + len(stacks) + len(repeat.shared), count))
    with in_place_of(graph, repeat) as begin:
        held = [_attribute(graph, stack) for stack in stacks]
        kept: dict[str, Any] = {"dtype": torch.int64, "device": _device(repeat.layers[-1])}
        zero = graph.call_function(torch.ops.aten.zeros.default, ([],), kept)
        branches = _attribute(graph, f"{name}_goes_on"), _attribute(graph, f"{name}_body")
        looped = graph.call_function(while_loop, (*branches, (zero, *begin), (*held, *repeat.shared)))
        begin[:] = [graph.call_function(item, (looped, 1 + order)) for order in range(len(begin))]
    return stacks


@contextmanager
def in_place_of(graph: fx.Graph, repeat: Repeat) -> Iterator[list[fx.Node]]:
    """Insert nodes where a repeat's layers are, which go when the block is over.

    Yields:
        What the first layer takes of what each hands on; the block leaves there what the last has handed on.
    """
    last, inside = repeat.layers[-1], {node for layer in repeat.layers for node in layer}
    with graph.inserting_after(_latest(graph, repeat)):
        here = graph.call_function(int)  # a place to insert before
    with graph.inserting_before(here):
        carried = [graph.call_function(torch.ops.aten.contiguous.default, (value,)) for value, _ in repeat.carried]
        yield carried
        for result, (_, place) in zip(carried, repeat.carried, strict=True):
            result.meta["val"] = last[place].meta["val"]
            last[place].replace_all_uses_with(result, delete_user_cb=lambda user: user not in inside)
    for node in (here, *reversed([node for layer in repeat.layers for node in layer])):
        graph.erase_node(node)


def _attribute(graph: fx.Graph, name: str) -> fx.Node:
    return graph.create_node("get_attr", name)


def item(values: Sequence[Any], place: int) -> Any:
    """One of what a part of a graph hands on."""
    return values[place]


def _latest(graph: fx.Graph, repeat: Repeat) -> fx.Node:
    """The last node of all that the loop reads: what comes after the layers stands behind it."""
    read = {*repeat.shared, *(value for value, _ in repeat.carried), repeat.layers[0][0]}
    latest: fx.Node = next(node for node in reversed(graph.nodes) if node in read)
    return latest


def _device(layer: Sequence[fx.Node]) -> torch.device:
    return next(value.device for node in layer if isinstance(value := node.meta.get("val"), Tensor))


def _stack(module: fx.GraphModule, repeat: Repeat, name: str) -> dict[str, Parts]:
    """An attribute of the module for each weight of the layers."""
    stacks: dict[str, Parts] = {}
    for order, weights in enumerate(repeat.weights.values()):
        held = tuple(attrgetter(str(weight.target))(module).detach() for weight in weights)
        stacks[f"{name}_{order}"] = held
        whole = torch.empty((len(held), *held[0].shape), dtype=held[0].dtype, device="meta")
        module.register_buffer(f"{name}_{order}", whole, persistent=False)
    return stacks


def _condition(taken: int, count: int) -> fx.GraphModule:
    graph = fx.Graph()
    given = [graph.placeholder(f"arg_{order}") for order in range(taken)]
    graph.output(graph.call_function(torch.ops.aten.lt.Scalar, (given[0], count)))
    return fx.GraphModule(torch.nn.Module(), graph)


def _body(repeat: Repeat, count: int) -> fx.GraphModule:
    """One layer: its number, what it is handed, all weights and what all share, to the next number and what follows."""
    graph = fx.Graph()
    number = graph.placeholder("number")
    known = {value: graph.placeholder(f"carried_{order}") for order, (value, _) in enumerate(repeat.carried)}
    stacks = [graph.placeholder(f"weights_{order}") for order in range(len(repeat.weights))]
    shared = {value: graph.placeholder(f"shared_{order}") for order, value in enumerate(repeat.shared)}
    index = graph.call_function(index_below, (number, count))
    for weight, stack in zip(repeat.weights, stacks, strict=True):
        known[weight] = graph.call_function(torch.ops.aten.select.int, (stack, 0, index))
    handed = copy_layer(graph, repeat, known | shared)
    following = graph.call_function(torch.ops.aten.add.Tensor, (number, 1))
    graph.output((following, *handed))
    return fx.GraphModule(torch.nn.Module(), graph)


def copy_layer(graph: fx.Graph, repeat: Repeat, known: dict[fx.Node, fx.Node]) -> list[fx.Node]:
    """A copy of the first layer, given what it reads: what it hands on."""
    for node in repeat.layers[0]:
        known[node] = graph.node_copy(node, known.__getitem__)
    handed = (known[repeat.layers[0][place]] for _, place in repeat.carried)
    return [graph.call_function(torch.ops.aten.contiguous.default, (value,)) for value in handed]
