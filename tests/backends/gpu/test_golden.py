"""What the GPU's graph passes make of tiny packed programs: a node that comes or goes is a difference of text."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
from torch import fx

from headrace import graphs
from headrace.backends.gpu.pipeline import compiler_passes
from headrace.graphs.passes import run_graph_passes
from headrace.ir import Layout, Role, Task
from headrace.lowering.optimise.quantize import QuantizeLinear
from headrace.lowering.pipeline import prepare

pytest.importorskip("triton", reason="the kernels' operators need Triton")


def counted(graph: fx.Graph) -> Counter[str]:
    """How often each operator or function is called."""
    names = (getattr(n.target, "__name__", str(n.target)) for n in graph.nodes if n.op == "call_function")
    return Counter(name.removesuffix(".default") for name in names)


def told(name: str, before: Counter[str], after: Counter[str]) -> str:
    """What a pass took away and put there."""
    gone, came = before - after, after - before
    lines = [f"  - {count} x {one}" for one, count in sorted(gone.items())]
    lines += [f"  + {count} x {one}" for one, count in sorted(came.items())]
    return "\n".join([f"after {name}", *(lines or ["  nothing changes"])])


@pytest.mark.parametrize("family", ["sm90", "gfx942"])
@pytest.mark.parametrize(("name", "bits"), [("modernbert", 16), ("qwen3", 16), ("bert", 8)])
def test_passes(name: str, bits: int, family: str, analysed: Any, golden: Any) -> None:
    from headrace.backends.kernels.pipeline import kernel_passes

    program = prepare(analysed(name), Task.EMBED, Layout.PACKED)
    if bits == 8:
        program = QuantizeLinear(least=32)(program)
    exported, parts = program.graph, []
    for step in kernel_passes(family, str(program.signature.name(Role.IDS))):
        before = counted(exported.graph)
        exported = graphs.rewrite(exported, partial(run_graph_passes, passes=(step,)))
        parts.append(told(step.name, before, counted(exported.graph)))
    graph = graphs.flat_module(exported).graph
    for graph_pass in compiler_passes():
        before = counted(graph)
        run_graph_passes(graph, (graph_pass,))
        parts.append(told(graph_pass.name, before, counted(graph)))
    golden(f"gpu/{name}-{family}", "\n".join(parts) + "\n")
