"""Contract B: the first rule that matches, from the IR alone, with its evidence; no silent default."""

import dataclasses

import pytest

from headrace.errors import AttentionTypeError
from headrace.frontend.trace import trace
from headrace.ir import AttentionType, Head, Program, RecurrentSpec, Route, Stage, State
from headrace.ir.serialize import decode, encode
from headrace.lowering.decide import route
from headrace.lowering.decide.route import DecideRoute, decide_route
from tests.synthetic import facts, spec
from tests.tiny import build, checkpoint

DECODER, ENCODER_ONLY = AttentionType.DECODER, AttentionType.ENCODER_ONLY
ENCODER, CROSS = AttentionType.ENCODER, AttentionType.ENCODER_DECODER
SCAN = (RecurrentSpec("scan", 0, "selective_scan"),)


@pytest.fixture
def registered(monkeypatch):
    """An empty registry of custom states."""
    monkeypatch.setattr(route, "registered", {})
    return route.registered


RULES = [
    ((CROSS,), (), State.ENCODER_DECODER, "B2", "1 of 1 attentions are ENCODER_DECODER"),
    ((ENCODER, DECODER, CROSS), (), State.ENCODER_DECODER, "B2", "1 of 3 attentions are ENCODER_DECODER"),
    ((ENCODER_ONLY, CROSS), SCAN, State.ENCODER_DECODER, "B2", "1 of 2 attentions are ENCODER_DECODER"),
    ((ENCODER_ONLY,), (), State.ENCODER_ONLY, "B3", "1 of 1 attentions are ENCODER_ONLY"),
    # Layers of mixed type: any bidirectional one rules a KV cache out.
    ((DECODER, ENCODER_ONLY, DECODER), (), State.ENCODER_ONLY, "B3", "1 of 3 attentions are ENCODER_ONLY"),
    ((DECODER, ENCODER_ONLY), SCAN, State.ENCODER_ONLY, "B3", "1 of 2 attentions are ENCODER_ONLY"),
    ((DECODER, DECODER), SCAN, State.HYBRID, "B4", "1 recurrent-state nodes beside 2 attentions"),
    ((), SCAN, State.HYBRID, "B4", "1 recurrent-state nodes beside 0 attentions"),
    ((), (), State.HYBRID, "B4", "no attention at all"),
    ((DECODER, DECODER), (), State.DECODER, "B5", "all 2 attentions are DECODER"),
]


@pytest.mark.parametrize(("types", "recurrent", "state", "rule", "reason"), RULES)
def test_rules(registered, types, recurrent, state, rule, reason):
    assert decide_route(facts(*types, recurrent=recurrent)) == Route(state, rule, reason)


def test_layers_may_differ_in_window_and_heads(registered):
    specs = (spec(DECODER, 0, window=(3, 0)), spec(DECODER, 1, q_heads=8, kv_heads=2))
    assert decide_route(facts(attention=specs)).rule == "B5"


def test_anything_else_is_refused_with_what_was_seen(registered):
    with pytest.raises(AttentionTypeError) as refused:
        decide_route(facts(ENCODER, DECODER, DECODER))
    assert "No state runs this program: it has 2 DECODER, 1 ENCODER attention(s)" in str(refused.value)


@pytest.mark.parametrize("types", [(), (DECODER,), (ENCODER_ONLY,), (CROSS,), (ENCODER, DECODER)])
def test_a_registered_state_comes_first(registered, types):
    """B1, also where nothing else would match."""
    registered["mine"] = lambda program: program.signature.vocabulary == 96
    decided = decide_route(facts(*types))
    assert decided == Route(State.CUSTOM, "B1", "a state is registered for this program", custom="mine")
    assert decided.name == "mine"


def test_a_registered_state_is_for_its_programs_alone(registered):
    registered["other"] = lambda program: program.signature.vocabulary == 7
    registered["mine"] = lambda program: len(program.nodes.attention) == 2
    assert decide_route(facts(DECODER)).rule == "B5"
    assert decide_route(facts(DECODER, DECODER)).custom == "mine"


def test_a_state_that_the_module_brought_goes_before_a_registered_one(registered):
    registered["mine"] = lambda program: True
    decided = decide_route(facts(DECODER, declared_state="its own"))
    assert decided == Route(State.CUSTOM, "B1", "the module brought its own state", custom="its own")


def test_the_route_survives_as_data(registered):
    """B6."""
    registered["mine"] = lambda program: True
    program = DecideRoute()(facts(ENCODER_ONLY))
    again = decode(Program, encode(program))
    assert again.decision.route == program.decision.route
    assert again.decision.route.custom == "mine"


def test_names_decide_nothing(registered):
    """B8: the same facts give the same route, whatever the program is called and wherever it was traced."""
    program = facts(DECODER, ENCODER_ONLY)
    renamed = program.with_(
        source=dataclasses.replace(program.source, name="T5ForConditionalGeneration", config_hash="other"),
        head=Head.TOKEN,
        attention=tuple(
            dataclasses.replace(s, provenance="decoder.cross_attn", node="x" + s.node) for s in program.nodes.attention
        ),
    )
    assert decide_route(renamed) == decide_route(program)


ROUTES = {
    "bert": (State.ENCODER_ONLY, "B3"),
    "bert-decoder": (State.DECODER, "B5"),
    "gemma3-bidirectional": (State.ENCODER_ONLY, "B3"),
    "clip-text": (State.DECODER, "B5"),
    "gpt-oss": (State.DECODER, "B5"),
    "fnet": (State.HYBRID, "B4"),
}


@pytest.mark.parametrize("name", ROUTES)
def test_real_models(analysed, name):
    decided = analysed(name).decision.route
    assert (decided.state, decided.rule) == ROUTES[name]


@pytest.mark.parametrize("name", ["llama-bidirectional", "qwen2"])
def test_a_wrapper_routes_as_the_model_inside(analysed, name):
    """B7: the evidence is in the graph."""
    import torch

    class Somebodys(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, input_ids, attention_mask=None, **kwargs):
            return self.inner(input_ids=input_ids, attention_mask=attention_mask, **kwargs)

    from headrace.lowering.pipeline import analyse

    made = trace(checkpoint(Somebodys(build(name))))
    program, inner = analyse(made.program, made.behaviour), analysed(name)
    assert program.decision.route == inner.decision.route
    assert program.decision.tasks == inner.decision.tasks
    assert program.signature.inputs == inner.signature.inputs
    assert [s.type for s in program.nodes.attention] == [s.type for s in inner.nodes.attention]


def test_leaves_all_but_the_route_alone(analysed):
    before = analysed("bert").with_(route=None)
    after = DecideRoute()(before)
    assert after.graph is before.graph
    assert after.with_(route=None) == before
    assert after.stage is Stage.TYPED
