"""Padded programs as the GPU targets compile them, on the CPU: one graph for every batch, answers as the graph's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace import graphs
from headrace.backends import executables
from headrace.backends.inductor import DECOMPOSITIONS
from headrace.ir import Task
from headrace.lowering.pipeline import prepare
from tests.coverage.requests import batch, request


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    monkeypatch.setattr(executables, "moved", lambda tensor: tensor)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2", "jamba"])
def test_one_graph_runs_every_batch(name: str, on_cpu: None, analysed: Any) -> None:
    """A hybrid's program, which is not packed; a batch of one too, for which torch would compile a graph of its own."""
    from torch._dynamo.utils import counters

    program = prepare(analysed(name), Task.EMBED)
    run = executables.Padded(program, DECOMPOSITIONS)
    compiled = counters["stats"]["unique_graphs"]
    for count, length in ((1, 5), (2, 9), (5, 33), (1, 8)):
        inputs = batch(program, [request(program, length, row) for row in range(count)], False)
        wanted = graphs.run(program.graph, inputs)[0][0]
        torch.testing.assert_close(run(inputs), wanted, atol=1e-5, rtol=1e-5)
    assert counters["stats"]["unique_graphs"] == compiled
