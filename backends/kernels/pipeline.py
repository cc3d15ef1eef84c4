"""The graph passes that put our kernels into a packed graph, in order. Read this first."""

from __future__ import annotations

from torch.export import ExportedProgram

from headrace import graphs
from headrace.backends.kernels.linear_activation.match import FuseLinearActivation
from headrace.backends.kernels.rotary.match import FuseRotary
from headrace.backends.kernels.use_kernels import UseKernels
from headrace.graphs.passes import GraphPass, run_graph_passes


def kernel_passes(family: str) -> tuple[GraphPass, ...]:
    """Every node is an operator still, so that a program holds the graph.

    Args:
        family: the architecture whose tunings they take, as `tuning.family` names it.
    """
    return (FuseRotary(), FuseLinearActivation(family), UseKernels(family))


def with_kernels(exported: ExportedProgram, family: str) -> ExportedProgram:
    """A copy of a packed graph with our kernels for its operators."""
    return graphs.rewrite(exported, lambda graph: run_graph_passes(graph, kernel_passes(family)))
