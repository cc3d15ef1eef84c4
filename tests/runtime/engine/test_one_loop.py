"""Tasks that share a program: one copy of the weights and one loop, in whose steps their texts meet."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from tests.conformance import oracle
from tests.generating import greedy, prompts

NEW = 8


@pytest.fixture(scope="module", params=["qwen3", "qwen3-next", "gemma3"])
def both(request: pytest.FixtureRequest, tiny: Any) -> tuple[Any, Any]:
    """The eager model, and one that generates and embeds; neither has a limit that these texts reach."""
    eager = tiny(request.param, "AutoModelForCausalLM")
    return eager, headrace.compile(eager, target="reference", task="generate", beside=("embed",), pooling="mean")


def backbone(eager: Any) -> Any:
    return eager.base_model


def test_one_program_answers_both(both: Any) -> None:
    eager, model = both
    texts = prompts(96, 5, 17, 1, 11)
    assert len(model.engine.lanes) == 1
    found = list(model(texts, task="embed"))
    oracle.require_close(found, backbone(eager), texts, oracle.pooled("mean"))
    made = model.generate(texts, max_new_tokens=NEW, ignore_eos=True, temperature=0)
    assert [list(one.token_ids) for one in made] == [greedy(eager, text, NEW) for text in texts]
    assert len(model.engine.lanes) == len(model.engine._loops) == 1


def test_a_vector_between_two_tokens_of_another_text(both: Any) -> None:
    """Each is what it is alone, and they do share steps."""
    eager, model = both
    texts, others = prompts(96, 9, 14), prompts(96, 23, 4, seed=3)
    loop = model.engine.decoding()
    streams = [model.generate_iter(text, max_new_tokens=NEW, ignore_eos=True, temperature=0) for text in texts]
    begun = [next(stream) for stream in streams]
    calls = model.engine.lanes[next(iter(model.engine.lanes))].executable.calls
    found = list(model(others, task="embed"))
    assert loop.lane.executable.calls == calls + 1  # the texts' next tokens came with it
    oracle.require_close(found, backbone(eager), others, oracle.pooled("mean"))
    for text, first, stream in zip(texts, begun, streams, strict=True):
        made = [*first.token_ids, *(token for part in stream for token in part.token_ids)]
        assert made == greedy(eager, text, NEW)
    assert not loop.lane.state.store.used()


def test_what_is_beside_is_refused_by_name(tiny: Any) -> None:
    lowered = headrace.lower(tiny("qwen3", "AutoModelForCausalLM"), target="reference")
    with pytest.raises(headrace.TaskNotEnabledError, match="classify"):
        lowered.compile(task="generate", beside=("classify",))
    with pytest.raises(headrace.InputError, match="beside is 'embed'; a tuple of tasks' names"):
        lowered.compile(task="generate", beside="embed")


def test_saved_and_loaded(both: Any, tmp_path: Any) -> None:
    _, model = both
    texts = prompts(96, 5, 17)
    again = headrace.load(model.save(tmp_path / "m"))
    assert [list(x) for x in again(texts, task="embed")] == [list(x) for x in model(texts, task="embed")]
    options = {"max_new_tokens": NEW, "ignore_eos": True, "temperature": 0}
    assert again.generate(texts, **options) == model.generate(texts, **options)
