"""Padded programs as the GPU targets compile them, on the CPU: one graph for every batch, answers as the graph's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace import graphs
from headrace.backends.gpu import executable
from headrace.backends.inductor.compile import DECOMPOSITIONS
from headrace.errors import OutOfMemoryError
from headrace.ir import Task
from headrace.lowering.pipeline import prepare
from tests.coverage.requests import batch, request


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    monkeypatch.setattr(executable, "moved", lambda tensor: tensor)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2", "jamba"])
def test_one_graph_runs_every_batch(name: str, on_cpu: None, analysed: Any) -> None:
    """A hybrid's program as it runs padded; a batch of one too, whose graph is made with the other, and as it is."""
    from torch._dynamo.utils import counters

    program = prepare(analysed(name), Task.EMBED)
    run = executable.Padded(program, DECOMPOSITIONS)
    compiled, given = counters["stats"]["unique_graphs"], list[int]()
    inner = run._run

    def counted(*inputs: torch.Tensor) -> torch.Tensor:
        given.append(len(inputs[0]))
        return inner(*inputs)

    run._run = counted
    for count, length in ((1, 5), (2, 9), (5, 33), (1, 8)):
        inputs = batch(program, [request(program, length, row) for row in range(count)], False)
        wanted = graphs.run(program.graph, inputs)[0][0]
        torch.testing.assert_close(run(inputs), wanted, atol=1e-5, rtol=1e-5)
    assert counters["stats"]["unique_graphs"] == compiled
    assert given == [1, 2, 5, 1], "no batch is made larger than it is"


SEEN: list[int] = []


@torch.library.custom_op("headrace_tests::out_of_memory", mutates_args=())
def out_of_memory(x: torch.Tensor) -> torch.Tensor:
    """Stands for an operator for whose rows there is no memory, where they are seven."""
    SEEN.append(x.shape[0])
    if x.shape[0] == 7:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has more to say.")
    return x.clone()


@out_of_memory.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_memory_that_runs_out_inside_is_told_as_that(analysed: Any, on_cpu: None, monkeypatch: Any) -> None:
    """And the executable, compiled by the very call that the GPU targets make, serves on."""
    program = prepare(analysed("bert"), Task.EMBED)
    real = graphs.flat_module

    def starved(exported: Any) -> Any:
        module = real(exported)
        returned: Any = module.graph.output_node().args[0]
        with module.graph.inserting_before(module.graph.output_node()):
            last = module.graph.call_function(torch.ops.headrace_tests.out_of_memory.default, (returned[0],))
        module.graph.output_node().args = ((last,),)
        return module

    monkeypatch.setattr(graphs, "flat_module", starved)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    run = executable.Padded(program, DECOMPOSITIONS)
    one, seven, four = (batch(program, [request(program, 9, row) for row in range(n)], False) for n in (1, 7, 4))
    with pytest.raises(OutOfMemoryError, match=r"Tried to allocate 2.00 GiB$"):
        run(seven)
    for given in (four, one):
        torch.testing.assert_close(run(given), graphs.run(program.graph, given)[0][0], atol=1e-5, rtol=1e-5)
    assert SEEN[-3:] == [7, 4, 1], "a batch of one is computed once"
