"""Contract C2: which programs prefill in one pass, and that the pass decides by the one function."""

import pytest

from headrace.ir import AttentionType, Head, Prefill, RecurrentSpec, State
from headrace.lowering.decide import route
from headrace.lowering.decide.enable import EnableTasks
from headrace.lowering.decide.route import DecideRoute
from headrace.lowering.pipeline import analyse
from headrace.tasks import decide
from tests.synthetic import facts, labels

DECODER, ENCODER_ONLY = AttentionType.DECODER, AttentionType.ENCODER_ONLY
SCAN = (RecurrentSpec("scan", 0, "selective_scan"),)
PROGRAMS = {
    State.ENCODER_DECODER: facts(AttentionType.ENCODER, DECODER, AttentionType.ENCODER_DECODER),
    State.ENCODER_ONLY: facts(ENCODER_ONLY),
    State.HYBRID: facts(DECODER, recurrent=SCAN),
    State.DECODER: facts(DECODER),
}
ALWAYS_WHOLE = {State.ENCODER_DECODER, State.ENCODER_ONLY}


@pytest.mark.parametrize("state", PROGRAMS)
@pytest.mark.parametrize("asked", [None, *Prefill])
def test_prefill(state, asked):
    program = EnableTasks(asked)(DecideRoute()(PROGRAMS[state]))
    assert program.decision.route.state is state
    whole = state in ALWAYS_WHOLE or asked is Prefill.SINGLE_PASS
    assert program.decision.prefill is (Prefill.SINGLE_PASS if whole else Prefill.CHUNKED)
    assert {d.task.value: d.supported for d in program.decision.tasks} == {"embed": True, "token_embed": whole}
    assert program.decision.tasks == decide(program)


def test_a_custom_state_sees_whole_sequences(monkeypatch):
    monkeypatch.setattr(route, "registered", {"mine": lambda program: True})
    program = EnableTasks()(DecideRoute()(facts(DECODER)))
    assert program.decision.prefill is Prefill.SINGLE_PASS


def test_mixed_layers_are_gated_by_their_route():
    """Any bidirectional layer needs the whole sequence, so token-level tasks come with it and generate does not."""
    program = EnableTasks()(DecideRoute()(facts(DECODER, ENCODER_ONLY, DECODER, head=Head.CAUSAL_LM)))
    assert {d.task.value: d.supported for d in program.decision.tasks} == {
        "embed": True,
        "generate": False,
        "token_embed": True,
    }


def test_needs_a_route():
    with pytest.raises(AssertionError, match="route comes before enable"):
        EnableTasks()(facts(DECODER))


def test_leaves_all_but_prefill_and_tasks_alone():
    before = DecideRoute()(facts(DECODER, head=Head.SEQUENCE, labels=labels(1)))
    after = EnableTasks(Prefill.SINGLE_PASS)(before)
    assert after.with_(prefill=None, tasks=()) == before


def test_a_decoders_token_head_on_a_real_model(traced):
    """Issue 2: refused by default, with the second hint and what its route enables; served in a single pass."""
    from headrace.errors import TaskNotEnabledError
    from headrace.tasks import select

    made = traced("qwen3", "AutoModelForTokenClassification", num_labels=3)
    chunked = analyse(made.program, made.behaviour)
    with pytest.raises(TaskNotEnabledError) as refused:
        select(chunked, "token_classify")
    assert "enables: classify, embed, generate, multiple_choice, score, sparse_embed, zero_shot_classify." in str(
        refused.value
    )
    assert 'To make it work, compile with prefill="single_pass"' in str(refused.value)
    whole = analyse(made.program, made.behaviour, Prefill.SINGLE_PASS)
    assert select(whole, None) == ("token_classify", None)
