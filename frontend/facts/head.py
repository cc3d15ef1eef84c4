"""Cut the choice of rows out of a sequence head, so that padded, packed and cached runs can share the head.

A head takes the first row, the last, their mean... of [B, S, W] and goes on with [B, W]. Each node where the
sequence dimension goes is compared, on real runs, with every pooling kind of the IR: the kind that gives its value
at several lengths is what it computes, and a `headrace::pool` node takes its place. What the head looked for in
the text (padding or end-of-text ids) goes with it: the attention mask decides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from headrace import graphs
from headrace.frontend.eager.signature import positions, sample
from headrace.ir import PoolKind
from headrace.ops.attention import POOL, pool_rows

IDS = "input_ids"
LENGTHS = (8, 5)
KINDS = (PoolKind.CLS, PoolKind.LAST, PoolKind.MEAN, PoolKind.MAX)
RELATIVE = 1e-5


def cut_rows(
    exported: ExportedProgram,
    hidden: str,
    vocabulary: int,
    avoid: frozenset[int],
    offset: int,
    marker: int | None = None,
) -> tuple[ExportedProgram, PoolKind | None]:
    """Put a `pool` node wherever the head chooses rows.

    Args:
        hidden: name of the node that holds the hidden rows [B, S, H].
        avoid: ids that the head may look for in the text; the samples hold none.
        offset: position of the first token.
        marker: the token whose rows the head chooses from, if it looks for one; else from all that are real.

    Returns:
        The program and the kind. None, and the program as it was, where a choice of rows is none that the IR knows.
    """
    choices = _choices(exported.graph, hidden)
    if not choices:
        return exported, None
    runs = [_values(exported, choices, vocabulary, avoid, offset, length, marker) for length in LENGTHS]
    kinds = {
        node: _kind([(run[rows.name], run[node.name], _open(run[IDS], marker)) for run in runs])
        for node, rows in choices.items()
    }
    found = next(iter(kinds.values()))
    if found is None or len(set(kinds.values())) > 1:
        return exported, None
    replaced = {node.name: rows.name for node, rows in choices.items()}
    return graphs.rewrite(exported, lambda graph: _replace(graph, replaced, found, marker)), found


def _choices(graph: fx.Graph, hidden: str) -> dict[fx.Node, fx.Node]:
    """Each node where the sequence dimension of the hidden rows goes, and the rows [B, S, W] that it had."""
    start = next(node for node in graph.nodes if node.name == hidden)
    sequence = start.meta["val"].shape[1].node.expr
    rows, choices = {start: start}, dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        source = next((rows[arg] for arg in node.all_input_nodes if arg in rows), None)
        value = node.meta.get("val")
        if node is start or source is None or not isinstance(value, Tensor):
            continue
        if graphs.counts_data(node):
            # A choice by what the text holds, not finished: as many rows as there are ends of text, say.
            rows[node] = source
        elif any(isinstance(size, torch.SymInt) and sequence in size.node.expr.free_symbols for size in value.shape):
            # Row by row so far. A product with the mask belongs to a mean; the rows are what went into it.
            weighted = node.target is torch.ops.aten.mul.Tensor and _is_mask(node, rows)
            rows[node] = source if weighted else node
        else:
            choices[_with_divisor(node)] = source
    return choices


def _is_mask(product: fx.Node, rows: dict[fx.Node, fx.Node]) -> bool:
    return any(isinstance(arg, fx.Node) and arg not in rows and arg.meta["val"].shape[-1] == 1 for arg in product.args)


def _with_divisor(node: fx.Node) -> fx.Node:
    """A masked sum is divided by the count of real rows next: the two are one mean."""
    user = next(iter(node.users), None)
    summed = node.target is torch.ops.aten.sum.dim_IntList and user is not None
    return user if summed and user.target is torch.ops.aten.div.Tensor else node  # type: ignore[return-value, union-attr]


def _values(
    exported: ExportedProgram,
    choices: dict[fx.Node, fx.Node],
    vocabulary: int,
    avoid: frozenset[int],
    offset: int,
    length: int,
    marker: int | None,
) -> dict[str, Any]:
    inputs = sample(2, length, vocabulary, avoid, seed=length, marker=marker)
    inputs["position_ids"] = positions(2, length, offset)
    given = {name: inputs[name] for name in graphs.inputs_of(exported)}
    taps = [IDS, *(node.name for pair in choices.items() for node in pair)]
    return graphs.run(exported, given, taps)[1]


def _open(ids: Tensor, marker: int | None) -> Tensor:
    """The rows [B, S] of an unpadded text that a head chooses from."""
    return torch.ones_like(ids) if marker is None else (ids == marker).long()


def _kind(runs: list[tuple[Tensor, Tensor, Tensor]]) -> PoolKind | None:
    """The pooling kind that maps the rows to the choice in every run."""

    def same(kind: PoolKind, rows: Tensor, choice: Tensor, among: Tensor) -> bool:
        pooled = pool_rows(rows, among, kind)
        flat = choice.reshape(choice.shape[0], -1)
        return pooled.shape == flat.shape and bool((pooled - flat).abs().max() <= RELATIVE * rows.abs().max())

    return next((kind for kind in KINDS if all(same(kind, *run) for run in runs)), None)


def _replace(graph: fx.Graph, replaced: dict[str, str], kind: PoolKind, marker: int | None) -> None:
    named = {node.name: node for node in graph.nodes}
    for choice, rows in replaced.items():
        old = named[choice]
        with graph.inserting_before(old):
            among = named["attention_mask"]
            if marker is not None:
                marked = graphs.call(graph, torch.ops.aten.eq.Scalar, (named[IDS], marker))
                among = graphs.call(graph, torch.ops.aten.mul.Tensor, (among, marked))
            new = graph.call_function(POOL, (named[rows], among, kind.value))
            new.meta = dict(old.meta)
            if old.meta["val"].dim() != 2:
                new = graph.call_function(torch.ops.aten.unsqueeze.default, (new, 1))
                new.meta = dict(old.meta)
        old.replace_all_uses_with(new)
    # What the model asserted of the text so that its own choice works went with the choice.
    graphs.drop_data_assertions(graph)
