"""Recurrent operators in place of plain ones that look along the tokens: a padded convolution, a shift by padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from headrace import graphs
from headrace.compat.torch import schema_arguments
from headrace.errors import TraceError
from headrace.ops.recurrent import CAUSAL_CONV1D, TOKEN_SHIFT

CONVOLUTIONS = (torch.ops.aten.conv1d.default, torch.ops.aten.convolution.default)
PADS = (torch.ops.aten.constant_pad_nd.default, torch.ops.aten.pad.default)
# Of [B, L, D]: a row of zeros before the tokens, and the last token cut off.
SHIFTED = [0, 0, 1, -1]


def recover_shifts(graph: fx.Graph) -> None:
    """Put `causal_conv1d` and `token_shift` where a graph's own code looks at the tokens before each.

    Raises:
        TraceError: a convolution over tokens looks at later ones, or is none of a channel at a time.
    """
    for node in list(graph.nodes):
        if node.target in CONVOLUTIONS and _along_tokens(node):
            _put(graph, node, CAUSAL_CONV1D, _convolution(graph, node))
        elif node.target in PADS and list(node.args[1]) == SHIFTED and _grows(node.args[0].meta["val"], 1, 3):
            _put(graph, node, TOKEN_SHIFT, (node.args[0],))


def _put(graph: fx.Graph, old: fx.Node, target: Any, args: tuple[Any, ...]) -> None:
    """What follows a padded convolution cuts it to the sequence's length, and now cuts nothing."""
    with graph.inserting_before(old):
        new = graph.call_function(target, args)
    new.meta["val"] = args[0].meta["val"]
    graphs.replace(old, new)


def _along_tokens(node: fx.Node) -> bool:
    return _grows(node.args[0].meta["val"], 2, 3)  # type: ignore[union-attr]


def _grows(value: Any, dim: int, rank: int) -> bool:
    return isinstance(value, Tensor) and value.dim() == rank and isinstance(value.shape[dim], torch.SymInt)


def _convolution(graph: fx.Graph, node: fx.Node) -> tuple[Any, ...]:
    given = schema_arguments(node.target, node.args, node.kwargs)
    weight = given["weight"].meta["val"]
    channels, each, taps = weight.shape
    plain = all(list(given[name]) == [1] for name in ("stride", "dilation"))
    if each != 1 or given["groups"] != channels or list(given["padding"]) != [taps - 1] or not plain:
        raise TraceError(
            f"{node.name} is a convolution over the tokens of {taps} taps, padded by {list(given['padding'])}, with "
            f"{each} channels an output. Accepted is one a channel that looks back only: padded by {taps - 1}."
        )
    with graph.inserting_before(node):
        flat = graph.call_function(torch.ops.aten.squeeze.dim, (given["weight"], 1))
    flat.meta["val"] = weight[:, 0]
    return given["input"], flat, given["bias"]
