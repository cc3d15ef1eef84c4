"""Specs of the nodes that carry state along the sequence without attention (contract B4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from headrace.errors import TraceError
from headrace.graphs.provenance import provenance
from headrace.ir import Program, RecurrentSpec
from headrace.ops.linear_recurrence import LINEAR_RECURRENCE, MLSTM, WKV
from headrace.ops.recurrent import CAUSAL_CONV1D, CHUNK_SCAN, GATED_DELTA_RULE, SELECTIVE_SCAN

CONVOLUTIONS = frozenset({torch.ops.aten.conv1d.default, torch.ops.aten.convolution.default})


def recurrent_specs(program: Program) -> tuple[RecurrentSpec, ...]:
    """One spec a recurrent operator, and one a plain convolution over tokens, in call order.

    Raises:
        TraceError: the eager model called another number of recurrent functions than the graph has operators.
    """
    nodes = list(program.graph.graph.nodes)
    if (count := sum(node.target in STATES for node in nodes)) != program.evidence.recurrent_calls:
        raise TraceError(
            f"The eager model called {program.evidence.recurrent_calls} recurrent functions, but the graph has {count} "
            "recurrent nodes: the trace took another path than the model does."
        )
    given = [node for node in nodes if node.name in program.graph.graph_signature.user_inputs]
    sequence = given[0].meta["val"].shape[1]
    found = [node for node in nodes if node.target in STATES or _convolves(node, sequence)]
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
    operator = str(node.target).split(".")[1]
    return RecurrentSpec(node.name, order, operator, _state(node), causal=True, provenance=provenance(node))


def _state(node: fx.Node) -> tuple[int, ...]:
    """The sizes of what one sequence leaves behind, by the operator's definition."""
    shapes = [tuple(arg.meta["val"].shape) if isinstance(arg, fx.Node) else () for arg in node.args]
    return STATES[node.target](shapes)


Shapes = list[tuple[int, ...]]
STATES: dict[object, Callable[[Shapes], tuple[int, ...]]] = {
    CAUSAL_CONV1D: lambda given: (given[1][0], given[1][1] - 1),
    SELECTIVE_SCAN: lambda given: given[2],
    CHUNK_SCAN: lambda given: (*given[0][2:], given[3][3]),
    GATED_DELTA_RULE: lambda given: (given[2][2], given[0][3], given[2][3]),
    LINEAR_RECURRENCE: lambda given: given[0][2:],
    WKV: lambda given: (3, given[2][2]),
    MLSTM: lambda given: (given[0][1], given[0][3], given[2][3]),
}
