"""Specs of the nodes that carry state along the sequence without attention (contract B4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from headrace.errors import TraceError
from headrace.graphs.provenance import provenance
from headrace.graphs.views import arguments
from headrace.ir import Program, RecurrentSpec
from headrace.ops.lstm import LSTM
from headrace.ops.stateful import RECURRENCES

CONVOLUTIONS = frozenset({torch.ops.aten.conv1d.default, torch.ops.aten.convolution.default})


def recurrent_specs(program: Program) -> tuple[RecurrentSpec, ...]:
    """One spec a recurrent operator, an LSTM and a plain convolution over tokens, in call order.

    Raises:
        TraceError: the eager model called another number of recurrent functions than the graph has operators.
    """
    nodes = list(program.graph.graph.nodes)
    if (count := sum(node.target in RECURRENCES for node in nodes)) != program.evidence.recurrent_calls:
        raise TraceError(
            f"The eager model called {program.evidence.recurrent_calls} recurrent functions, but the graph has {count} "
            "recurrent nodes: the trace took another path than the model does."
        )
    given = [node for node in nodes if node.name in program.graph.graph_signature.user_inputs]
    sequence = given[0].meta["val"].shape[1]
    found = [node for node in nodes if node.target in RECURRENCES or node.target is LSTM or _convolves(node, sequence)]
    return tuple(_spec(node, order) for order, node in enumerate(found))


def _convolves(node: fx.Node, sequence: Any) -> bool:
    """Whether a node is a convolution that runs along the tokens."""
    if node.target not in CONVOLUTIONS or not isinstance(sequence, torch.SymInt):
        return False  # a frozen sequence is the verifier's to refuse
    return any(
        isinstance(size, torch.SymInt) and sequence.node.expr.free_symbols & size.node.expr.free_symbols
        for size in node.meta["val"].shape[2:]
    )


def _spec(node: fx.Node, order: int) -> RecurrentSpec:
    if node.target in CONVOLUTIONS:
        # Whether its padding lies before the tokens or around them, later slices decide: the probe measures it.
        return RecurrentSpec(node.name, order, "convolution", provenance=provenance(node))
    if node.target is LSTM:
        directions, _, width = arguments(node)["r"].meta["val"].shape
        sizes = (2, directions * width)  # its hidden state and its memory
        return RecurrentSpec(node.name, order, "lstm", sizes, directions == 1, provenance=provenance(node))
    kind = RECURRENCES[node.target]
    operands = tuple(arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in node.args)
    return RecurrentSpec(node.name, order, kind.name, kind.state_sizes(operands), True, provenance=provenance(node))
