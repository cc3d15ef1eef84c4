"""Contract C, word for word: every head on every route with either prefill, and every message."""

import itertools

import pytest

from headrace.errors import TaskNotEnabledError
from headrace.ir import Activation, AttentionType, Head, Labels, Prefill, RecurrentSpec, Route, State, Task
from headrace.tasks import SINGLE_PASS_HINT, Tasks, decide, enabled, offered, preferred, refusal, select
from tests.synthetic import facts, labels

CHUNKED, SINGLE = Prefill.CHUNKED, Prefill.SINGLE_PASS
ROUTES = {
    State.CUSTOM: Route(State.CUSTOM, "B1", "registered", custom="mine"),
    State.ENCODER_DECODER: Route(State.ENCODER_DECODER, "B2", "cross"),
    State.ENCODER_ONLY: Route(State.ENCODER_ONLY, "B3", "bidirectional"),
    State.HYBRID: Route(State.HYBRID, "B4", "recurrent"),
    State.DECODER: Route(State.DECODER, "B5", "causal"),
}
TYPE = {
    State.CUSTOM: AttentionType.DECODER,
    State.ENCODER_DECODER: AttentionType.ENCODER_DECODER,
    State.ENCODER_ONLY: AttentionType.ENCODER_ONLY,
    State.HYBRID: AttentionType.DECODER,
    State.DECODER: AttentionType.DECODER,
}
# Written out once more, by hand: a table in the code that changes must change here too.
OFFERS = {
    (Head.NONE, 0): {"embed", "token_embed"},
    (Head.SEQUENCE, 3): {"classify"},
    (Head.SEQUENCE, 1): {"classify", "score"},
    (Head.TOKEN, 3): {"token_classify"},
    (Head.TOKEN, 1): {"token_classify"},
    (Head.SPAN, 0): {"answer_question"},
    (Head.CHOICE, 0): {"multiple_choice"},
    (Head.MASKED_LM, 0): {"fill_mask"},
    (Head.CAUSAL_LM, 0): {"generate", "embed", "token_embed"},
    (Head.SEQ2SEQ_LM, 0): {"generate", "embed", "token_embed"},
    (Head.OTHER, 0): set(),
}
TOKEN_LEVEL = {"token_classify", "token_embed", "fill_mask", "multi_embed", "answer_question", "raw"}
POOLED = {"embed", "classify", "zero_shot_classify", "multiple_choice", "score", "sparse_embed"}


def decided(head, state, prefill, **changes):
    """A program with its route and prefill; `head` is the kind and the number of labels."""
    kind, count = head
    recurrent = (RecurrentSpec("scan", 0, "selective_scan"),) if state is State.HYBRID else ()
    made = {"head": kind, "labels": labels(count) if count else None, "recurrent": recurrent, "prefill": prefill}
    return facts(TYPE[state], **(made | {"route": ROUTES[state]} | changes))


def served(program):
    return {d.task.value for d in decide(program) if d.supported}


EVERY = list(itertools.product(OFFERS, ROUTES, Prefill))


@pytest.mark.parametrize(("head", "state", "prefill"), EVERY)
def test_supported_is_what_is_offered_and_enabled(head, state, prefill):
    """C1 to C4."""
    program = decided(head, state, prefill)
    opens = POOLED | (TOKEN_LEVEL if prefill is SINGLE else set())
    opens |= {"generate"} if state in (State.DECODER, State.HYBRID, State.ENCODER_DECODER) else set()
    assert set(offered(program)) == OFFERS[head]
    assert enabled(program.decision.route, program.decision.prefill) == opens
    assert served(program) == OFFERS[head] & opens


@pytest.mark.parametrize(("head", "state", "prefill"), EVERY)
def test_every_offered_task_is_listed_sorted_with_a_reason(head, state, prefill):
    """C4 and C6."""
    decisions = decide(decided(head, state, prefill))
    assert [d.task.value for d in decisions] == sorted(OFFERS[head])
    for decision in decisions:
        assert decision.reason.startswith("offered by ")
        if decision.supported:
            assert decision.reason.endswith(f"enabled by {ROUTES[state].name}")
        elif decision.task in TOKEN_LEVEL:
            assert f"but {decision.task} needs every token of a sequence in one step" in decision.reason
            assert f"{ROUTES[state].name} prefills in chunks" in decision.reason
            assert 'prefill="single_pass"' in decision.reason
        else:
            assert decision.reason.endswith(f"but {ROUTES[state].name} does not enable {decision.task}")


def test_one_label_alone_makes_a_score():
    assert "score" in offered(decided((Head.SEQUENCE, 1), State.DECODER, CHUNKED))
    assert "score" not in offered(decided((Head.SEQUENCE, 2), State.DECODER, CHUNKED))
    assert "score" not in offered(decided((Head.SEQUENCE, 0), State.DECODER, CHUNKED))


def test_a_label_of_entailment_makes_zero_shot_classification():
    """Beside others, whatever its case and place; of texts alone."""
    for names, offers in {
        ("CONTRADICTION", "ENTAILMENT"): True, ("entail", "neutral", "x"): True, ("no", "entirely"): False,
        ("entailment",): False,
    }.items():  # fmt: skip
        made = Labels(names, Activation.SOFTMAX, "test")
        program = decided((Head.SEQUENCE, len(names)), State.ENCODER_ONLY, SINGLE, labels=made)
        assert ("zero_shot_classify" in offered(program)) is offers
        assert preferred(program) == ("score" if len(names) == 1 else "classify")


def test_sentence_transformers_modules_add_what_they_define():
    program = decided((Head.TOKEN, 3), State.ENCODER_ONLY, SINGLE, declared_tasks=(Task.EMBED, Task.TOKEN_CLASSIFY))
    assert offered(program) == {
        Task.TOKEN_CLASSIFY: "the token head",
        Task.EMBED: "the sentence-transformers modules",
    }


def test_nothing_offered_is_empty_and_no_exception():
    """C4: `.tasks` never raises."""
    tasks = Tasks(decide(decided((Head.OTHER, 0), State.ENCODER_ONLY, SINGLE)))
    assert list(tasks) == []
    assert len(tasks) == 0
    assert not tasks
    assert tasks.refused == {}
    assert repr(tasks) == "Tasks(none)"
    assert "embed" not in tasks


def test_no_route_yet_is_empty_and_no_exception():
    assert decide(facts(AttentionType.DECODER)) == ()
    assert select(facts(AttentionType.DECODER), None) == (None, None)
    with pytest.raises(TaskNotEnabledError, match="has no route yet, so it supports no task; embed was selected"):
        select(facts(AttentionType.DECODER), "embed")


def test_discovery_lists_the_refused_beside_the_supported():
    tasks = Tasks(decide(decided((Head.CAUSAL_LM, 0), State.DECODER, CHUNKED)))
    assert list(tasks) == ["embed", "generate"]
    assert "token_embed" not in tasks
    assert list(tasks.refused) == ["token_embed"]
    assert not tasks["token_embed"].supported
    assert tasks[Task.EMBED].supported
    assert repr(tasks) == "Tasks(embed, generate; refused: token_embed)"
    with pytest.raises(KeyError):
        tasks["classify"]


# C7: the head's default where the route allows it.
DEFAULTS = {
    (Head.NONE, 0): "embed",
    (Head.SEQUENCE, 3): "classify",
    (Head.SEQUENCE, 1): "score",
    (Head.TOKEN, 3): "token_classify",
    (Head.SPAN, 0): "answer_question",
    (Head.CHOICE, 0): "multiple_choice",
    (Head.MASKED_LM, 0): "fill_mask",
    (Head.CAUSAL_LM, 0): "generate",
    (Head.SEQ2SEQ_LM, 0): "generate",
    (Head.OTHER, 0): "embed",
}


@pytest.mark.parametrize("head", DEFAULTS)
def test_default_task_of_a_head(head):
    assert preferred(decided(head, State.DECODER, SINGLE)) == DEFAULTS[head]


@pytest.mark.parametrize("head", [head for head in DEFAULTS if head[0] is not Head.OTHER])
def test_a_supported_default_is_taken_without_a_warning(head):
    assert select(decided(head, State.DECODER, SINGLE), None) == (DEFAULTS[head], None)


def test_the_modules_default_goes_before_the_heads():
    program = decided((Head.CAUSAL_LM, 0), State.DECODER, CHUNKED, declared_default=Task.EMBED)
    assert select(program, None) == (Task.EMBED, None)


def test_the_users_wish_goes_before_all():
    program = decided((Head.CAUSAL_LM, 0), State.DECODER, CHUNKED, declared_default=Task.EMBED)
    assert select(program, "generate") == (Task.GENERATE, None)


def test_a_filtered_default_is_one_warning_from_what_to_what():
    """C6: generate on a bidirectional program."""
    task, warning = select(decided((Head.CAUSAL_LM, 0), State.ENCODER_ONLY, SINGLE), None)
    assert task is Task.EMBED
    assert warning == (
        "The default task is embed instead of generate: offered by the causal-lm head, but EncoderOnlyState does not "
        "enable generate."
    )


def test_a_token_level_default_of_a_decoder_falls_to_embed_with_its_reason():
    """The modules define token embeddings first, and pooled ones too."""
    program = decided(
        (Head.NONE, 0),
        State.DECODER,
        CHUNKED,
        declared_tasks=(Task.TOKEN_EMBED, Task.EMBED),
        declared_default=Task.TOKEN_EMBED,
    )
    task, warning = select(program, None)
    assert task is Task.EMBED
    assert warning is not None
    assert warning.startswith("The default task is embed instead of token_embed: ")
    assert SINGLE_PASS_HINT in warning


def test_nothing_supported_and_nothing_asked_is_no_error():
    assert select(decided((Head.TOKEN, 3), State.DECODER, CHUNKED), None) == (None, None)
    assert select(decided((Head.OTHER, 0), State.ENCODER_ONLY, SINGLE), None) == (None, None)


def refused(program, wish):
    with pytest.raises(TaskNotEnabledError) as error:
        select(program, wish)
    assert str(error.value) == refusal(program, wish)
    return str(error.value)


@pytest.mark.parametrize(("head", "state", "prefill"), EVERY)
def test_a_refusal_holds_enabled_selected_and_offered(head, state, prefill):
    """C5, for every task of every program."""
    program = decided(head, state, prefill)
    for wish in sorted(set(Task) - served(program)):
        text = refused(program, wish)
        allowed = ", ".join(sorted(enabled(program.decision.route, prefill)))
        assert f"The task {wish} is not supported." in text
        assert f"{program.decision.route.name} with {prefill} prefill enables: {allowed}." in text
        assert f"Selected: {wish}." in text
        assert f"The model offers: {', '.join(sorted(OFFERS[head])) or 'nothing'}." in text


@pytest.mark.parametrize(("head", "state", "prefill"), EVERY)
def test_which_of_the_two_hints(head, state, prefill):
    """C5: the first names what is supported; the second never suggests another task."""
    program = decided(head, state, prefill)
    supported = sorted(served(program))
    for wish in sorted(set(Task) - set(supported)):
        hint = refused(program, wish).split("The model offers: ", 1)[1].split(". ", 1)[1]
        if supported:
            assert hint.startswith(f"Choose one of: {', '.join(supported)}")
            opens = prefill is CHUNKED and wish in OFFERS[head] & TOKEN_LEVEL
            assert (f"or {SINGLE_PASS_HINT} to enable {wish}" in hint) == opens
        else:
            assert "hoose" not in hint
            assert "instead" not in hint
            assert hint.startswith(("To make it work", "The model offers", "Nothing can be served"))


def test_first_hint_of_a_decoder_that_offers_both():
    program = decided((Head.NONE, 0), State.DECODER, CHUNKED)
    assert refused(program, "token_embed") == (
        "The task token_embed is not supported. DecoderState with chunked prefill enables: classify, embed, generate, "
        "multiple_choice, score, sparse_embed, zero_shot_classify. Selected: token_embed. The model offers: embed, "
        'token_embed. Choose one of: embed, or compile with prefill="single_pass" to enable token_embed.'
    )


def test_second_hint_of_a_decoder_with_a_token_head():
    program = decided((Head.TOKEN, 3), State.DECODER, CHUNKED)
    assert refused(program, "token_classify") == (
        "The task token_classify is not supported. DecoderState with chunked prefill enables: classify, embed, "
        "generate, multiple_choice, score, sparse_embed, zero_shot_classify. Selected: token_classify. The model "
        'offers: token_classify. To make it work, compile with prefill="single_pass": every token of a sequence is '
        "then present in one step."
    )


def test_second_hint_where_another_task_was_asked_for():
    """Not to choose token_classify: only how what the model offers is made to work."""
    text = refused(decided((Head.TOKEN, 3), State.DECODER, CHUNKED), "embed")
    assert text.endswith(
        'The model offers token_classify alone, which works when you compile with prefill="single_pass".'
    )


def test_second_hint_where_nothing_is_offered():
    program = decided(
        (Head.OTHER, 0), State.ENCODER_ONLY, SINGLE, head_note="the model returns boxes; served are logits"
    )
    assert refused(program, "embed").endswith(
        "The model offers: nothing. Nothing can be served: the model returns boxes; served are logits."
    )
    assert refused(decided((Head.OTHER, 0), State.ENCODER_ONLY, SINGLE), "embed").endswith(
        "Nothing can be served: the model offers no task."
    )


def test_single_pass_makes_a_decoders_token_head_work():
    program = decided((Head.TOKEN, 3), State.DECODER, SINGLE)
    assert select(program, "token_classify") == (Task.TOKEN_CLASSIFY, None)
    assert select(program, None) == (Task.TOKEN_CLASSIFY, None)


def test_single_pass_is_not_suggested_to_who_has_it():
    text = refused(decided((Head.NONE, 0), State.DECODER, SINGLE), "fill_mask")
    assert "single_pass" not in text.split("Selected:")[1]


@pytest.mark.parametrize("wish", ["nonsense", "", "EMBED", "embed "])
def test_an_unknown_task_is_refused_alike(wish):
    text = refused(decided((Head.NONE, 0), State.ENCODER_ONLY, SINGLE), wish)
    assert f"Selected: {wish}." in text
    assert text.endswith("Choose one of: embed, token_embed.")


def test_a_custom_state_is_called_by_its_name():
    text = refused(decided((Head.NONE, 0), State.CUSTOM, SINGLE), "generate")
    assert "mine with single_pass prefill enables" in text
