"""The graph passes that put our kernels into a packed graph, in order. Read this first."""

from __future__ import annotations

from torch import fx
from torch.export import ExportedProgram

from headrace import graphs
from headrace.backends.kernels.linear_activation.match import FuseLinearActivation
from headrace.backends.kernels.linear_few.launch_rows import LaunchRows
from headrace.backends.kernels.linear_few.match import UseLinearAny
from headrace.backends.kernels.linear_few.rows import FAMILIES
from headrace.backends.kernels.rotary.match import FuseRotary, RotateIntoCache
from headrace.backends.kernels.use_kernels import UseKernels
from headrace.graphs.passes import GraphPass, run_graph_passes
from headrace.ir import Layout, Program, Role


def kernel_passes(family: str, ids: str, steps: bool = False) -> tuple[GraphPass, ...]:
    """Every node is an operator still, so that a program holds the graph.

    Args:
        family: the architecture whose tunings they take, as `tuning.family` names it.
        ids: the name of the graph's input of token ids.
        steps: whether it may be run on a few tokens, as a cached program is.
    """
    own: tuple[GraphPass, ...] = (RotateIntoCache(), UseLinearAny()) if steps else ()
    return (FuseRotary(), FuseLinearActivation(family), *own, UseKernels(family, ids))


def with_kernels(program: Program, family: str) -> ExportedProgram:
    """A copy of a packed or cached program's graph with our kernels for its operators."""
    passes = kernel_passes(family, str(program.signature.name(Role.IDS)), program.form.layout is Layout.CACHED)
    return graphs.rewrite(program.graph, lambda graph: run_graph_passes(graph, passes))


def short_rows(program: Program, family: str) -> fx.GraphModule | None:
    """A program's graph as launches alone, for rows of few tokens; None where they were not measured."""
    if program.form.quantized is not None or family not in FAMILIES:
        return None
    module = graphs.flat_module(with_kernels(program, family))
    run_graph_passes(module.graph, (LaunchRows(),))
    return module
