"""Rows are chosen before what is made of single rows; what mixes rows, or all rows are read of, is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace import graphs, sample
from headrace.ir import Task
from headrace.lowering.forms.select import SelectTask
from headrace.lowering.optimise.pool_first import LINEAR, PoolFirst
from headrace.ops.attention import POOL

SEQUENCE = "AutoModelForSequenceClassification"


def selected(analysed: Any, name: str, head: str, task: Task) -> Any:
    return SelectTask(task)(analysed(name, head))


def after_pooling(program: Any) -> list[Any]:
    nodes = list(program.graph.graph.nodes)
    place = next(place for place, node in enumerate(nodes) if node.target is POOL)
    return [node.target for node in nodes[place:]]


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
def test_a_decoders_labels_are_those_of_one_row(analysed: Any, name: str) -> None:
    """Their head makes labels of every row, and chooses the last token's."""
    before = selected(analysed, name, SEQUENCE, Task.CLASSIFY)
    after = PoolFirst()(before)
    assert LINEAR not in after_pooling(before)
    assert after_pooling(after).count(LINEAR) == 1
    assert sum(node.target is LINEAR for node in after.graph.graph.nodes) == sum(
        node.target is LINEAR for node in before.graph.graph.nodes
    )
    real = torch.arange(7) < torch.tensor([[7], [3], [1]])
    for given in (real, real.flip(1)):
        inputs = sample.batch(before, given)
        one, two = (graphs.run(program.graph, inputs)[0][0] for program in (before, after))
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5 * float(one.abs().max()))


@pytest.mark.parametrize(
    ("name", "head", "task"),
    [
        ("bert", SEQUENCE, Task.CLASSIFY),
        ("bert", "AutoModel", Task.EMBED),
        ("bert", "AutoModelForMaskedLM", Task.FILL_MASK),
    ],
)
def test_a_program_that_it_leaves_alone(analysed: Any, name: str, head: str, task: Task) -> None:
    """BERT's head reads the first row to begin with, and a mean is of all rows."""
    program = selected(analysed, name, head, task)
    assert PoolFirst()(program) is program
