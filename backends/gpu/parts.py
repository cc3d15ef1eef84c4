"""A graph in parts that are compiled apart: a layer that repeats, once for all of its kind, and what lies around them.

What compiling costs does not grow with layers so. A part takes all that it reads, weights among it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from headrace.backends.inductor.layers import copy_layer, finish, in_place_of, item, repeats
from headrace.compat.torch import OpOverload, enable_python_dispatcher, free_symbols
from headrace.compat.torch_compile import Sizes, compile_graph
from headrace.graphs import SIZE, lift_weights
from headrace.graphs.repeats import Repeat

# Of a library, or of ours: their operands lie in memory in any case, and there is nothing to fuse across their front.
PRODUCTS = (torch.ops.aten.linear.default, torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
OURS = "headrace"
LAYER, REST = "layer", "rest"


class Part(torch.nn.Module):
    """Compiled code in the place of a part."""

    def __init__(self, run: Callable[..., Any]) -> None:
        """`run` takes what the part takes."""
        super().__init__()
        self._run = run

    def forward(self, *given: Any) -> Any:
        """Run it."""
        return self._run(*given)


def split(module: fx.GraphModule) -> list[Tensor]:
    """Leave of a graph calls of its parts, which are modules of it, and inputs for its weights behind its own.

    Returns:
        The weights, in the order of those inputs.
    """
    for number, repeat in enumerate(repeats(module, begins=_is_whole, called=True)):
        _share(module, repeat, f"{LAYER}_{number}")
    finish(module)
    weights = lift_weights(module)
    _gather(module)
    finish(module)
    return weights


def compile_parts(
    module: fx.GraphModule, sizes: Sizes, inputs: Sequence[Any], options: Mapping[str, Any]
) -> Callable[..., Any]:
    """Compile each part of a graph once, on what it is first called with.

    Args:
        module: what `split` left.
        inputs: stand-ins that `sizes` made, weights among them.
        options: as of `compile_graph`.

    Returns:
        What takes the graph's inputs and returns its outputs.
    """
    graph, given, known = copy.deepcopy(module.graph), iter(inputs), dict[fx.Node, Any]()
    made, results, unread = dict[str, Part](), dict[str, Any](), dict[str, list[fx.Node]]()
    places = _places(inputs)
    for node in list(graph.nodes):
        args, name = fx.map_arg(node.args, known.get), str(node.target)
        if node.op == "placeholder":
            known[node] = next(given)
        elif node.op == "call_module":
            if name not in made:
                found = [places[symbol] for symbol in _unread(args) if symbol in places]
                unread[name] = _size_nodes(graph, found)
                part = _given_sizes(module.get_submodule(name), len(found))
                args = (*args, *(inputs[order].shape[place] for order, place in found))
                # Composite operators in C++ would make numbers of sizes; their decompositions in Python do not.
                with sizes.mode, enable_python_dispatcher(), torch.no_grad():
                    results[name] = part(*args)
                made[name] = Part(compile_graph(part, sizes, args, options))
            node.args = (*node.args, *unread[name])
            known[node] = results[name]
        elif node.op == "call_function":
            known[node] = node.target(*args)
    run: Callable[..., Any] = fx.GraphModule(made, graph).forward
    return run


def _is_whole(node: fx.Node) -> bool:
    """Whether nothing is fused into a node's front, so that a layer had best begin with it."""
    ours = isinstance(node.target, OpOverload) and node.target.namespace == OURS
    return ours or node.target in PRODUCTS


def _share(module: fx.GraphModule, repeat: Repeat, name: str) -> None:
    """Call one part for each layer of a repeat, in its place."""
    graph, own = module.graph, list(repeat.weights.values())
    module.add_module(name, _layer(repeat))
    with in_place_of(graph, repeat) as carried:
        for order, layer in enumerate(repeat.layers):
            weights = [_copied(graph, each[order]) for each in own]
            called = graph.call_module(name, (*carried, *weights, *repeat.shared))
            carried[:] = [_item(graph, called, place, layer[of]) for place, (_, of) in enumerate(repeat.carried)]


def _layer(repeat: Repeat) -> fx.GraphModule:
    """One layer: what it is handed, its weights and what all share, to what follows."""
    graph = fx.Graph()
    known = {value: graph.placeholder(f"carried_{order}") for order, (value, _) in enumerate(repeat.carried)}
    known |= {weight: graph.placeholder(f"weight_{order}") for order, weight in enumerate(repeat.weights)}
    known |= {value: graph.placeholder(f"shared_{order}") for order, value in enumerate(repeat.shared)}
    graph.output(tuple(copy_layer(graph, repeat, known)))
    return fx.GraphModule(torch.nn.Module(), graph)


def _gather(module: fx.GraphModule) -> None:
    """Put a part in place of each stretch of nodes between the calls of layers."""
    stretch, count = list[fx.Node](), 0
    for node in list(module.graph.nodes):
        if node.op == "get_attr" or (node.op == "call_function" and not _stays(node)):
            stretch.append(node)
        elif stretch and node.op in ("call_module", "output"):
            _put(module, f"{REST}_{count}", stretch)
            stretch, count = [], count + 1


def _stays(node: fx.Node) -> bool:
    """Whether a node stands between parts: it reads off a size of an input, or one of what a part hands on."""
    return node.target is item or (node.target is SIZE and node.all_input_nodes[0].op == "placeholder")


def _put(module: fx.GraphModule, name: str, stretch: Sequence[fx.Node]) -> None:
    graph, inside = module.graph, set(stretch)
    read = list(dict.fromkeys(given for node in stretch for given in node.all_input_nodes if given not in inside))
    handed = [node for node in stretch if node.op != "get_attr" and not inside.issuperset(node.users)]
    part = fx.Graph()
    known = {node: part.placeholder(f"given_{order}") for order, node in enumerate(read)}
    for node in stretch:
        known[node] = part.node_copy(node, known.__getitem__)
    part.output(tuple(known[node] for node in handed))
    module.add_module(name, fx.GraphModule(module, part))
    with graph.inserting_after(stretch[-1]):
        called = graph.call_module(name, tuple(read))
    with graph.inserting_after(called):
        for place, node in reversed(list(enumerate(handed))):
            result = _item(graph, called, place, node)
            node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in inside)
    for node in reversed(stretch):
        graph.erase_node(node)


def _item(graph: fx.Graph, called: fx.Node, place: int, like: fx.Node) -> fx.Node:
    made = graph.call_function(item, (called, place))
    made.meta = dict(like.meta)
    return made


def _copied(graph: fx.Graph, weight: fx.Node) -> fx.Node:
    """A weight where it is read: its attribute once more, or the input that it is."""
    if weight.op == "placeholder":
        return weight
    made = graph.create_node("get_attr", str(weight.target))
    made.meta = dict(weight.meta)
    return made


def _places(inputs: Sequence[Any]) -> dict[str, tuple[int, int]]:
    """The first input and its dimension that has each free size."""
    return {
        str(size): (order, place)
        for order, value in reversed(list(enumerate(inputs)))
        for place, size in enumerate(value.shape)
        if free_symbols(size)
    }


def _unread(args: Iterable[Any]) -> list[str]:
    """The free sizes that a part cannot read off what it is given: they are in its shapes, and none is one alone."""
    shapes = [size for value in args for size in getattr(value, "shape", ())]
    return sorted({str(one) for size in shapes for one in free_symbols(size)} - {str(size) for size in shapes})


def _size_nodes(graph: fx.Graph, places: Iterable[tuple[int, int]]) -> list[fx.Node]:
    """What reads sizes off the graph's inputs."""
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    with graph.inserting_after(nodes[-1]):
        return [graph.call_function(SIZE, (nodes[order], place)) for order, place in places]


def _given_sizes(part: Any, count: int) -> fx.GraphModule:
    """A copy of a part that is given so many sizes besides."""
    made: fx.GraphModule = copy.deepcopy(part)
    last = [node for node in made.graph.nodes if node.op == "placeholder"][-1]
    for order in range(count):
        with made.graph.inserting_after(last):
            last = made.graph.placeholder(f"size_{order}")
    made.recompile()
    return made
