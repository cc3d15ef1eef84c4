"""Packed programs: each sequence answers as it does alone, whatever lies beside it in the row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace import graphs, sample
from headrace.errors import TraceError
from headrace.frontend.trace import trace
from headrace.ir import OFFSETS, BiasKind, Layout, PoolKind, Task
from headrace.lowering.forms.packed import Pack
from headrace.lowering.optimise.observe import Tap
from headrace.lowering.pipeline import analyse, prepare
from headrace.ops.attention import ATTENTION, MASK, POOL, pool_rows
from headrace.ops.packed import ATTENTION_VARLEN, pool_packed
from headrace.ops.stateful import RECURRENCES, VARLEN
from tests.tiny import build, checkpoint, fed

LENGTHS = (5, 17, 3, 11, 1, 12)
CASES = {
    "bert": ("AutoModel", "embed"),
    "roberta": ("AutoModelForSequenceClassification", "classify"),
    "modernbert": ("AutoModelForTokenClassification", "token_classify"),
    "gemma3-bidirectional": ("AutoModel", "embed"),
    "qwen3": ("AutoModel", "embed"),
    "mistral": ("AutoModel", "embed"),
    "llama": ("AutoModelForSequenceClassification", "classify"),
    "gpt-oss": ("AutoModel", "embed"),
    "gpt2": ("AutoModel", "embed"),
    # What recurs: a convolution alone, scans beside attention and without, a delta rule, shifts that no operator shows.
    "lfm2": ("AutoModel", "embed"),
    "bamba": ("AutoModel", "embed"),
    "mamba": ("AutoModel", "embed"),
    "qwen3-next": ("AutoModel", "embed"),
    "rwkv": ("AutoModel", "embed"),
    "recurrent-gemma": ("AutoModel", "embed"),
}


def packed(analysed: Any, name: str) -> tuple[Any, Any]:
    head, task = CASES[name]
    padded = prepare(analysed(name, head), Task(task))
    return padded, Pack()(padded)


@pytest.mark.parametrize("name", CASES)
def test_each_sequence_answers_as_alone(name: str, analysed: Any) -> None:
    """P15, and more tokens in the row than the model has positions."""
    padded, program = packed(analysed, name)
    assert_alone(padded, program, per_token=CASES[name][1] == "token_classify")


def assert_alone(padded: Any, program: Any, per_token: bool) -> None:
    """Each sequence of the row answers as the padded program answers it alone."""
    inputs = sample.row(program, LENGTHS)
    (together,), _ = graphs.run(program.graph, inputs)
    begin = 0
    for row, length in enumerate(LENGTHS):
        ids = inputs["input_ids"][:, begin : begin + length]
        (alone,), _ = graphs.run(padded.graph, fed(padded, ids))
        got = together[:, begin : begin + length] if per_token else together[row : row + 1]
        torch.testing.assert_close(got, alone, atol=1e-5, rtol=1e-5)
        begin += length


def test_what_is_left_of_the_graph(analysed: Any) -> None:
    padded, program = packed(analysed, "bert")
    targets = [node.target for node in program.graph.graph.nodes]
    assert targets.count(ATTENTION_VARLEN) == len(padded.nodes.attention)
    assert not {ATTENTION, MASK, POOL} & set(targets)
    assert (program.form.layout, padded.form.layout) == (Layout.PACKED, Layout.PADDED)
    assert program.signature.input_names == ("input_ids", "position_ids", "token_type_ids", OFFSETS)


def test_p8_positions_begin_anew(analysed: Any) -> None:
    """P8: the RoBERTa family starts past its padding id in every sequence."""
    inputs = sample.row(Pack()(prepare(analysed("roberta"), Task.EMBED)), (3, 5))
    assert inputs["position_ids"].tolist() == [[2, 3, 4, 2, 3, 4, 5, 6]]
    assert inputs[OFFSETS].tolist() == [0, 3, 8]


@pytest.mark.parametrize("name", ["lfm2", "bamba", "rwkv", "recurrent-gemma"])
def test_a_recurrence_begins_from_nothing_in_each_sequence(name: str, analysed: Any) -> None:
    """Every operator that carries state is told where sequences begin, and has a spec of its own."""
    padded, program = packed(analysed, name)
    nodes = [node for node in program.graph.graph.nodes if node.target in VARLEN]
    assert [spec.node for spec in program.nodes.recurrent] == [node.name for node in nodes]
    assert len(nodes) >= len(padded.nodes.recurrent) > 0
    assert not RECURRENCES.keys() & {node.target for node in program.graph.graph.nodes}
    assert all(spec.state and spec.causal for spec in program.nodes.recurrent)
    # Both forms show the same nodes where one is held beside the other.
    tapped = [[tap.width for tap in Tap()(one).nodes.taps] for one in (padded, program)]
    assert tapped[0] == tapped[1]


def test_a_convolution_that_looks_at_later_tokens_is_not_packed(analysed: Any) -> None:
    padded = prepare(analysed("convbert"), Task.EMBED)
    with pytest.raises(TraceError, match=r"conv1d is a convolution .* Accepted is one a channel that looks back only"):
        Pack()(padded)


def test_a_crossing_that_no_node_shows_is_seen(analysed: Any) -> None:
    """The packed graph is run beside the padded one: here its attention is made to see the whole row."""
    padded = prepare(analysed("bert"), Task.EMBED)

    def widen(graph: Any) -> None:
        for node in graph.nodes:
            if node.target is torch.ops.aten.layer_norm.default:
                with graph.inserting_after(node):
                    mixed = graph.call_function(torch.ops.aten.cumsum.default, (node, 1))
                node.replace_all_uses_with(mixed)
                mixed.args = (node, 1)
                mixed.meta = dict(node.meta)
                return

    with pytest.raises(TraceError, match="answers otherwise than alone"):
        Pack()(padded.with_(exported=graphs.rewrite(padded.graph, widen)))


@pytest.mark.parametrize(("name", "why"), [("convbert", "looks back only"), ("fnet", "answers otherwise than alone")])
def test_what_cannot_be_packed_stays_padded_and_says_why(name: str, why: str, analysed: Any) -> None:
    program = prepare(analysed(name), Task.EMBED, Layout.PACKED)
    assert program.form.layout is Layout.PADDED
    assert why in program.form.layout_why


def test_a_packed_program_names_its_own_nodes(analysed: Any) -> None:
    program = prepare(analysed("modernbert"), Task.EMBED, Layout.PACKED)
    assert program.form.layout is Layout.PACKED
    assert program.form.layout_why == ""
    assert {spec.node for spec in program.nodes.attention} <= {node.name for node in program.graph.graph.nodes}


@pytest.mark.parametrize("kind", list(PoolKind))
def test_pooling_equals_the_padded_kind(kind: PoolKind) -> None:
    rows = torch.randn(1, sum(LENGTHS), 6, generator=torch.Generator().manual_seed(0))
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32)
    alone = [pool_rows(part, torch.ones(part.shape[:2]), kind) for part in rows.split(LENGTHS, dim=1)]
    torch.testing.assert_close(pool_packed(rows, offsets, kind), torch.cat(alone), atol=1e-6, rtol=1e-6)


BIASED = {
    "bloom": ("AutoModel", BiasKind.ALIBI, (4,)),
    "mpt": ("AutoModel", BiasKind.ALIBI, (4,)),
    # Their last buckets begin at distances of 46 and 16.
    "mpnet": ("AutoModel", BiasKind.RELATIVE, (4, 93)),
    "t5": ("T5EncoderModel", BiasKind.RELATIVE, (4, 33)),
}


@pytest.mark.parametrize("name", BIASED)
def test_a_bias_of_the_distance_is_computed_from_it(name: str, analysed: Any) -> None:
    """No tensor of the shape of the scores: slopes or a table, as the bias itself gave them."""
    head, kind, shape = BIASED[name]
    program = analysed(name, head)
    assert {spec.bias for spec in program.nodes.attention} == {kind}
    padded = prepare(program, Task.EMBED)
    packed = Pack()(padded)
    nodes = [node for node in packed.graph.graph.nodes if node.target is ATTENTION_VARLEN]
    assert [(node.args[10], tuple(node.args[5].meta["val"].shape)) for node in nodes] == [(kind, shape)] * 2
    assert_alone(padded, packed, per_token=False)


def test_a_bias_of_more_than_the_distance_is_not_packed(analysed: Any) -> None:
    """DeBERTa's depends on the words, and Falcon's is rounded to bfloat16, which no function of the distance is."""
    for name in ("deberta-v2", "falcon-alibi"):
        program = analysed(name)
        assert {spec.bias for spec in program.nodes.attention} == {BiasKind.TENSOR}
        with pytest.raises(TraceError, match="it is no function of the distance between query and key"):
            Pack()(prepare(program, Task.EMBED))


def test_a_head_that_reads_its_row_by_place_stays_padded() -> None:
    """One that was traced beside another pooling: in a packed row, the first token is that of one sequence alone."""
    traced = trace(checkpoint(build("bert", "AutoModelForSequenceClassification")), (PoolKind.MEAN,))
    program = prepare(analyse(traced.program, traced.behaviour), Task.CLASSIFY, Layout.PACKED)
    assert program.form.layout is Layout.PADDED
    assert "answers otherwise than alone" in program.form.layout_why
