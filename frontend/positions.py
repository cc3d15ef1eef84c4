"""Positions and limits: where a token's position comes from, its offset, and the longest usable length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from headrace.errors import TraceError
from headrace.frontend.dryrun import special_ids
from headrace.frontend.served import Signature, call, hidden_rows, positions, sample
from headrace.ir import Limits, Positions, PositionSource

LENGTH = 5
# Views and casts between an index and the table that it looks up.
PLAIN = ("view", "expand", "clone", "_to_copy", "to", "unsqueeze", "squeeze", "slice", "select", "alias", "reshape")


def find_offset(module: nn.Module, config: Any, signature: Signature, vocabulary: int) -> int:
    """The first token's position, found by behaviour: explicit positions that change nothing, bit for bit.

    The RoBERTa family starts past its padding id; others at 0. Nothing here knows their names.

    Raises:
        TraceError: no small offset gives what the model gives by itself.
    """
    inputs = sample(1, LENGTH, vocabulary, special_ids(config))
    with torch.no_grad():
        alone = _answer(call(module, signature, inputs))
        pad = getattr(config, "pad_token_id", None)
        for offset in dict.fromkeys((0, *([pad + 1] if isinstance(pad, int) and pad >= 0 else []), 1, 2)):
            try:
                given = call(module, signature, inputs | {"position_ids": positions(1, LENGTH, offset)})
            except IndexError:
                continue
            if torch.equal(alone, _answer(given)):
                return offset
    raise TraceError("The model takes position_ids, but no offset of 0, 1, 2 or past the padding id reproduces its own.")


def _answer(output: Any) -> Tensor:
    logits = getattr(output, "logits", None)
    return logits if logits is not None else hidden_rows(output)


def read_positions(exported: ExportedProgram, offset: int) -> Positions:
    """Whether positions are an input, and how many rows the table that they index has."""
    nodes = {node.name: node for node in exported.graph.nodes}
    if (given := nodes.get("position_ids")) is None:
        return Positions(PositionSource.GRAPH, 0, _graph_table(exported))
    # An index with what the graph adds to the position on the way (OPT starts its table at 2).
    reached, rows = [(given, 0)], []
    while reached:
        index, added = reached.pop()
        for user in index.users:
            name = getattr(user.target, "_opname", "")
            if user.target is torch.ops.aten.embedding.default and user.args[1] is index:
                rows.append(int(user.args[0].meta["val"].shape[0]) - added)
            elif name == "add" and isinstance(user.args[1], int):
                reached.append((user, added + user.args[1]))
            elif name in PLAIN:
                reached.append((user, added))
    return Positions(PositionSource.INPUT, offset, min(rows, default=None))


def _graph_table(exported: ExportedProgram) -> int | None:
    """The table of a model that makes its own positions: looked up by indices that no input's values decide."""
    decided, tables = set[torch.fx.Node](), []
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            decided |= {node} if node.name in exported.graph_signature.user_inputs else set()
        elif node.target is not torch.ops.aten.sym_size.int:
            decided |= {node} if any(arg in decided for arg in node.all_input_nodes) else set()
        if node.target is torch.ops.aten.embedding.default and node.args[1] not in decided:
            tables.append(int(node.args[0].meta["val"].shape[0]))
    return min(tables, default=None)


def find_limits(positions: Positions, config: Any) -> Limits:
    """The longest usable length: the table's rows past the offset, else what the config says it was trained to."""
    if positions.table is not None:
        usable = positions.table - positions.offset
        start = f", the first {positions.offset} of which are reserved" if positions.offset else ""
        return Limits(usable, f"a position table of {positions.table} rows{start}")
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None)
    if isinstance(longest, int) and longest > 0:
        return Limits(longest, "max_position_embeddings of the config")
    return Limits(None, "nothing in the model bounds the length")
