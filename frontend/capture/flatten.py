"""An exported graph in functional operators alone, as the passes read it.

`run_decompositions` makes any graph so, by tracing it anew, which takes as long as the trace before it. Most graphs of
models hold nothing but a few operators that it would spell otherwise, and those are respelt here one by one; so is a
write into a tensor that nobody looks at afterwards but by what the write returned.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from headrace import graphs
from headrace.compat.torch import (
    OpOverload,
    aliases,
    enable_python_dispatcher,
    functional_of,
    is_composite,
    is_kept_whole,
    operator_name,
    pytree,
    writes,
)

aten = torch.ops.aten
# Of sizes, and what takes one of several results.
PLAIN = frozenset(
    {
        operator.add, operator.sub, operator.mul, operator.floordiv, operator.neg, operator.mod, operator.pow,
        operator.eq, operator.ne, operator.le, operator.lt, operator.ge, operator.gt, operator.getitem,
        torch.sym_max, torch.sym_min, torch.sym_not,
    }
)  # fmt: skip
ROWS_FIRST = torch.contiguous_format
# Of a tensor that nobody else holds.
COPIED_VIEW = aten._unsafe_view.default
CASTS = frozenset({aten.to.dtype, aten.to.device, aten.to.dtype_layout})


@dataclass(frozen=True)
class Spelling:
    """What takes a node's place: an operator on its first argument and `rest`; without one, that argument itself.

    `rest` is None for the node's own other arguments. The first argument is `copied` before, rows first.
    """

    target: Any
    rest: tuple[int, ...] | None = ()
    named: dict[str, Any] = field(default_factory=dict)
    copied: bool = False


def flatten(exported: ExportedProgram) -> ExportedProgram:
    """The program with a functional graph."""
    nodes = [node for node in exported.graph.nodes if node.op not in ("placeholder", "output")]
    spelt = {node.name: spelling for node in nodes if (spelling := _spelling(node)) is not None}
    if any(node.name not in spelt and not _stays(node) for node in nodes):
        flat: ExportedProgram = exported.run_decompositions({})
        return flat

    def edit(graph: fx.Graph) -> None:
        for node in [node for node in graph.nodes if node.name in spelt]:
            _respell(graph, node, spelt[node.name])

    return graphs.rewrite(exported, edit, functional=True)


def _respell(graph: fx.Graph, node: fx.Node, spelling: Spelling) -> None:
    made: Any = node.args[0]
    if spelling.target is not None:
        rest = node.args[1:] if spelling.rest is None else spelling.rest
        with graph.inserting_before(node):
            if spelling.copied:
                made = graphs.call(graph, aten.clone.default, (made,), node, {"memory_format": ROWS_FIRST})
            made = graph.create_node(
                "call_function", spelling.target, (made, *rest), spelling.named, name=operator_name(spelling.target)
            )
        made.meta = dict(node.meta)
    graphs.replace(node, made)  # a dropout would count as one with an effect


def _stays(node: fx.Node) -> bool:
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return node.op == "call_function" and target in PLAIN
    if target is aten.sym_size.int:
        return True
    return not writes(target) and (not is_composite(target) or is_kept_whole(target))


def _spelling(node: fx.Node) -> Spelling | None:
    """What takes the node's place, None where nothing here says."""
    target, args = node.target, node.args
    if target in CASTS:
        return _cast(node)
    if target is aten.dropout.default and args[2] is False:
        return Spelling(aten.clone.default)
    if target is aten.chunk.default:
        return _parts(node)
    if target is aten.contiguous.default and len(args) == 1 and not node.kwargs:
        given: Any = args[0]
        alike = given.meta["val"].is_contiguous()
        return Spelling(None) if alike else Spelling(aten.clone.default, named={"memory_format": ROWS_FIRST})
    if target is aten.reshape.default:
        return Spelling(aten.view.default, rest=None) if _views(node) else _copied_view(node)
    if isinstance(target, OpOverload) and writes(target) and _is_last_look(node):
        return _returned(node, functional_of(target))
    return None


def _copied_view(node: fx.Node) -> Spelling | None:
    """Rows laid out anew, where all sizes are given: the one that is left out torch spells as a product of sizes."""
    sizes: Any = node.args[1]
    return None if -1 in sizes or node.kwargs else Spelling(COPIED_VIEW, rest=None, copied=True)


def _is_last_look(write: fx.Node) -> bool:
    """Whether what a node writes into is an operator's own result, which nobody reads afterwards or keeps a view of."""
    held: Any = write.args[0]
    if not isinstance(held, fx.Node) or not _is_new(held):
        return False
    seen = False
    for node in write.graph.nodes:
        seen |= node is write
        if node is not write and node in held.users and (seen or not _is_plain(node.target)):
            return False
    return True


def _is_new(node: fx.Node) -> bool:
    """Whether a node's value is memory of its own: a result, one of several, or what was written into such a one."""
    maker: Any = node.args[0] if node.target is operator.getitem else node
    if isinstance(maker.target, OpOverload) and writes(maker.target):
        return _spelling(maker) is not None
    return isinstance(maker.target, OpOverload) and _is_plain(maker.target)


def _is_plain(target: Any) -> bool:
    """Whether an operator returns memory of its own, whatever it is given. Of what is made of others, none says."""
    if target in PLAIN or target is aten.sym_size.int:
        return True
    known = isinstance(target, OpOverload) and not writes(target) and not is_composite(target)
    return known and not aliases(target)


def _returned(node: fx.Node, target: OpOverload | None) -> Spelling | None:
    """What returns the values that a node writes, where they look the same; None where there is none."""
    if target is None or any("val" not in one.meta for one in node.all_input_nodes):
        return None
    if target is aten.index_put.default and any(one.meta["val"].dtype is torch.bool for one in node.all_input_nodes):
        return None  # places that are counted first, by a size that no graph has
    args, kwargs = pytree.tree_map_only(fx.Node, lambda arg: arg.meta["val"], (node.args, node.kwargs))
    wanted = node.meta["val"]
    with wanted.fake_mode, enable_python_dispatcher(), torch.no_grad():
        made = target(*args, **kwargs)
    alike = made.dtype == wanted.dtype and made.stride() == wanted.stride() and made.shape == wanted.shape
    return Spelling(target, rest=None, named=dict(node.kwargs)) if alike else None


def _cast(node: fx.Node) -> Spelling | None:
    source: Any = node.args[0]
    before, after = source.meta["val"], node.meta["val"]
    if {"copy", "memory_format"} & set(node.kwargs):
        return None
    if node.target is aten.to.dtype and len(node.args) == 2:
        named = {"dtype": node.args[1]}
    elif node.target is aten.to.device and len(node.args) == 3:
        named = {"dtype": node.args[2], "device": node.args[1]}
    elif len(node.args) > 2:
        return None
    else:
        named = {}
    if (before.dtype, before.device, before.layout) == (after.dtype, after.device, after.layout):
        return Spelling(None)
    return Spelling(aten._to_copy.default, named=named) if named else None


def _parts(node: fx.Node) -> Spelling | None:
    """Equal parts by their size, which must be known."""
    source: Any = node.args[0]
    count: Any
    axis: Any
    count, axis = (*node.args[1:], 0)[:2]
    size = source.meta["val"].shape[axis]
    known = isinstance(size, int) and isinstance(count, int)
    return Spelling(aten.split.Tensor, (-(-size // count), axis)) if known and not node.kwargs else None


def _views(node: fx.Node) -> bool:
    """Whether the new shape is another look at the same memory."""
    source, sizes = pytree.tree_map_only(fx.Node, lambda arg: arg.meta["val"], node.args)
    if source.is_contiguous():
        return True
    try:
        with source.fake_mode, enable_python_dispatcher(), torch.no_grad():
            aten.view.default(source, sizes)
    except Exception:  # the strides do not say, or forbid it
        return False
    return True
