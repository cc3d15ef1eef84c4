"""Find rotary position encodings in a packed graph, and the RMS norm of each head before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from headrace import graphs
from headrace.backends.kernels.norms import is_call, rms_norm
from headrace.backends.kernels.rotary import into_cache, op  # noqa: F401 - registers the operators
from headrace.graphs.views import arguments
from headrace.ops.cached import ATTENTION_PAGED

aten = torch.ops.aten
ADD, MUL, CAT, NEG, SLICE = aten.add.Tensor, aten.mul.Tensor, aten.cat.default, aten.neg.default, aten.slice.Tensor
COPY, TURN, UNSQUEEZE = aten._to_copy.default, aten.transpose.int, aten.unsqueeze.default
SELECT = aten.select.int
ROTATE, ROTATE_INTO = torch.ops.headrace.rotate.default, torch.ops.headrace.rotate_into_cache.default
# From `headrace.rotate` to what an attention over caches takes: a row to a batch of one and back.
BACK = ((TURN, (0, 1)), (SELECT, (0, 0)), (TURN, (1, 2)), (UNSQUEEZE, (0,)))
Node = Any  # an fx.Node: what its arguments are is asked for at every step


@dataclass(frozen=True)
class FuseRotary:
    """Each encoding of `[1, H, T, D]` that is a transposed `[1, T, H, D]` is one operator, its norm with it."""

    name: str = "fuse-rotary"

    def __call__(self, graph: fx.Graph) -> None:
        """Put one in the place of each."""
        for node in list(graph.nodes):
            if node.target is ADD and (found := _rotation(node)) is not None:
                source, weight, eps, cos, sin = found
                last = _only_user(node, COPY) or node
                if last.meta["val"].dtype == source.meta["val"].dtype and source.meta["val"].stride(-1) == 1:
                    _replace(graph, last, source, cos, sin, weight, eps)
        graph.eliminate_dead_code()


def _replace(graph: fx.Graph, last: Node, x: Node, cos: Node, sin: Node, weight: Any, eps: float) -> None:
    with graph.inserting_before(last):
        rows, waves, others = (graphs.call(graph, SELECT, (node, 0, 0)) for node in (x, cos, sin))
        turned = graphs.call(graph, ROTATE, (rows, waves, others, weight, eps))
        out = graphs.call(graph, TURN, (graphs.call(graph, UNSQUEEZE, (turned, 0)), 1, 2))
    last.replace_all_uses_with(out)


@dataclass(frozen=True)
class RotateIntoCache:
    """Where an attention over caches rotates its queries and keys, that and the writing of its cache are one operator.

    Its keys and values are in the cache then, and it is given none.
    """

    name: str = "rotate-into-cache"

    def __call__(self, graph: fx.Graph) -> None:
        """Put one in the place of each pair of rotations."""
        for node in graph.nodes:
            if node.target is ATTENTION_PAGED:
                _into_cache(graph, node)
        graph.eliminate_dead_code()


def _into_cache(graph: fx.Graph, attention: Node) -> None:
    given = arguments(attention)
    if given["k"] is None or given["v"] is None:
        return
    q, k = _rotated(given["q"]), _rotated(given["k"])
    if q is None or k is None or [wave.args for wave in q.args[1:3]] != [wave.args for wave in k.args[1:3]]:
        return
    (queries, cos, sin, *q_norm), (keys, _, _, *k_norm) = q.args, k.args
    with graph.inserting_before(attention):
        rest = given["v"], cos, sin, *q_norm, *k_norm, given["k_cache"], given["v_cache"], given["slots"]
        scales = given.get("k_scale"), given.get("v_scale")
        made = graphs.call(graph, ROTATE_INTO, (queries, keys, *rest, *scales))
    attention.args = (made, None, None, *attention.args[3:])


def _rotated(node: Node) -> Node | None:
    """The rotation that makes it and that nothing else reads."""
    for target, args in BACK:
        if not (is_call(node, target) and tuple(node.args[1:]) == args and len(node.users) == 1):
            return None
        node = node.args[0]
    return node if is_call(node, ROTATE) and len(node.users) == 1 else None


def _rotation(node: Node) -> tuple[Node, Node | None, float, Node, Node] | None:
    """`(x [1, T, H, D], weight, eps, cos [1, T, D], sin)` of `n * cos + cat(-n[half:], n[:half]) * sin`.

    `n` [1, H, T, D] is `x` transposed and normed, in either order; without a norm the weight is None.
    """
    plain, turned = node.args[0], node.args[1]
    if not (is_call(plain, MUL) and is_call(turned, MUL) and is_call(turned.args[0], CAT)):
        return None
    n, cat = _uncast(plain.args[0]), turned.args[0]
    cos, sin = (_spread(mul.args[1]) for mul in (plain, turned))
    parts = cat.args[0]
    if cos is None or sin is None or len(parts) != 2:
        return None
    width = n.meta["val"].shape[-1]
    if not (is_call(parts[0], NEG) and is_call(parts[0].args[0], SLICE) and is_call(parts[1], SLICE)):
        return None
    late, early = parts[0].args[0], parts[1]
    halves = early.args[1:4] == (3, 0, width // 2) and late.args[1:3] == (3, width // 2) and late.args[3] >= width
    same = _uncast(late.args[0]) is n and _uncast(early.args[0]) is n
    whole = all(wave.meta["val"].shape[-1] == width and wave.meta["val"].dim() == 3 for wave in (cos, sin))
    normed = _normed(n) if halves and same and whole and width % 2 == 0 else None
    return None if normed is None else (*normed, cos, sin)


def _normed(n: Node) -> tuple[Node, Node | None, float] | None:
    """`(x, weight, eps)` of what is transposed, and normed before or after it."""
    if _turns(n):
        found = rms_norm(n.args[0])
        return (n.args[0], None, 0.0) if found is None else (found.z, found.scale, found.eps)
    found = rms_norm(n)
    return (found.z.args[0], found.scale, found.eps) if found is not None and _turns(found.z) else None


def _turns(node: Node) -> bool:
    return is_call(node, TURN) and tuple(node.args[1:]) == (1, 2)


def _uncast(node: Any) -> Any:
    """What a cast casts."""
    return node.args[0] if is_call(node, COPY) else node


def _spread(node: Any) -> Any:
    """The `[1, T, D]` that is spread over the heads, or None."""
    return node.args[0] if is_call(node, UNSQUEEZE) and node.args[1] == 1 else None


def _only_user(node: Node, target: Any) -> Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is target else None
