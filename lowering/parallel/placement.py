"""Which values of a program are in parts: found from the attentions' heads and the feed-forwards' products."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from headrace.compat.torch import free_symbols
from headrace.errors import TargetError
from headrace.graphs.views import arguments
from headrace.ir import Program
from headrace.lowering.parallel.shard import UNKNOWN, CannotSplit, Placed, Shard, rule_of, shape_of
from headrace.ops.attention import ATTENTION
from headrace.ops.packed import ATTENTION_VARLEN

aten = torch.ops.aten
# Of each product where its rows, its weight and its bias stand, and along which dimension the weight has its outputs.
PRODUCTS: dict[Any, tuple[int, int, int | None, int]] = {
    aten.linear.default: (0, 1, 2, 0),
    aten.addmm.default: (1, 2, 0, 1),
    aten.mm.default: (0, 1, None, 1),
}
# Where the heads are: of queries, keys and values, and of the result.
HEADS = {ATTENTION: (1, 2), ATTENTION_VARLEN: (1, 1)}
# Of layers that cannot be split, how many are told.
REASONS = 4
# What only asks something of a value.
ASKING = frozenset({torch.ops.aten.sym_size.int, torch.ops.aten._assert_tensor_metadata.default})


class Product(NamedTuple):
    """A linear layer: `outputs` is the dimension of its weight that its outputs lie along."""

    rows: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    outputs: int


def product_of(node: fx.Node) -> Product:
    """The operands of a linear layer."""
    target: Any = node.target
    rows, weight, bias, outputs = PRODUCTS[target]
    given: Any = node.args
    return Product(given[rows], given[weight], given[bias] if bias is not None and bias < len(given) else None, outputs)


class Placement:
    """The values in parts, by node, and the linear layers that take parts to a sum.

    Attributes:
        shards: how each value in parts is; weights among them.
        rows: the linear layers whose results are to be summed over the devices.
    """

    def __init__(self, program: Program, ranks: int) -> None:
        """Nothing is in parts yet."""
        self.shards: dict[fx.Node, Shard] = {}
        self.rows: set[fx.Node] = set()
        self._columns: set[fx.Node] = set()
        self._program, self._ranks = program, ranks
        self._changed = deque[fx.Node]()

    def place(self, node: fx.Node, shard: Shard) -> None:
        """Put a value in parts, and with it all that then is.

        Raises:
            CannotSplit: something needs it whole, or otherwise in parts.
        """
        self._put(node, shard)
        while self._changed:
            one = self._changed.popleft()
            for other, found in self._of(one):
                self._put(other, found)

    def attempt(self, node: fx.Node, shard: Shard) -> str:
        """`place`, or nothing: why not, empty where it was done."""
        before = dict(self.shards), set(self.rows), set(self._columns)
        try:
            self.place(node, shard)
        except CannotSplit as error:
            self.shards, self.rows, self._columns = before
            self._changed.clear()
            return str(error)
        return ""

    def free(self, node: fx.Node) -> bool:
        """Whether a linear layer is whole."""
        return node not in self.rows and node not in self._columns

    def check(self) -> None:
        """Every part has its owner.

        Raises:
            CannotSplit: names a value of which nothing says who has some of it.
        """
        for node, shard in self.shards.items():
            if UNKNOWN in shard.owners:
                raise CannotSplit(node, "is in parts, and some of it is read by nothing that says whose it is")

    def _put(self, node: fx.Node, shard: Shard) -> None:
        known = self.shards.get(node)
        both = shard if known is None else known.unified(shard)
        if both is None:
            raise CannotSplit(node, f"would be in parts in two ways, along {known.dim if known else 0} and {shard.dim}")
        if both != known:
            self.shards[node] = both
            self._changed.append(node)

    def _of(self, node: fx.Node) -> Iterator[Placed]:
        """What is in parts since this value is: its operands, and the results that are made of it."""
        shard = self.shards[node]
        if node.op == "call_function":
            yield from self._through(node, node, shard)
        elif node.op != "placeholder" or not _held(self._program, node):
            raise CannotSplit(node, "is given to the program, and is whole")
        for user in node.users:
            if user.op == "output":
                raise CannotSplit(node, "is what the program returns, and is whole")
            if user.target not in ASKING:
                yield from self._through(user, node, shard)

    def _through(self, node: fx.Node, known: fx.Node, shard: Shard) -> Iterator[Placed]:
        if node.target in PRODUCTS:
            return self._product(node, known, shard)
        if node.target in HEADS:
            return self._heads(node, known, shard)
        return rule_of(node)(node, known, shard)

    def _product(self, node: fx.Node, known: fx.Node, shard: Shard) -> Iterator[Placed]:
        """A linear layer: its columns in parts make parts, its rows in parts make what is to be summed."""
        one, last = product_of(node), len(shape_of(node)) - 1
        outputs = known is node or known is one.bias or (known is one.weight and shard.dim == one.outputs)
        if known in (node, one.rows) and shard.dim != last:  # a layer of each head
            yield (one.rows if known is node else node), shard
            return
        role, other = (self._columns, self.rows) if outputs else (self.rows, self._columns)
        if node in other:
            raise CannotSplit(node, "would take parts and make parts")
        role.add(node)
        yield one.weight, shard.at(one.outputs if outputs else 1 - one.outputs)
        yield (node if outputs else one.rows), shard.at(last)
        if outputs and one.bias is not None:
            yield one.bias, shard.at(0)

    def _heads(self, node: fx.Node, known: fx.Node, shard: Shard) -> Iterator[Placed]:
        """Of an attention: whichever came first, all of its operands and its result are in parts by heads."""
        given = arguments(node)
        if known is given.get("mask"):
            raise CannotSplit(node, "has a mask that is in parts")
        yield from by_heads(node, self._ranks)


def by_heads(node: fx.Node, ranks: int) -> Iterator[Placed]:
    """An attention's operands and result in parts, heads of queries with the heads of keys that they read.

    Raises:
        CannotSplit: its heads do not divide.
    """
    target: Any = node.target
    given, (inner, outer) = arguments(node), HEADS[target]
    queries, keys = shape_of(given["q"])[inner], shape_of(given["k"])[inner]
    if keys % ranks:
        raise CannotSplit(node, f"has {keys} heads of keys and values, which do not divide by {ranks}")
    of_keys = tuple(head * ranks // keys for head in range(keys))
    of_queries = tuple(of_keys[head * keys // queries] for head in range(queries))
    yield node, Shard(outer, of_queries)
    yield given["q"], Shard(inner, of_queries)
    for name in ("k", "v"):
        yield given[name], Shard(inner, of_keys)
    if given["sinks"] is not None:
        yield given["sinks"], Shard(0, of_queries)
    if (bias := given["bias"]) is not None:
        dim = len(shape_of(bias)) - 3 if node.target is ATTENTION else 0
        if dim >= 0 and shape_of(bias)[dim] == queries:
            yield bias, Shard(dim, of_queries)


def placement(program: Program, ranks: int) -> Placement:
    """Everything that is in parts where the program runs on so many devices.

    Raises:
        TargetError: names the node that keeps it whole, and the rule.
    """
    _require(program)
    found, nodes = Placement(program, ranks), list(program.graph.graph.nodes)
    try:
        for node in nodes:
            if node.target in HEADS:
                for one, shard in by_heads(node, ranks):
                    found.place(one, shard)
        tokens = _free(shape_of(next(node for node in nodes if node.target in HEADS)))
        kept = {node: why for node in nodes if (why := _feed_forward(found, node, ranks, tokens))}
        found.check()
        _require_split(program, nodes, found, kept)
    except CannotSplit as error:
        raise refusal(str(error), ranks) from error
    return found


def _feed_forward(found: Placement, node: fx.Node, ranks: int, tokens: frozenset[Any]) -> str:
    """Put a layer's input in parts where what makes it can be: the second product of a feed-forward."""
    if node.target not in PRODUCTS or not found.free(node) or not tokens <= _free(shape_of(node)):
        return ""
    rows = product_of(node).rows
    width = shape_of(rows)[-1]
    if width % ranks:
        return f"{node.name} reads rows of {width} numbers, which do not divide by {ranks}"
    owners = tuple(number * ranks // width for number in range(width))
    return found.attempt(rows, Shard(len(shape_of(rows)) - 1, owners))


def _free(sizes: tuple[Any, ...]) -> frozenset[Any]:
    return frozenset(symbol for size in sizes for symbol in free_symbols(size))


def _require(program: Program) -> None:
    if program.nodes.recurrent:
        first = program.nodes.recurrent[0]
        raise refusal(f"{first.node} computes {first.operator}, a recurrence, of which no rule says how it is split", 0)
    if not program.nodes.attention:
        raise refusal("it has no attention whose heads could be shared out", 0)


def _require_split(program: Program, nodes: list[fx.Node], found: Placement, kept: dict[fx.Node, str]) -> None:
    """What stands between two attentions is in parts: a device would else hold and compute all of it."""
    attentions = [place for place, node in enumerate(nodes) if node.target in HEADS]
    between = nodes[attentions[0] : attentions[-1]]
    left = [node for node in between if node not in found.rows and _whole_weights(program, found, node)]
    if left:
        told = dict.fromkeys(kept.get(node, f"{node.name} computes {node.target}") for node in left[:REASONS])
        raise CannotSplit(
            left[0], f"would have all of its weights on each device, as {len(left)} would: {'; '.join(told)}"
        )


def _whole_weights(program: Program, found: Placement, node: fx.Node) -> bool:
    """Whether a node computes with a matrix that is whole; rows that are looked up are no computing."""
    if node.target is aten.embedding.default or node.op != "call_function":
        return False
    held = [one for one in node.all_input_nodes if one.op == "placeholder" and _held(program, one)]
    return any(len(shape_of(one)) > 1 and one not in found.shards for one in held)


def refusal(why: str, ranks: int) -> TargetError:
    """The error for what cannot be split."""
    over = f" over {ranks} devices" if ranks else ""
    return TargetError(
        f'The model cannot be split{over}: {why}. Pass parallel="data", by which each device has all of it.'
    )


def _held(program: Program, node: fx.Node) -> bool:
    """Whether a placeholder is a weight or a buffer."""
    return node.name not in program.graph.graph_signature.user_inputs and isinstance(node.meta.get("val"), Tensor)
