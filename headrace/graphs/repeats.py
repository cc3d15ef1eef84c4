"""Stretches of a graph that repeat: the layers of a model, the same but for their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from torch import Tensor, fx

from headrace.compat.torch import OpOverload, pytree, writes, written_arguments

# A stretch of fewer nodes that repeats once is not worth a loop.
LEAST_SAVED = 10
# Layers of so many kinds at most take turns, where nothing but what they read tells them apart.
MOST_KINDS = 8

# What a value is to the layers that read it: alike to all, a weight of each, or made by the layer before at some place.
SHARED, WEIGHT = "shared", "weight"
Role = str | int
Begins = Callable[[fx.Node], bool]
Reads = Mapping[fx.Node, tuple[fx.Node, ...]]


@dataclass(frozen=True)
class Repeat:
    """Layers that follow one another in a graph, each a list of as many nodes.

    What a layer reads is made in it, or one of these.

    Attributes:
        layers: the nodes of each, in order.
        carried: for what each layer takes from the one before it, the value that the first takes and the place in the
            layer of the node that makes it.
        weights: for each weight of the first layer, those that stand in its place in all layers, the first included;
            an input of its own is such a one where layers are called.
        shared: what all layers read alike.
    """

    layers: tuple[tuple[fx.Node, ...], ...]
    carried: tuple[tuple[fx.Node, int], ...]
    weights: dict[fx.Node, tuple[fx.Node, ...]]
    shared: tuple[fx.Node, ...]


class _Wiring(NamedTuple):
    """What each node reads, and whether layers are called with it."""

    read: Reads
    called: bool


def find_repeats(module: fx.GraphModule, begins: Begins | None = None, called: bool = False) -> list[Repeat]:
    """The stretches that repeat, those that save most first; no node is in two of them.

    Args:
        module: with its weights as attributes.
        begins: says of a node whether a layer had best begin with it; any may where none does.
        called: each layer is called with what it reads: inputs of its own count as its weights, and it may write to
            them, where nothing else reads them.
    """
    order = [node for node in module.graph.nodes if node.op == "call_function"]
    labels: list[Hashable] = [_label(node, module, called) for node in order]
    read = {node: _read(node) for node in order}
    found = []
    while (best := _best(order, labels, _Wiring(read, called), begins or _anywhere)) is not None:
        found.append(best)
        taken = {node for layer in best.layers for node in layer}
        labels = [object() if node in taken else label for node, label in zip(order, labels, strict=True)]
    return found


def _label(node: fx.Node, module: fx.GraphModule, called: bool) -> Hashable:
    """What a node has in common with those of other layers; its own where it can be in none."""
    into = _written(node)
    inputs_alone = called and all(one.op == "placeholder" for one in into)
    if not inputs_alone if into else node.is_impure():
        return object()
    held = pytree.tree_map(lambda value: _slot(value, module) if isinstance(value, fx.Node) else value, node.args)
    return str((node.target, held, sorted(node.kwargs.items()), _look(node.meta.get("val"))))


def _written(node: fx.Node) -> list[fx.Node]:
    """What an operator writes into."""
    if not (isinstance(node.target, OpOverload) and writes(node.target)):
        return []
    given = zip(written_arguments(node.target), node.args, strict=False)
    return [arg for written, arg in given if written and isinstance(arg, fx.Node)]


def _slot(node: fx.Node, module: fx.GraphModule) -> str:
    return f"weight {_look(attrgetter(str(node.target))(module))}" if node.op == "get_attr" else "value"


def _look(value: Any) -> Any:
    if isinstance(value, Tensor):
        return str(value.dtype), str(list(value.shape)), str(value.device)
    return [_look(one) for one in value] if isinstance(value, (tuple, list)) else str(value)


def _anywhere(node: fx.Node) -> bool:
    return True


def _best(order: Sequence[fx.Node], labels: Sequence[Hashable], wiring: _Wiring, begins: Begins) -> Repeat | None:
    """What saves most among the stretches of each length that layers may have."""
    best, most = None, LEAST_SAVED - 1
    for start, length, size in sorted(_runs(labels), key=lambda run: run[1] - run[2]):
        for first in _rotations(order, start, length, size, begins):
            if (start + size - first) // length * length - length <= most:
                continue
            made = _longest(order[first : start + size], length, wiring)
            if made is not None and _alone(made) and (saved := (len(made.layers) - 1) * length) > most:
                best, most = made, saved
    return best


def _alone(repeat: Repeat) -> bool:
    """Whether what its layers write into is read by them alone, and by one each."""
    for layer in repeat.layers:
        within = set(layer)
        if any(not within.issuperset(one.users) for node in layer for one in _written(node)):
            return False
    return True


def _runs(labels: Sequence[Hashable]) -> Iterator[tuple[int, int, int]]:
    """Where labels repeat at some distance: where that begins, the distance, and how many labels it takes in all."""
    for length in _lengths(labels):
        begin = 0
        for place in range(len(labels) - length + 1):
            ends = place == len(labels) - length or labels[place] != labels[place + length]
            if ends and place - begin >= length:
                yield begin, length, place - begin + length
            begin = place + 1 if ends else begin


def _lengths(labels: Sequence[Hashable]) -> list[int]:
    """The distances at which labels come again, and some multiples of the commonest: layers of two kinds take turns."""
    last, distances = dict[Hashable, int](), Counter[int]()
    for place, label in enumerate(labels):
        if label in last:
            distances[place - last[label]] += 1
        last[label] = place
    common = [distance for distance, _ in distances.most_common(1)]
    return sorted({*distances, *(times * distance for distance in common for times in range(2, MOST_KINDS + 1))})


def _rotations(order: Sequence[fx.Node], start: int, length: int, size: int, begins: Begins) -> list[int]:
    """Where a layer may begin: where least crosses from one to the next, the earliest first."""
    places = _places(order)

    def crossing(first: int) -> int:
        second = range(first + length, first + 2 * length)
        given = {arg for place in second for arg in order[place].all_input_nodes}
        return sum(first <= places.get(arg, -1) < first + length for arg in given)

    firsts = range(start, min(start + length, start + size - 2 * length + 1))
    wished = [first for first in firsts if begins(order[first])]
    return sorted(wished or firsts, key=lambda first: (crossing(first), first))


def _longest(stretch: Sequence[fx.Node], length: int, wiring: _Wiring) -> Repeat | None:
    """The layers that a stretch begins with, as many as follow the first in all that they read; None if only that."""
    first, *others = (tuple(stretch[begin : begin + length]) for begin in range(0, len(stretch) - length + 1, length))
    matching = _Matching(first, wiring)
    for layer in others:
        if not matching.take(layer):
            break
    while len(matching.layers) > 1 and not matching.closed():
        matching.layers.pop()
    return matching.repeat() if len(matching.layers) > 1 else None


class _Matching:
    """Layers that were found to be wired as the first."""

    def __init__(self, layer: tuple[fx.Node, ...], wiring: _Wiring) -> None:
        self.layers, self._read, self._called = [layer], wiring.read, wiring.called
        # What the first layer reads of others, and what that is to it.
        self._roles: dict[fx.Node, Role] = {}
        self._weights: dict[fx.Node, list[fx.Node]] = {}

    def take(self, layer: tuple[fx.Node, ...]) -> bool:
        """Whether a layer is wired so; it is one of them then."""
        own, before, first = (_places(one) for one in (layer, self.layers[-1], self.layers[0]))
        roles, weights = dict(self._roles), dict[fx.Node, fx.Node]()
        for node, model in zip(layer, self.layers[0], strict=True):
            for arg, of_first in zip(self._read[node], self._read[model], strict=True):
                if arg in own or of_first in first:
                    if own.get(arg) != first.get(of_first):
                        return False
                    continue
                role = _role(arg, of_first, before, self._called)
                # One thing to all that read it: the layer is copied with one value for each.
                if role is None or roles.setdefault(of_first, role) != role:
                    return False
                if role is WEIGHT and weights.setdefault(of_first, arg) is not arg:
                    return False
        self._roles = roles
        for model, weight in weights.items():
            self._weights.setdefault(model, [model]).append(weight)
        self.layers.append(layer)
        return True

    def closed(self) -> bool:
        """Whether nothing but what the last layer hands on is read by others."""
        within = {node for layer in self.layers for node in layer}
        handed = {self.layers[-1][place] for place in self._roles.values() if isinstance(place, int)}
        return all(node in handed or within.issuperset(node.users) for node in within)

    def repeat(self) -> Repeat:
        """What was found."""
        count = len(self.layers)
        return Repeat(
            layers=tuple(self.layers),
            carried=tuple((value, role) for value, role in self._roles.items() if isinstance(role, int)),
            weights={first: tuple(weights[:count]) for first, weights in self._weights.items()},
            shared=tuple(value for value, role in self._roles.items() if role is SHARED),
        )


def _role(arg: fx.Node, of_first: fx.Node, before: dict[fx.Node, int], called: bool) -> Role | None:
    """What a value from outside is to a layer, given the one in its place in the first; None where they differ."""
    if arg in before:
        value, first = arg.meta.get("val"), of_first.meta.get("val")
        return before[arg] if isinstance(value, Tensor) and _look(value) == _look(first) else None
    if arg is of_first:
        return SHARED
    own = called and arg.op == of_first.op == "placeholder" and _kind(arg) == _kind(of_first)
    return WEIGHT if own or arg.op == of_first.op == "get_attr" else None


def _kind(node: fx.Node) -> Any:
    """What inputs of two layers have in common: all but the sizes that are free."""
    value = node.meta["val"]
    return value.dtype, [size if isinstance(size, int) else None for size in value.shape], value.device


def _places(layer: Sequence[fx.Node]) -> dict[fx.Node, int]:
    return {node: place for place, node in enumerate(layer)}


def _read(node: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes that it reads, once for each place where one stands."""
    return tuple(value for value in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(value, fx.Node))
