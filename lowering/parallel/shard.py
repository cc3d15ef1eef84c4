"""Which device has which part of a value, and how that goes through an operator, from its result to its operands."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from headrace.graphs.views import arguments

aten = torch.ops.aten
UNKNOWN = -1


class CannotSplit(Exception):
    """A value in parts meets what needs it whole."""

    def __init__(self, node: fx.Node, why: str) -> None:
        """`why` goes on from the node's name."""
        super().__init__(f"{node.name} {why}")


@dataclass(frozen=True)
class Shard:
    """A value in parts along one dimension.

    Attributes:
        owners: of each index along it the device, by its rank; `UNKNOWN` until something says it.
    """

    dim: int
    owners: tuple[int, ...]

    def at(self, dim: int) -> Shard:
        """The same along another dimension."""
        return Shard(dim, self.owners)

    def indices(self, rank: int) -> list[int]:
        """Those that a device has, ascending."""
        return [index for index, owner in enumerate(self.owners) if owner == rank]

    def unified(self, other: Shard) -> Shard | None:
        """What both say; None where they disagree."""
        if (self.dim, len(self.owners)) != (other.dim, len(other.owners)):
            return None
        both = zip(self.owners, other.owners, strict=True)
        if any(one != two and UNKNOWN not in (one, two) for one, two in both):
            return None
        return Shard(self.dim, tuple(map(max, self.owners, other.owners)))


Placed = tuple[fx.Node, Shard]
# Given a node, the operand or result that is in parts, and how: the others that then are, and how.
Rule = Callable[[fx.Node, fx.Node, Shard], Iterator[Placed]]


def shape_of(node: fx.Node) -> tuple[Any, ...]:
    """The sizes of its value; of none for what is no tensor."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def tensors(node: fx.Node) -> list[fx.Node]:
    """The operands that are tensors, each once."""
    return [one for one in node.all_input_nodes if isinstance(one.meta.get("val"), (Tensor, tuple, list))]


def pointwise(node: fx.Node, known: fx.Node, shard: Shard) -> Iterator[Placed]:
    """Operands are aligned at their last dimension; one of size one there is whole."""
    end = shard.dim - len(shape_of(known))
    for one in (node, *tensors(node)):
        sizes = shape_of(one)
        place = len(sizes) + end
        if place >= 0 and _same(sizes[place], len(shard.owners)):
            yield one, shard.at(place)
    if not _same(shape_of(node)[end], len(shard.owners)):
        raise CannotSplit(node, f"repeats {known.name} along the dimension in which it is in parts")


def mapped(dims: Callable[[fx.Node], list[int | None]]) -> Rule:
    """The rule of an operator that moves dimensions.

    Args:
        dims: gives for each dimension of the first operand that of the result, None where it has none.
    """

    def rule(node: fx.Node, known: fx.Node, shard: Shard) -> Iterator[Placed]:
        found, source = dims(node), node.all_input_nodes[0]
        if known is not node and known is not source:
            raise CannotSplit(node, f"reads {known.name} whole")
        if known is node:
            places = [place for place, to in enumerate(found) if to == shard.dim]
            if not places:
                raise CannotSplit(node, "needs whole what it computes along the dimension that would be in parts")
            yield source, shard.at(places[0])
        elif (to := found[shard.dim]) is None:
            raise CannotSplit(node, f"takes {known.name} together along the dimension in which it is in parts")
        else:
            yield node, shard.at(to)

    return rule


def _transposed(node: fx.Node) -> list[int | None]:
    rank = len(shape_of(node))
    one, other = (int(dim) % rank for dim in node.args[1:3])  # type: ignore[arg-type]
    return [other if dim == one else one if dim == other else dim for dim in range(rank)]


def _permuted(node: fx.Node) -> list[int | None]:
    rank = len(shape_of(node))
    order: Any = node.args[1]
    return [[place % rank for place in order].index(dim) for dim in range(rank)]


def _unsqueezed(node: fx.Node) -> list[int | None]:
    rank = len(shape_of(node))
    new = int(node.args[1]) % rank  # type: ignore[arg-type]
    return [dim if dim < new else dim + 1 for dim in range(rank - 1)]


def _without(node: fx.Node) -> list[int | None]:
    """Of an operator that takes one index along a dimension, or drops it."""
    rank = len(shape_of(node.all_input_nodes[0]))
    gone = int(node.args[1]) % rank  # type: ignore[arg-type]
    return [dim if dim < gone else None if dim == gone else dim - 1 for dim in range(rank)]


def _reduced(node: fx.Node) -> list[int | None]:
    rank, given = len(shape_of(node.all_input_nodes[0])), arguments(node)
    dims = given["dim"] if isinstance(given["dim"], (list, tuple)) else [given["dim"]]
    gone = {dim % rank for dim in dims} if dims else set(range(rank))
    keeps = given.get("keepdim", False)
    left = [dim for dim in range(rank) if keeps or dim not in gone]
    return [None if dim in gone else left.index(dim) for dim in range(rank)]


def _normed(node: fx.Node) -> list[int | None]:
    """Of a norm over the last dimensions."""
    rank = len(shape_of(node))
    over: Any = node.args[1]
    return [dim if dim < rank - len(over) else None for dim in range(rank)]


def viewed(node: fx.Node, known: fx.Node, shard: Shard) -> Iterator[Placed]:
    """Dimensions that are taken apart or put together: each index goes where its numbers go."""
    source = node.all_input_nodes[0]
    here, there = (node, source) if known is node else (source, node)
    yield there, _regrouped(node, shape_of(here), shape_of(there), shard)


def _regrouped(node: fx.Node, here: tuple[Any, ...], there: tuple[Any, ...], shard: Shard) -> Shard:
    """How a value of one shape is in parts once it has another: the group of dimensions that hold the same numbers."""
    end = 0
    while end < min(len(here) - shard.dim - 1, len(there) - 1) and _same(here[-1 - end], there[-1 - end]):
        end += 1
    begin, other_begin = _same_tails(node, here[: len(here) - end], there[: len(there) - end], shard.dim)
    own, other = here[begin : len(here) - end], there[other_begin : len(there) - end]
    place = shard.dim - begin
    along = np.array(shard.owners).reshape([-1 if dim == place else 1 for dim in range(len(own))])
    laid = np.broadcast_to(along, own).reshape(other)
    for dim in range(len(other)):
        owners = _along(laid, dim)
        if owners is not None and other[dim] > 1:
            return Shard(other_begin + dim, tuple(owners.tolist()))
    raise CannotSplit(node, f"lays the parts out so that no dimension of {list(there)} tells them apart")


def _same_tails(node: fx.Node, here: tuple[Any, ...], there: tuple[Any, ...], dim: int) -> tuple[int, int]:
    """Where the fewest last dimensions begin, `dim` among them, that hold as many numbers in one shape as the other."""
    for begin in range(dim, -1, -1):
        count = _product(here[begin:])
        for other in range(len(there) - 1, -1, -1):
            if count is not None and _product(there[other:]) == count:
                return begin, other
    raise CannotSplit(node, "takes dimensions of free size together with the one that is in parts")


def _product(sizes: tuple[Any, ...]) -> int | None:
    """None where one is free."""
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None


def _along(laid: NDArray[np.int64], dim: int) -> NDArray[np.int64] | None:
    """The owners along a dimension, where they depend on nothing else."""
    flat = np.moveaxis(laid, dim, 0).reshape(laid.shape[dim], -1)
    found = flat.max(1)
    return found if ((flat == found[:, None]) | (flat == UNKNOWN)).all() else None


def as_first(node: fx.Node, known: fx.Node, shard: Shard) -> Iterator[Placed]:
    """Of an operator that asks its second operand for a dtype alone."""
    if known in (node, node.args[0]):
        yield from ((one, shard) for one in (node, node.all_input_nodes[0]))


def sliced(node: fx.Node, known: fx.Node, shard: Shard) -> Iterator[Placed]:
    """Some of the indices along a dimension; along another all parts stay."""
    given, source = arguments(node), node.all_input_nodes[0]
    dim = given.get("dim", 0) % len(shape_of(node))
    if dim != shard.dim:
        yield (source if known is node else node), shard
        return
    whole = shape_of(source)[dim]
    begin, end, step = slice(given.get("start"), given.get("end"), given.get("step", 1)).indices(whole)
    if step != 1:
        raise CannotSplit(node, f"takes every {step}th along the dimension in which {source.name} is in parts")
    places = list(range(begin, end))
    if known is node:
        yield source, _scattered(shard, whole, places)
    else:
        yield node, Shard(dim, tuple(shard.owners[place] for place in places))


def _scattered(shard: Shard, whole: int, places: list[int]) -> Shard:
    owners = [UNKNOWN] * whole
    for place, owner in zip(places, shard.owners, strict=True):
        owners[place] = owner
    return Shard(shard.dim, tuple(owners))


def piece_of(node: fx.Node) -> tuple[int, int, int]:
    """Of a `getitem` of a split: the dimension, where the piece begins and where it ends."""
    split: Any = node.args[0]
    pieces, number = split.meta["val"], int(node.args[1])  # type: ignore[arg-type]
    dim = arguments(split).get("dim", 0) % pieces[0].dim()
    begin = sum(piece.shape[dim] for piece in pieces[:number])
    return dim, begin, begin + pieces[number].shape[dim]


def piece(node: fx.Node, known: fx.Node, shard: Shard) -> Iterator[Placed]:
    """One of the pieces of a split, or of the slices of an `unbind`; what is split stands for all of them."""
    split: Any = node.args[0]
    source = split.args[0]
    if split.target is aten.unbind.int:
        rank = len(shape_of(source))
        gone = arguments(split).get("dim", 0) % rank
        if known is node:
            yield split, shard.at(shard.dim + (shard.dim >= gone))
        elif shard.dim == gone:
            raise CannotSplit(split, f"takes {source.name} apart along the dimension in which it is in parts")
        else:
            yield node, shard.at(shard.dim - (shard.dim > gone))
        return
    dim, begin, end = piece_of(node)
    if dim != shard.dim:
        yield (split if known is node else node), shard
    elif known is node:
        yield split, _scattered(shard, shape_of(source)[dim], list(range(begin, end)))
    else:
        yield node, Shard(dim, shard.owners[begin:end])


def whole(node: fx.Node, known: fx.Node, shard: Shard) -> Iterator[Placed]:
    """A split or an `unbind` is in parts as what it takes apart is."""
    source = node.all_input_nodes[0]
    yield (source if known is node else node), shard


def joined(node: fx.Node, known: fx.Node, shard: Shard) -> Iterator[Placed]:
    """What is put side by side along another dimension."""
    dim = arguments(node).get("dim", 0) % len(shape_of(node))
    if dim == shard.dim:
        raise CannotSplit(node, f"puts {known.name} beside others along the dimension in which it is in parts")
    yield from ((one, shard) for one in (node, *tensors(node)))


def looked_up(node: fx.Node, known: fx.Node, shard: Shard) -> Iterator[Placed]:
    """Rows of a table: the last dimension of the result is the table's."""
    table, last = node.all_input_nodes[0], len(shape_of(node)) - 1
    if known is node and shard.dim == last:
        yield table, shard.at(1)
    elif known is table and shard.dim == 1:
        yield node, shard.at(last)
    else:
        raise CannotSplit(node, "looks up rows that are in parts")


RULES: dict[Any, Rule] = {
    aten.transpose.int: mapped(_transposed),
    aten.permute.default: mapped(_permuted),
    aten.unsqueeze.default: mapped(_unsqueezed),
    aten.select.int: mapped(_without),
    aten.squeeze.dim: mapped(_without),
    aten.mean.dim: mapped(_reduced),
    aten.sum.dim_IntList: mapped(_reduced),
    aten.layer_norm.default: mapped(_normed),
    aten.rms_norm.default: mapped(_normed),
    aten.view.default: viewed,
    aten.reshape.default: viewed,
    aten.expand.default: pointwise,
    aten.slice.Tensor: sliced,
    aten.split.Tensor: whole,
    aten.split_with_sizes.default: whole,
    aten.unbind.int: whole,
    operator.getitem: piece,
    aten.cat.default: joined,
    aten.type_as.default: as_first,
    aten.embedding.default: looked_up,
}
# Besides those that torch says work number by number.
POINTWISE = frozenset(
    {aten._to_copy.default, aten.to.dtype, aten.clone.default, aten.contiguous.default, aten.dropout.default,
     aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default}
)  # fmt: skip


def rule_of(node: fx.Node) -> Rule:
    """How parts go through a node.

    Raises:
        CannotSplit: it is no operator of which that is known.
    """
    if (found := RULES.get(node.target)) is not None:
        return found
    if node.target in POINTWISE or torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return pointwise
    raise CannotSplit(node, f"computes {node.target}, of which no rule says how parts go through it")


def _same(size: Any, count: int) -> bool:
    """Whether sizes are the same; nothing is asked of free ones but whether they are one thing."""
    if isinstance(size, torch.SymInt) or isinstance(count, torch.SymInt):
        return str(size) == str(count)
    return bool(size == count)
