"""Recurrent nodes: their specs, their route, and their causality, proven by what the eager model does."""

from collections import Counter

import pytest
import torch
from torch import nn

from headrace.errors import AttentionTypeError, TraceError
from headrace.frontend.trace import trace
from headrace.ir import PaddingRule, RecurrentSpec, State, Verdict
from headrace.lowering.decide.probe import Probe
from headrace.lowering.pipeline import analyse
from headrace.lowering.types.attention import TypeAttention
from tests.synthetic import facts
from tests.tiny import build, checkpoint, rows_of, token_ids

# name: (operator and the state that it leaves behind, in call order; attentions)
MODELS = {
    "mamba": ([("causal_conv1d", (64, 3)), ("selective_scan", (64, 8))] * 2, 0),
    "mamba2": ([("causal_conv1d", (96, 3)), ("chunk_scan", (8, 8, 8))] * 2, 0),
    "bamba": ([("causal_conv1d", (96, 3)), ("chunk_scan", (8, 8, 8))], 1),
    "jamba": ([("causal_conv1d", (64, 3)), ("selective_scan", (64, 8))], 1),
    "qwen3-next": ([("causal_conv1d", (64, 3)), ("gated_delta_rule", (4, 8, 8))], 1),
    "lfm2": ([("causal_conv1d", (32, 2))], 1),
    "minimax": ([("chunk_scan", (4, 8, 8))], 1),
    "recurrent-gemma": ([("convolution", ()), ("linear_recurrence", (32,))] * 2, 1),
    "rwkv": ([("wkv", (3, 32))] * 2, 0),
    "xlstm": ([("mlstm", (4, 4, 8 + 2))] * 2, 0),
}
# These read no attention mask: what lies before a text enters its state, and right padding alone is exact.
UNMASKED = {"recurrent-gemma", "rwkv", "xlstm"}


@pytest.mark.parametrize("name", MODELS)
def test_specs_route_and_proof(analysed, name):
    """B4: one spec a node, in call order; the stack is seen to look back only, with attention and without."""
    program, (expected, attentions) = analysed(name), MODELS[name]
    assert [(spec.operator, spec.state) for spec in program.nodes.recurrent] == expected
    assert [spec.call_order for spec in program.nodes.recurrent] == list(range(len(expected)))
    assert {(spec.causal, spec.verdict) for spec in program.nodes.recurrent} == {(True, Verdict.PROVEN)}
    assert (len(program.nodes.attention), program.decision.route.state, program.decision.route.rule) == (
        attentions,
        State.HYBRID,
        "B4",
    )
    assert program.decision.padding is PaddingRule.EXACT
    assert program.facts.pooling.kinds == ("last",)


def test_no_loop_over_tokens_is_left_in_the_graph(traced):
    """One node a layer and function, whatever the length."""
    graph = traced("mamba").program.graph.graph
    assert Counter(str(n.target) for n in graph.nodes if str(n.target).startswith("headrace.")) == {
        "headrace.causal_conv1d.default": 2,
        "headrace.selective_scan.default": 2,
        "headrace.pool.default": 1,
    }


@pytest.mark.parametrize("padded_on", ["left", "right"])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in UNMASKED])
def test_padding_on_either_side_leaves_the_text_as_it_is_alone(analysed, name, padded_on):
    """D3, for models that silence their padding: nothing enters the state before the first token."""
    program, length, width = analysed(name), 7, 12
    ids = token_ids(width, batch=2)
    real = slice(width - length, width) if padded_on == "left" else slice(0, length)
    mask = torch.ones_like(ids)
    mask[0] = 0
    mask[0, real] = 1
    padded, alone = rows_of(program, ids, mask)[0, real], rows_of(program, ids[:1, real])[0]
    torch.testing.assert_close(padded, alone, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["mamba", "rwkv"])
def test_half_precision(name):
    """Models that end in float32 whatever they run in are held to what the dtype that they run in allows."""
    made = trace(checkpoint(build(name).bfloat16()))
    program = analyse(made.program, made.behaviour)
    assert (program.dtype, program.decision.padding) == ("bfloat16", PaddingRule.EXACT)
    assert {spec.verdict for spec in program.nodes.recurrent} == {Verdict.PROVEN}


class Reversed(nn.Module):
    """A recurrent model that reads its text from the end."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids, attention_mask):
        output = self.inner(input_ids=input_ids.flip(1), attention_mask=attention_mask.flip(1))
        output.last_hidden_state = output.last_hidden_state.flip(1)
        return output


def test_a_recurrence_that_looks_ahead_is_refused():
    """A seeded defect, without any attention that could show it."""
    made = trace(checkpoint(Reversed(build("mamba"))))
    with pytest.raises(AttentionTypeError) as refused:
        analyse(made.program, made.behaviour)
    text = str(refused.value)
    assert "causal_conv1d (model.inner.layers.0.mixer) and every other recurrence is declared causal" in text
    assert "was seen to change the rows before it" in text


class Leaking(nn.Module):
    """The same model, with a part of each row given to the row before it."""

    def __init__(self, inner, leak):
        super().__init__()
        self.inner, self.leak = inner, leak

    def forward(self, input_ids, attention_mask):
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask)
        rows = output.last_hidden_state
        output.last_hidden_state = rows + self.leak * rows.roll(-1, 1)
        return output


def test_a_leak_too_small_for_float32_is_seen():
    """The stack is measured in float64, though transformers' scan is float32 within."""
    made = trace(checkpoint(Leaking(build("mamba2"), 1e-9)))
    with pytest.raises(AttentionTypeError, match="was seen to change the rows before it"):
        analyse(made.program, made.behaviour)


class Mixed(nn.Module):
    """An encoder with a convolution over three neighbouring tokens after it."""

    def __init__(self):
        super().__init__()
        self.inner, self.mix = build("bert", num_hidden_layers=1), nn.Conv1d(32, 32, 3, padding=1)

    def forward(self, input_ids, attention_mask):
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask)
        output.last_hidden_state = self.mix(output.last_hidden_state.transpose(1, 2)).transpose(1, 2)
        return output


def test_a_convolution_beside_bidirectional_attention_stays_unprobed():
    """B3 comes first, and a stack that looks both ways says nothing of its convolution."""
    made = trace(checkpoint(Mixed()))
    program = analyse(made.program, made.behaviour)
    assert [(s.operator, s.causal, s.verdict) for s in program.nodes.recurrent] == [
        ("convolution", None, Verdict.UNPROBED)
    ]
    assert (program.decision.route.rule, program.decision.padding) == ("B3", PaddingRule.UNPADDED)


class Eager:
    """An eager model of which only the change of its stack is known."""

    def __init__(self, changed):
        self.changed = changed

    def stack_change(self, length):
        return self.changed


def test_an_undeclared_convolution_is_measured():
    """Whether a plain convolution's padding lies before the tokens its node does not say: what is seen is recorded."""
    spec = RecurrentSpec("conv", 0, "convolution")
    for changed, causal in ((0.0, True), (0.5, False)):
        seen = Probe(Eager(changed))(facts(recurrent=(spec,))).nodes.recurrent[0]
        assert (seen.causal, seen.verdict) == (causal, Verdict.PROVEN)


def test_a_trace_that_took_another_path_is_refused(traced):
    program = traced("mamba").program
    with pytest.raises(TraceError, match="called 5 recurrent functions, but the graph has 4"):
        TypeAttention()(program.with_(recurrent_calls=5))


def test_the_functions_are_put_back(traced):
    """Tracing borrows transformers' functions; eager models run their own afterwards."""
    from transformers.models.mamba import modeling_mamba

    traced("mamba")
    assert modeling_mamba.causal_conv1d_fn.__module__ == modeling_mamba.__name__


def test_a_call_that_wants_its_state_is_left_to_the_function():
    """No operator returns a state: what asks for one keeps transformers' function, and its loop is refused in words."""
    from headrace.frontend.capture.recurrences import recurrences

    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build("mamba")

        def forward(self, x):
            from transformers.models.mamba import modeling_mamba

            return modeling_mamba.mamba_selective_scan(
                x, x, torch.ones(4, 2), x[:, :2], x[:, :2], return_last_state=True
            )

    model = Stateful()
    with recurrences(model) as called, torch.no_grad():
        output, state = model(torch.ones(1, 4, 5))
    assert (called, output.shape, state.shape) == ([], (1, 4, 5), (1, 4, 2))
