"""Find attention that a model's own code computes: a softmax of a product of queries and keys that weighs values.

What stands between the first product and the softmax is read operator by operator into a sum: the product times a
scale, terms that are added, and fills that hide a key. Nothing is looked up by name; what does not read so stays as
it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from headrace.compat.torch import operator_name
from headrace.graphs.views import arguments
from headrace.lowering.recover.matmul import Operand, Product, product_of

# A score at or below this takes no weight: the exponential of it is zero beside any other.
HIDDEN = -1000.0
SOFTMAX = frozenset({torch.ops.aten.softmax.int, torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default})
# Attention as one operator of torch, called past the interface.
SDPA = "scaled_dot_product_attention"
FUSED = frozenset({SDPA, "_native_multi_head_attention", "_transformer_encoder_layer_fwd", "flex_attention"})
ARITHMETIC = frozenset({"add", "sub", "mul", "div", "maximum", "max"})
PRODUCTS = frozenset({"matmul", "bmm", "baddbmm", "einsum"})
# What changes neither the values nor the order of the elements.
UNCHANGED = frozenset(
    {"clone", "view", "dropout", "to", "_to_copy", "reshape", "type_as", "_unsafe_view", "contiguous", "alias",
     "detach", "unflatten", "flatten", "expand", "unsqueeze", "squeeze", "native_dropout", "feature_dropout"}
)  # fmt: skip
# What may stand between a softmax and a product that it weighs, in a form that need not be one of ours.
PASSING = UNCHANGED | frozenset({"transpose", "permute", "slice", "mul", "masked_fill", "where"})
Constant = Callable[[Any], float | None]


@dataclass(frozen=True)
class Term:
    """`factor * node`, broadcast to scores of `rank` dimensions."""

    node: fx.Node
    factor: float
    rank: int


@dataclass(frozen=True)
class Fill:
    """Hides a key where `node`, broadcast to `rank` dimensions, is nonzero; where it is zero if `inverted`."""

    node: fx.Node
    inverted: bool
    rank: int


@dataclass
class Scores:
    """One attention as the model's code computes it.

    Attributes:
        out: the node that holds its answer.
        operands: queries [..., L, D], keys [..., S, D], values [..., S, Dv].
        order: what permutes [..., L, Dv] to the layout of `out`.
        gates: factors that must be one wherever a key is seen; `after` are fills that zero weights.
    """

    out: fx.Node
    operands: tuple[Operand, Operand, Operand]
    order: tuple[int, ...] | None = None
    scale: float = 1.0
    causal: bool = False
    terms: list[Term] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    gates: list[Term] = field(default_factory=list)
    after: list[Fill] = field(default_factory=list)


class Unread(Exception):
    """The operators do not read as attention; the message says which."""


def name_of(node: fx.Node) -> str:
    """The operator's name without namespace and overload."""
    return str(operator_name(node.target, ""))


def hidden_attentions(graph: fx.Graph, fixed_rows: bool = False) -> list[fx.Node]:
    """Every softmax that weighs a product of whole matrices, and every fused attention; a router's softmax is none.

    Args:
        fixed_rows: whether every input has the same number of rows, which are then no size that is free.
    """

    def hides(node: fx.Node) -> bool:
        along_keys = fixed_rows or _along_keys(node)
        return (node.target in SOFTMAX and along_keys and bool(weighed(node))) or name_of(node) in FUSED

    return [node for node in graph.nodes if hides(node)]


def _along_keys(softmax: fx.Node) -> bool:
    """Whether a softmax can run over keys: along the last dimension, or along one whose size a text brings.

    Along another one it weighs as many things in every text, as a convolution's weights do that each token makes.
    """
    if softmax.target not in SOFTMAX:
        return False
    along: Any = softmax.args[1]
    return along in (-1, rank_of(softmax) - 1) or not isinstance(softmax.meta["val"].shape[along], int)


def weighed(softmax: fx.Node) -> list[fx.Node]:
    """The products that a softmax weighs."""
    todo, seen, found = list(softmax.users), set[fx.Node](), list[fx.Node]()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if name_of(node) in PRODUCTS | {SDPA}:
            found.append(node)
        elif name_of(node) in PASSING:
            todo += node.users
    return found


def read_attention(node: fx.Node, constant: Constant) -> Scores:
    """The attention around a softmax, or in one operator of torch.

    Args:
        constant: the value of a number or of a tensor of one element that no input changes; None for any other.

    Raises:
        Unread: an operator has no place in an attention.
    """
    if name_of(node) == SDPA:
        return _read_sdpa(node)
    if node.target not in SOFTMAX:
        raise Unread(f"{node.name} is {name_of(node)}, whose inside is not seen")
    if node.args[1] not in (-1, rank_of(node) - 1):
        raise Unread(f"{node.name} runs along another dimension than the last")
    last, after = _read_weights(node, constant)
    values = product_of(last)
    if values is None or values.left.order or values.left.node not in (node, *after):
        raise Unread(f"{last.name} is no product of weights and values")
    scores = Scores(last, (values.right,) * 3, values.order, after=_read_after(node, after, constant))
    keys = _read_scores(_node(node.args[0]), scores, constant)
    query, by_query = _unscaled(keys.left, constant)
    key, by_key = _unscaled(keys.right, constant)
    scores.operands = query, replace(key, swapped=True), values.right
    scores.scale *= by_query * by_key
    return scores


def _unscaled(operand: Operand, constant: Constant) -> tuple[Operand, float]:
    """An operand before a constant scales it, and that constant."""
    name, args = name_of(operand.node), operand.node.args
    value = constant(args[1]) if name in ("mul", "div") else None
    if not value or not isinstance(args[0], fx.Node):
        return operand, 1.0
    inner, scale = _unscaled(replace(operand, node=args[0]), constant)
    return inner, scale * value if name == "mul" else scale / value


def _read_sdpa(node: fx.Node) -> Scores:
    """`scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa)`."""
    q, k, v = (Operand(_node(arg)) for arg in node.args[:3])
    mask, causal = (*node.args[3:4], None)[0], bool((*node.args[5:6], False)[0])
    scale: Any = node.kwargs.get("scale")
    scores = Scores(node, (q, k, v), causal=causal)
    scores.scale = float(scale if scale is not None else q.node.meta["val"].shape[-1] ** -0.5)
    if isinstance(mask, fx.Node):
        add_mask(scores, mask)
    return scores


def read_node(node: fx.Node) -> Scores:
    """An attention node whose mask was made past transformers' mask interface."""
    given = arguments(node)
    q, k, v = (Operand(_node(given[name])) for name in "qkv")
    scores = Scores(node, (q, k, v))
    for added in (given["mask"], given["bias"]):
        if isinstance(added, fx.Node):
            add_mask(scores, added)
    return scores


def add_mask(scores: Scores, mask: fx.Node) -> None:
    """What is added to scores, or, of booleans, says which of them are seen."""
    rank = max(rank_of(mask), rank_of(scores.operands[0].node))
    if mask.meta["val"].dtype == torch.bool:
        scores.fills.append(Fill(mask, inverted=True, rank=rank))
    else:
        scores.terms.append(Term(mask, 1.0, rank))


def _read_weights(softmax: fx.Node, constant: Constant) -> tuple[fx.Node, list[fx.Node]]:
    """The product that a softmax weighs, and what stands between the two, the last first."""
    products = weighed(softmax)
    if len(products) != 1:
        raise Unread(f"{softmax.name} weighs {len(products)} products")
    path, node = list[fx.Node](), products[0]
    while True:
        before = next((arg for arg in node.all_input_nodes if _comes_from(arg, softmax)), None)
        if before is None or before is softmax:
            return products[0], path
        path.append(before)
        node = before


def _read_after(softmax: fx.Node, path: list[fx.Node], constant: Constant) -> list[Fill]:
    fills = []
    for step in path:
        if name_of(step) in UNCHANGED:
            continue
        fill = _fill(step, lambda arg: arg is softmax or arg in path, constant, lambda value: value == 0.0)
        if fill is None:
            raise Unread(f"{step.name} changes the weights of {softmax.name}")
        fills.append(fill[1])
    return fills


def _comes_from(node: fx.Node, source: fx.Node) -> bool:
    while node is not source:
        inner = [arg for arg in node.all_input_nodes if name_of(arg) in PASSING or arg is source]
        if name_of(node) not in PASSING or not inner:
            return False
        if len(inner) > 1:
            return any(_comes_from(arg, source) for arg in inner)
        node = inner[0]
    return True


def _read_scores(node: fx.Node, scores: Scores, constant: Constant) -> Product:
    """Walk from the softmax back to the product of queries and keys."""
    while name_of(node) not in PRODUCTS:
        node = _step(node, scores, constant)
    product = product_of(node)
    if product is None or product.order:
        raise Unread(f"{node.name} is no product of queries and keys")
    if name_of(node) == "baddbmm":
        beta, alpha = (float(node.kwargs.get(key, 1)) for key in ("beta", "alpha"))  # type: ignore[arg-type]
        scores.terms += [Term(_node(node.args[0]), scores.scale * beta, 3)] if beta else []
        scores.scale *= alpha
    return product


def _step(node: fx.Node, scores: Scores, constant: Constant) -> fx.Node:
    """Read one operator into the sum, and go on to the operand that holds the product."""
    name, rank = name_of(node), rank_of(node)
    if name in UNCHANGED:
        return _node(node.args[0])
    if (fill := _fill(node, leads, constant, lambda v: v * scores.scale <= HIDDEN)) is not None:
        scores.fills.append(fill[1])
        return fill[0]
    if name not in ARITHMETIC or len(node.args) < 2:
        raise Unread(f"{node.name} ({name or node.op}) stands between the product and the softmax")
    first, second = node.args[:2]
    turned = not leads(first)
    product, other = (second, first) if turned else (first, second)
    if not leads(product) or (turned and name in ("sub", "div")):
        raise Unread(f"{node.name} ({name}) does not come from a product")
    value = constant(other)
    if name in ("maximum", "max"):
        # A lower bound at the lowest number keeps sums of masks finite; no seen score is near it.
        if value is None or value * scores.scale > HIDDEN:
            raise Unread(f"{node.name} bounds the scores from below")
    elif name == "div":
        if not value:
            raise Unread(f"{node.name} divides the scores by what is no constant")
        scores.scale /= value
    elif name == "mul" and value is not None:
        scores.scale *= value
    elif name == "mul":
        scores.gates.append(Term(_node(other), 1.0, rank))
    elif value != 0.0:
        factor = scores.scale * float(node.kwargs.get("alpha", 1)) * (-1 if name == "sub" else 1)  # type: ignore[arg-type]
        scores.terms += [] if value is not None else [Term(_node(other), factor, rank)]
    return _node(product)


def leads(value: Any, depth: int = 12) -> bool:
    """Whether scores come to this node from a product."""
    if not isinstance(value, fx.Node) or depth == 0:
        return False
    name = name_of(value)
    if name in PRODUCTS:
        return True
    if name in UNCHANGED | {"masked_fill"}:
        return leads(value.args[0], depth - 1)
    if name in ARITHMETIC:
        return any(leads(arg, depth - 1) for arg in value.args[:2])
    return name == "where" and any(leads(arg, depth - 1) for arg in value.args[1:3])


def split_term(term: Term, constant: Constant) -> tuple[list[Term], list[Fill]]:
    """A term as a sum of simpler ones and the fills in it, where its operators show them."""
    name, node = name_of(term.node), term.node
    fill = _fill(node, lambda arg: constant(arg) is None, constant, lambda v: v * term.factor <= HIDDEN, term.rank)
    if fill is not None:
        terms, fills = split_term(Term(fill[0], term.factor, term.rank), constant)
        return terms, [fill[1], *fills]
    if name == "where" and all(constant(arg) is not None for arg in node.args[1:3]):
        shown, other = (float(constant(arg) or 0) * term.factor for arg in node.args[1:3])
        if {shown == 0, other == 0} == {True, False} and min(shown, other) <= HIDDEN:
            return [], [Fill(_node(node.args[0]), shown == 0, term.rank)]
    if name == "add" and all(isinstance(arg, fx.Node) for arg in node.args[:2]) and not node.kwargs:
        parts = [split_term(Term(_node(arg), term.factor, term.rank), constant) for arg in node.args[:2]]
        return [t for terms, _ in parts for t in terms], [f for _, fills in parts for f in fills]
    return [term], _beneath(term, constant)


def _beneath(term: Term, constant: Constant) -> list[Fill]:
    """What a term hides from every head alike before its heads are repeated: it stays whole, and hides it again."""
    node = term.node
    while (name_of(node) in UNCHANGED or _whole(node)) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    if node is term.node or rank_of(node) != 4:
        return []
    _, fills = split_term(Term(node, term.factor, 4), constant)
    return [fill for fill in fills if rank_of(fill.node) == 4 and fill.node.meta["val"].shape[1] == 1]


def _whole(node: fx.Node) -> bool:
    """Whether it is a slice that leaves nothing out."""
    source: Any = node.args[0] if node.args else None
    same_sizes = isinstance(source, fx.Node) and str(source.meta["val"].shape) == str(node.meta["val"].shape)
    return name_of(node) == "slice" and same_sizes


def _fill(
    node: fx.Node,
    kept: Callable[[Any], bool],
    constant: Constant,
    hides: Callable[[float], bool],
    rank: int | None = None,
) -> tuple[fx.Node, Fill] | None:
    """A `masked_fill` or `where` that puts a constant in place of some elements, and the operand that it keeps."""
    name, rank = name_of(node), rank or rank_of(node)
    if name == "masked_fill":
        value, inverted, source, condition = constant(node.args[2]), False, node.args[0], node.args[1]
    elif name == "where" and kept(node.args[1]):
        value, inverted, source, condition = constant(node.args[2]), True, node.args[1], node.args[0]
    elif name == "where" and kept(node.args[2]):
        value, inverted, source, condition = constant(node.args[1]), False, node.args[2], node.args[0]
    else:
        return None
    if value is None or not hides(value) or not kept(source):
        return None
    return _node(source), Fill(_node(condition), inverted, rank)


def rank_of(node: fx.Node) -> int:
    """How many dimensions a node's value has."""
    value: Tensor = node.meta["val"]
    return value.dim()


def _node(value: Any) -> fx.Node:
    if not isinstance(value, fx.Node):
        raise Unread(f"{value} stands where a tensor should")
    return value
