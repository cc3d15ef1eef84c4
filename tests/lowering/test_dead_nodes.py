"""Facts about nodes go with their nodes: a spec of what no output reads is one of nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from headrace.ir import Head, Layout, Output, OutputKind, Program, Task
from headrace.ir.passes import run_passes
from headrace.lowering.decide.enable import EnableTasks
from headrace.lowering.decide.padding import MeasurePadding
from headrace.lowering.decide.route import DecideRoute
from headrace.lowering.forms.select import SelectTask
from headrace.lowering.optimise.observe import Tap
from headrace.lowering.pipeline import prepare
from headrace.lowering.types.attention import TypeAttention
from tests.synthetic import program_of

OUTPUTS = (
    Output("embedding", OutputKind.EMBEDDING, 8),
    Output("vocabulary_logits", OutputKind.VOCABULARY_LOGITS, 8),
)


class Branches(nn.Module):
    """A vector through one attention; rows through another attention and a recurrence besides."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(96, 8)
        self.weight = nn.Parameter(torch.ones(8, 3))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.table(input_ids)
        first, second = self.attended(rows), self.attended(rows + 1)
        carried = torch.ops.headrace.causal_conv1d(second.transpose(1, 2), self.weight, None).transpose(1, 2)
        return first.mean(1), carried

    def attended(self, rows: Tensor) -> Tensor:
        heads = rows.unflatten(-1, (4, 2)).transpose(1, 2)
        seen = torch.ops.headrace.attention(heads, heads, heads, None, None, None, 0.5, "causal", [-1, -1], 0.0)
        return seen.flatten(2)


@pytest.fixture(scope="module")
def program() -> Program:
    traced = program_of(
        Branches(), "input_ids", "attention_mask", outputs=OUTPUTS, head=Head.CAUSAL_LM, recurrent_calls=1
    )
    return run_passes(traced, [TypeAttention(), DecideRoute(), MeasurePadding(), EnableTasks()])


def test_the_program_has_both(program: Program) -> None:
    assert [spec.node for spec in program.nodes.attention] == ["attention", "attention_1"]
    assert [spec.node for spec in program.nodes.recurrent] == ["causal_conv1d"]


def test_a_task_that_reads_neither_the_second_attention_nor_the_recurrence(program: Program) -> None:
    specs = tuple(replace(spec, recovered=True) for spec in program.nodes.attention)
    cut = prepare(program.with_(attention=specs, recovered=("attention", "attention_1")), Task.EMBED)
    assert [spec.node for spec in cut.nodes.attention] == ["attention"]
    assert cut.nodes.recurrent == ()
    assert cut.evidence.recovered == ("attention",)
    assert cut.decision.route == program.decision.route, "what was decided stays decided"
    # Nothing is left whose state would have to begin anew in a packed row.
    assert prepare(program, Task.EMBED, Layout.PACKED).nodes.recurrent == ()


def test_a_task_that_reads_them(program: Program) -> None:
    cut = run_passes(program, [SelectTask(Task.GENERATE)])
    assert [spec.node for spec in cut.nodes.attention] == ["attention_1"]
    assert cut.nodes.recurrent == program.nodes.recurrent


def test_nodes_that_are_not_observed(program: Program) -> None:
    whole = run_passes(program, [SelectTask(Task.GENERATE)])
    assert run_passes(whole, [Tap(("attention_1",))]).nodes.recurrent == ()
    assert run_passes(whole, [Tap()]).nodes.recurrent == whole.nodes.recurrent
