"""Put an attention node in the place of the operators that were read as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from headrace import graphs
from headrace.graphs.views import arguments, in_order
from headrace.ir import Role, Signature
from headrace.lowering.recover.mask_and_bias import Parts
from headrace.lowering.recover.matmul import Operand
from headrace.lowering.recover.scores import Scores, Term, Unread, name_of, rank_of
from headrace.ops.attention import ATTENTION, MASK

# Of these, the elements stay in their order: an operand that was [B, H, S, D] before is taken from there.
RESHAPES = frozenset({"view", "_unsafe_view", "reshape", "clone", "contiguous"})
STRIDED = frozenset({"transpose", "permute", "expand", "unsqueeze", "squeeze", "slice", "select", "alias"})
aten = torch.ops.aten


@dataclass(frozen=True)
class Folded:
    """An attention as it was read, and its parts."""

    scores: Scores
    parts: Parts


def fold(graph: fx.Graph, found: list[Folded], signature: Signature) -> list[str]:
    """Rewrite each attention in a copy of the graph that it was read from.

    Args:
        signature: what the graph takes: the first dimension of every input is the batch.

    Returns:
        The names of the new nodes.
    """
    for node in list(graph.nodes):
        # An assertion has an effect, so it would keep alive what it looks at.
        if node.target is aten._assert_tensor_metadata.default:
            graph.erase_node(node)
    folder = _Folder(graph, signature)
    return [node.name for one in found if (node := folder.fold(one)) is not None]


class _Folder:
    """The copied graph, with the masks that attentions share."""

    def __init__(self, graph: fx.Graph, signature: Signature) -> None:
        self.graph = graph
        self.named: dict[str, fx.Node] = {node.name: node for node in graph.nodes}
        self.masks: dict[Any, fx.Node] = {}
        self.biases: dict[tuple[Term, ...], fx.Node] = {}
        self.rows = self.named[signature.inputs[0].name]
        # What says which tokens are real, of a text and of a decoder's target.
        names = map(signature.name, (Role.PADDING, Role.TARGET_PADDING))
        self.paddings = [self.named[name] for name in names if name]

    def fold(self, one: Folded) -> fx.Node | None:
        """The new node; None where the attention was one already, and got its mask."""
        scores, out = one.scores, self.named[one.scores.out.name]
        with self.graph.inserting_before(out):
            q, k, v = (self.heads_apart(operand) for operand in scores.operands)
            mask, bias = self.mask(one.parts, q, k), self.bias(one.parts)
            form = one.parts.relation.kind.value, list(one.parts.relation.window)
            if out.target is ATTENTION:
                kind, window = form
                changed = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias, "kind": kind, "window": window}
                out.args, out.kwargs = in_order(ATTENTION, arguments(out) | changed), {}
                return None
            node = self.call(ATTENTION, q, k, v, mask, bias, None, scores.scale, *form, 0.0, like=out)
            self.replace(out, node, scores.order)
        self.graph.erase_node(out)
        return node

    def heads_apart(self, operand: Operand) -> fx.Node:
        """An operand as [B, H, S, D]."""
        node, swapped = self.named[operand.node.name], operand.swapped
        if operand.order:
            node = self.call(aten.permute.default, node, list(operand.order))
        elif swapped and _swaps(node, rank_of(node) - 2, rank_of(node) - 1):
            node, swapped = node.all_input_nodes[0], False
        if swapped:
            node = self.call(aten.transpose.int, node, -2, -1)
        if rank_of(node) == 3:
            node = self.unmerged(node)
        return self.over_batch(node)

    def unmerged(self, node: fx.Node) -> fx.Node:
        """[B * H, S, D] as [B, H, S, D]."""
        heads = ratio(node.meta["val"].shape[0], self.rows.meta["val"].shape[0])
        if heads is None:
            raise Unread(f"the first dimension of {node.name} is no number of heads times the batch")
        shape = (self.rows.meta["val"].shape[0], heads, *node.meta["val"].shape[1:])
        source = node
        while name_of(source) in RESHAPES:
            source = source.all_input_nodes[0]
            if rank_of(source) == 4 and all(map(equal, source.meta["val"].shape, shape)):
                return source
        sizes = [self.size(self.rows, 0), heads, self.size(node, 1), self.size(node, 2)]
        return self.call(aten.reshape.default, node, sizes)

    def over_batch(self, node: fx.Node) -> fx.Node:
        if rank_of(node) != 4:
            raise Unread(f"{node.name} is not [batch, heads, length, width]")
        if equal(node.meta["val"].shape[0], self.rows.meta["val"].shape[0]):
            return node
        if node.meta["val"].shape[0] != 1:
            raise Unread(f"the first dimension of {node.name} is not the batch")
        return self.call(aten.expand.default, node, [self.size(self.rows, 0), -1, -1, -1])

    def mask(self, parts: Parts, q: fx.Node, k: fx.Node) -> fx.Node | None:
        """A mask node that says the relation, shared by all attentions of its kind and lengths."""
        if not parts.relation.padded:
            return None
        if parts.mask is not None:
            return self.named[parts.mask.name]
        kind, window, _ = parts.relation
        # Of an encoder-decoder's two, the one that is as long as the keys.
        given = self.paddings
        padding = next((n for n in given if equal(n.meta["val"].shape[1], k.meta["val"].shape[2])), given[0])
        lengths = [padding if equal(n.meta["val"].shape[2], padding.meta["val"].shape[1]) else n for n in (q, k)]
        key = (kind, window, *lengths)
        if key not in self.masks:
            batch = self.size(self.rows, 0)
            q_len, kv_len = (self.size(n, 1 if n is padding else 2) for n in lengths)
            device = padding.meta["val"].device
            args = (padding, batch, q_len, kv_len, 0, 0, kind.value, list(window), device)
            self.masks[key] = self.call(MASK, *args)
        return self.masks[key]

    def bias(self, parts: Parts) -> fx.Node | None:
        """The sum of the terms that are left, shared by all attentions that add the same."""
        if not parts.bias:
            return None
        if parts.bias not in self.biases:
            first, *others = map(self.term, parts.bias)
            for node in others:
                first = self.call(aten.add.Tensor, first, node)
            self.biases[parts.bias] = first
        return self.biases[parts.bias]

    def term(self, term: Term) -> fx.Node:
        """A term times its factor, broadcast as [B or 1, H or 1, L or 1, S]."""
        node = self.named[term.node.name]
        if term.rank == 3 and rank_of(node) == 3 and node.meta["val"].shape[0] != 1:
            node = self.unmerged(node)
        for _ in range(4 - rank_of(node)):
            node = self.call(aten.unsqueeze.default, node, 0)
        return node if term.factor == 1 else self.call(aten.mul.Tensor, node, term.factor)

    def replace(self, out: fx.Node, node: fx.Node, order: tuple[int, ...] | None) -> None:
        """[B, L, H, Dv] in place of what the product gave, in its layout."""
        if rank_of(out) == 4 and not order and all(map(_back, out.users)):
            for user in list(out.users):
                graphs.replace(user, node)
            return
        new = self.call(aten.transpose.int, node, 1, 2)
        if rank_of(out) == 3:
            new = self.call(aten.reshape.default, new, [-1, self.size(new, 2), self.size(new, 3)])
        elif order:
            new = self.call(aten.permute.default, new, list(order))
        out.replace_all_uses_with(new)
        _loosen_views(new)

    def call(self, target: Any, *args: Any, like: fx.Node | None = None) -> fx.Node:
        return graphs.call(self.graph, target, args, like)

    def size(self, node: fx.Node, dim: int) -> fx.Node | int:
        """A size as a number, or as a node where it is symbolic."""
        size: Any = node.meta["val"].shape[dim]
        return self.call(aten.sym_size.int, node, dim) if isinstance(size, torch.SymInt) else int(size)


def _back(user: fx.Node) -> bool:
    """Whether a node swaps heads and length back."""
    return _swaps(user, 1, 2) or (user.target is aten.permute.default and user.args[1] == [0, 2, 1, 3])


def _loosen_views(node: fx.Node) -> None:
    """Its elements lie in another order than the product's: what took a view of them may have to copy."""
    for user in node.users:
        if user.target is aten.view.default:
            user.target = aten.reshape.default
        elif name_of(user) in STRIDED:
            _loosen_views(user)


def _swaps(node: fx.Node, *dims: int) -> bool:
    given: Any = node.args[1:]
    return node.target is aten.transpose.int and {dim % rank_of(node) for dim in given} == set(dims)


def equal(one: Any, other: Any) -> bool:
    """Whether two sizes are the same for every batch and length; asking adds no guard."""
    return bool(_expression(one) == _expression(other))


def ratio(one: Any, other: Any) -> int | None:
    """How often one size holds another, where that is a number."""
    found: Any = _expression(one) / _expression(other)
    return (
        int(found)
        if getattr(found, "is_Integer", False) or (isinstance(found, float) and found == int(found))
        else None
    )


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size
