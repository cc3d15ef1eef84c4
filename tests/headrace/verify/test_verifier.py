"""Each rule of the verifier refuses a seeded breach, naming the pass, the node and the rule."""

import dataclasses

import pytest
import torch
from torch import nn

from headrace import graphs
from headrace.errors import VerifyError
from headrace.ir import Output, OutputKind, Stage, Window
from headrace.ir.passes import run_passes
from headrace.lowering.types.attention import TypeAttention
from headrace.ops.attention import ATTENTION, MASK
from headrace.verify.verifier import verify
from tests.synthetic import program_of


class Model(nn.Module):
    """Two attentions over one mask node."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(96, 8)

    def forward(self, input_ids, attention_mask):
        q = self.table(input_ids).unflatten(-1, (4, 2)).transpose(1, 2)
        batch, length = input_ids.shape
        window = [3, 0]
        mask = torch.ops.headrace.mask(attention_mask, batch, length, length, 0, 0, "causal", window, input_ids.device)
        for _ in range(2):
            q = torch.ops.headrace.attention(q, q, q, mask, None, None, 0.5, "causal", window, 0.0).transpose(1, 2)
        return q.transpose(1, 2).flatten(2)


@pytest.fixture(scope="module")
def program():
    return TypeAttention()(program_of(Model(), "input_ids", "attention_mask"))


def breaches(program):
    with pytest.raises(VerifyError) as refused:
        verify(program, "mangle")
    text = str(refused.value)
    assert text.startswith("After the pass mangle the program breaks ")
    return text


def with_args(program, target, change, where=0):
    """The program with one node's arguments changed."""

    def edit(graph):
        node = [node for node in graph.nodes if node.target is target][where]
        node.args = tuple(change(list(node.args)))

    return program.with_(exported=graphs.rewrite(program.graph, edit))


def put(place, value):
    """Change one argument by its place."""
    return lambda args: [*args[:place], value, *args[place + 1 :]]


KIND, WINDOW = 7, 8
MASK_KIND, MASK_WINDOW = 6, 7


def test_a_sound_program_passes(program, traced):
    verify(program, "type")
    verify(traced("gemma2").program, "trace")
    verify(TypeAttention()(traced("gemma2").program), "type")


@pytest.mark.parametrize("stage", [Stage.TRACED, Stage.TYPED, Stage.LOWERED])
def test_a_frozen_dimension(program, stage):
    frozen = program_of(Model(), "input_ids", "attention_mask", dynamic=False)
    specs = TypeAttention()(frozen).nodes.attention
    text = breaches(frozen.with_(attention=specs, stage=stage))
    assert text.count("dynamic_shapes") == 2
    assert "dynamic_shapes: input_ids: shape (2, 7) is frozen" in text
    assert "dynamic_shapes: attention_mask: shape (2, 7) is frozen" in text


def test_an_output_without_a_name(program):
    text = breaches(program.with_(outputs=(*program.signature.outputs, Output("more", OutputKind.HIDDEN, 8))))
    assert "outputs_named: output: 1 values, 2 names" in text


def test_a_spec_without_a_node(program):
    text = breaches(program.with_(attention=program.nodes.attention[:1]))
    assert "specs_match_nodes: attention: nodes ['attention', 'attention_1'], specs ['attention']" in text


def test_specs_out_of_order(program):
    assert "specs_match_nodes: attention: nodes" in breaches(program.with_(attention=program.nodes.attention[::-1]))


@pytest.mark.parametrize("changes", [{"window": Window(4, 0)}, {"window": Window(3, -1)}])
def test_a_spec_that_says_another_window(program, changes):
    second = dataclasses.replace(program.nodes.attention[1], **changes)
    text = breaches(program.with_(attention=(program.nodes.attention[0], second)))
    assert f"specs_match_nodes: attention_1: the spec says causal {changes['window']}, the node causal [3, 0]" in text
    assert "breaks 1 rule(s)" in text


def test_a_node_that_says_another_kind_than_spec_and_mask(program):
    text = breaches(with_args(program, ATTENTION, put(KIND, "bidirectional"), where=1))
    assert "specs_match_nodes: attention_1: the spec says causal (3, 0), the node bidirectional [3, 0]" in text
    assert "masks_agree: attention_1: it says bidirectional [3, 0], mask says causal [3, 0]" in text


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [(MASK_KIND, "bidirectional", "bidirectional [3, 0]"), (MASK_WINDOW, [9, 0], "causal [9, 0]")],
)
def test_a_mask_that_says_another_thing_than_its_attentions(program, place, value, says):
    text = breaches(with_args(program, MASK, put(place, value)))
    assert "breaks 2 rule(s)" in text
    assert f"masks_agree: attention: it says causal [3, 0], mask says {says}" in text
    assert f"masks_agree: attention_1: it says causal [3, 0], mask says {says}" in text


def test_a_mask_that_is_no_mask_node(program):
    def edit(graph):
        attention = next(node for node in graph.nodes if node.target is ATTENTION)
        with graph.inserting_before(attention):
            made = graph.call_function(torch.ops.aten.clone.default, (attention.args[3],))
            made.meta = dict(attention.args[3].meta)
        attention.args = (*attention.args[:3], made, *attention.args[4:])

    text = breaches(program.with_(exported=graphs.rewrite(program.graph, edit)))
    assert "masks_agree: attention: its mask clone_default is no mask node" in text


def test_a_later_stage_keeps_the_rules_of_the_earlier(program):
    broken = program.with_(attention=(), stage=Stage.LOWERED)
    assert "specs_match_nodes: attention: nodes" in breaches(broken)


def test_an_earlier_stage_knows_none_of_the_later(program):
    verify(program.with_(attention=(), stage=Stage.TRACED), "trace")


def test_every_breach_is_told(program):
    second = dataclasses.replace(program.nodes.attention[1], window=Window(9, 0))
    text = breaches(program.with_(attention=(program.nodes.attention[0], second), outputs=()))
    assert "breaks 2 rule(s)" in text
    assert "outputs_named" in text
    assert "specs_match_nodes" in text


def test_runs_after_every_pass(program):
    @dataclasses.dataclass(frozen=True)
    class Step:
        name: str
        outputs: tuple

        def __call__(self, program):
            return program.with_(outputs=self.outputs)

    good = Step("good", program.signature.outputs)
    assert run_passes(program, [good, good]) == program
    with pytest.raises(VerifyError, match=r"After the pass bad the program breaks 1 rule\(s\): outputs_named: output"):
        run_passes(program, [good, Step("bad", ()), good])
