"""Positions and limits: where a token's position comes from, its offset, and the longest usable length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from headrace import graphs
from headrace.compat.torch import operator_name
from headrace.errors import TraceError, non_finite
from headrace.frontend.eager.model import EagerModel
from headrace.frontend.eager.signature import DECODED, hidden_rows, positions
from headrace.ir import Limits, Positions, PositionSource

# Tokens of one text.
ALONE = 5
GRAPH_LENGTHS = (4, 7)
# Views and casts between an index and the table that it looks up.
PLAIN = ("view", "expand", "clone", "_to_copy", "to", "unsqueeze", "squeeze", "slice", "select", "alias", "reshape")


def with_defaults(model: EagerModel) -> EagerModel:
    """The model given what it takes by itself: the first token's position, and types of zero where they change nothing.

    Of most models one run without types and with positions from 0 says both; of others each is found on its own.

    Raises:
        TraceError: no small offset gives what the model gives by itself.
    """
    if {"token_type_ids", "position_ids"} <= set(model.signature.inputs):
        alone, placed = _answer(model.run(model.plain)), replace(model, offset=0).placed
        if torch.isfinite(alone).all() and torch.equal(alone, _answer(model.without("token_type_ids").run(placed))):
            return replace(model, offset=0)
    return with_offset(without_added_types(model))


def with_offset(model: EagerModel) -> EagerModel:
    """The model with its first token's position, found by behaviour: positions that change nothing, bit for bit.

    The RoBERTa family starts past its padding id; others at 0. Nothing here knows their names. Each offset is a run of
    its own, held against the first run of all, where the model made its positions itself.

    Raises:
        TraceError: no small offset gives what the model gives by itself.
    """
    if "position_ids" not in model.signature.inputs:
        return model
    pad = getattr(model.config, "pad_token_id", None)
    offsets = dict.fromkeys((0, *([pad + 1] if isinstance(pad, int) and pad >= 0 else []), 1, 2))
    for inputs in _texts(model):
        alone = _answer(model.run(inputs))
        if not torch.isfinite(alone).all():
            raise non_finite("The model's own forward on plain tokens", str(alone.dtype).removeprefix("torch."))
        for offset in offsets:
            placed = inputs | {"position_ids": positions(*_shape(inputs), offset)}
            with suppress(IndexError):
                if torch.equal(alone, _answer(model.run(placed))):
                    return replace(model, offset=offset)
    raise TraceError(
        "The model takes position_ids, but no offset of 0, 1, 2 or past the padding id gives what it gives by itself."
    )


def without_added_types(model: EagerModel) -> EagerModel:
    """Leave token types out where zeros are not what the model takes by itself: GPT-2 adds a row for them."""
    if "token_type_ids" not in model.signature.inputs:
        return model
    kept = model.without("token_type_ids")
    same = any(torch.equal(_answer(model.run(x)), _answer(kept.run(x))) for x in _texts(model))
    return model if same else kept


def _texts(model: EagerModel) -> Iterator[dict[str, Tensor]]:
    """The batch that is looked at first and, where that shows no bit for bit likeness, one text.

    What a model makes by itself has one row for all texts, and a product of one row may round otherwise than of two.
    """
    yield model.plain
    yield model.sample(1, ALONE)


def _shape(inputs: dict[str, Tensor]) -> tuple[int, int]:
    batch, length = inputs["input_ids"].shape
    return batch, length


def _answer(output: Any) -> Tensor:
    logits = getattr(output, "logits", None)
    return logits if logits is not None else hidden_rows(output)


def read_positions(exported: ExportedProgram, offset: int, token: int) -> Positions:
    """Whether positions are an input, and how many rows the table that they index has; `token` is any plain one."""
    nodes = {node.name: node for node in exported.graph.nodes}
    if (given := nodes.get("position_ids")) is None or not given.users:
        return Positions(PositionSource.GRAPH, 0, _graph_table(exported, token))
    # An index with what the graph adds to the position on the way (OPT starts its table at 2).
    reached, rows = [(given, 0)], []
    while reached:
        index, added = reached.pop()
        for user in index.users:
            name = operator_name(user.target, "")
            if user.target is torch.ops.aten.embedding.default and user.args[1] is index:
                rows.append(int(user.args[0].meta["val"].shape[0]) - added)
            elif name == "add" and isinstance(user.args[1], int):
                reached.append((user, added + user.args[1]))
            elif name in PLAIN:
                reached.append((user, added))
    return Positions(PositionSource.INPUT, offset, min(rows, default=None))


def _graph_table(exported: ExportedProgram, token: int, along: str = "input_ids") -> int | None:
    """The table of a model that makes its own positions: on one repeated token, its indices alone grow with the text.

    Rows below the first index (RoBERTa, OPT) are for no position.

    Args:
        along: the input whose length grows; what the other half of an encoder-decoder reads stays one token long.
    """
    # One index a token: a pair of positions (T5's relative bias) looks up a distance.
    lookups = [node for node in exported.graph.nodes if (index := _index(node)) is not None and _repeats(index) < 2]
    short, long = (_highest(exported, lookups, token, length, along) for length in GRAPH_LENGTHS)
    grown = GRAPH_LENGTHS[1] - GRAPH_LENGTHS[0]
    return min(
        (
            int(node.args[0].meta["val"].shape[0]) - (high - GRAPH_LENGTHS[0] + 1)
            for node, high, higher in zip(lookups, short, long, strict=True)
            if higher == high + grown
        ),
        default=None,
    )


def _index(node: torch.fx.Node) -> torch.fx.Node | None:
    """What a lookup in a table reads the rows by; None where the node is none."""
    if node.target is torch.ops.aten.embedding.default:
        return node.args[1]  # type: ignore[return-value]
    indices: Any = node.args[1] if node.target is torch.ops.aten.index.Tensor else ()
    table: Any = node.args[0] if indices else None
    # Rows of a weight, taken by one index each.
    alone = len(indices) == 1 and table.op == "placeholder" and table.meta["val"].dim() == 2
    return indices[0] if alone and indices[0].meta["val"].dtype == torch.int64 else None


def _repeats(index: torch.fx.Node) -> int:
    """How often one symbolic size stands in the index's shape: 1 where there is one index a token."""
    sizes = [str(size) for size in index.meta["val"].shape if isinstance(size, torch.SymInt)]
    return max((sizes.count(size) for size in sizes), default=0)


def read_table(exported: ExportedProgram, name: str) -> int | None:
    """The rows of the table that an input indexes directly, None without one."""
    given = next((node for node in exported.graph.nodes if node.name == name), None)
    users = given.users if given is not None else ()
    return next(
        (int(u.args[0].meta["val"].shape[0]) for u in users if u.target is torch.ops.aten.embedding.default), None
    )


def _highest(exported: ExportedProgram, lookups: list[torch.fx.Node], token: int, length: int, along: str) -> list[int]:
    """The highest index of each lookup on a text, or a target, of that length."""
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    filling = {"input_ids": token, "decoder_input_ids": token, "attention_mask": 1, "decoder_attention_mask": 1}
    given = {
        name: torch.ones([1, *(int(size) for size in nodes[name].meta["val"].shape[1:])])
        if nodes[name].meta["val"].is_floating_point()
        else torch.full((1, length if (name in DECODED) is (along in DECODED) else 1), filling.get(name, 0))
        for name in graphs.inputs_of(exported)
    }
    indices = [str(_index(node)) for node in lookups]
    seen = graphs.run(exported, given, indices)[1]
    return [int(seen[name].max()) for name in indices]


def find_target_limits(exported: ExportedProgram, config: Any) -> Limits:
    """The longest target that the decoder can take."""
    given = [node.meta["val"] for node in exported.graph.nodes if node.name in graphs.inputs_of(exported)]
    # Of arrays of any length nothing says here how many make a row.
    unsized = any(isinstance(size, torch.SymInt) for one in given if one.is_floating_point() for size in one.shape[1:])
    table = None if unsized else _graph_table(exported, token=0, along="decoder_input_ids")
    return _table_limits(Positions(PositionSource.GRAPH, table=table), config)


def find_limits(positions: Positions, config: Any, bound: int | None) -> Limits:
    """The longest usable length: the table's rows past the offset, else what the config says it was trained to.

    Args:
        bound: the longest sequence that the graph was traced for, None without one.
    """
    limits = _table_limits(positions, config)
    if bound is None or (limits.length is not None and limits.length <= bound):
        return limits
    return Limits(bound, "longer texts go another way through the model's own code")


def _table_limits(positions: Positions, config: Any) -> Limits:
    if positions.table is not None:
        usable = positions.table - positions.offset
        start = f", the first {positions.offset} of which are reserved" if positions.offset else ""
        return Limits(usable, f"a position table of {positions.table} rows{start}")
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None)
    if isinstance(longest, int) and longest > 0:
        return Limits(longest, "max_position_embeddings of the config")
    return Limits(None, "nothing in the model bounds the length")
