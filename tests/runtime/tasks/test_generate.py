"""generate: what each prompt goes on with, as transformers has it, whatever shares the call."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import headrace
from tests.generating import transformers_tokens
from tests.words import bert_like

NEW = 8
TEXTS = [[5, 6, 7, 8, 9, 10, 11], [20, 30, 40], list(range(50, 70))]
PAIRS = ("t5", "bart", "marian")


def tokens(found: list[headrace.Generation]) -> list[list[int]]:
    return [list(one.token_ids) for one in found]


@pytest.mark.parametrize("name", PAIRS)
def test_encoder_decoders_make_the_tokens_of_transformers(tiny: Any, compiled: Any, name: str) -> None:
    head = "AutoModelForSeq2SeqLM"
    eager, model = tiny(name, head), compiled(name, head, "reference", task="generate", pooling="mean")
    wanted = [transformers_tokens(eager, text, NEW) for text in TEXTS]
    assert tokens(model.generate(TEXTS, max_new_tokens=NEW)) == wanted
    assert [tokens(model.generate([text], max_new_tokens=NEW))[0] for text in TEXTS] == wanted
    assert model.engine.lanes[headrace_cross()].executable.calls == 2 * len(TEXTS)  # once a text, whatever was made
    assert not model.engine.decoding().lane.state.store.used()


def headrace_cross() -> Any:
    from headrace.ir import OutputKind

    return OutputKind.CROSS


@pytest.mark.parametrize(
    ("name", "head"),
    [("t5", "AutoModelForSeq2SeqLM"), ("bart", "AutoModelForSeq2SeqLM"), ("qwen3-next", "AutoModelForCausalLM")],
)
def test_beams_find_what_transformers_finds(tiny: Any, compiled: Any, name: str, head: str) -> None:
    """Beams that share blocks and part, of prompts of other lengths beside each other and one that follows none."""
    pooling = "last" if name == "qwen3-next" else "mean"
    eager, model = tiny(name, head), compiled(name, head, "reference", task="generate", pooling=pooling)
    alone = model.generate([TEXTS[1]], max_new_tokens=NEW)
    parts = model.generate_iter([TEXTS[1]], max_new_tokens=NEW)
    first = next(parts)
    assert tokens(model.generate(TEXTS, max_new_tokens=NEW, beams=3)) == [beams(eager, text) for text in TEXTS]
    assert [part.generation for part in (first, *parts)][-1] == alone[0]
    assert not model.engine.decoding().lane.state.store.used()


@torch.no_grad()
def beams(model: Any, ids: list[int]) -> list[int]:
    """The new tokens of transformers' beam search."""
    given = torch.tensor([ids])
    made = model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=NEW, do_sample=False, num_beams=3
    )[0].tolist()
    return made[1:] if model.config.is_encoder_decoder else made[len(ids) :]


def test_cross_keys_of_a_text_that_is_over_are_not_read(tiny: Any, compiled: Any) -> None:
    """The next text takes its blocks, and is longer and then shorter."""
    head = "AutoModelForSeq2SeqLM"
    eager, model = tiny("t5", head), compiled("t5", head, "reference", task="generate", pooling="mean")
    for text in (TEXTS[1], TEXTS[2], TEXTS[0], TEXTS[1]):
        assert tokens(model.generate([text], max_new_tokens=NEW)) == [transformers_tokens(eager, text, NEW)]
    parts = model.generate_iter([TEXTS[2]], max_new_tokens=NEW)
    next(parts, None)
    parts.close()  # in the middle
    assert not model.engine.decoding().lane.state.store.used()
    assert tokens(model.generate([TEXTS[0]], max_new_tokens=NEW)) == [transformers_tokens(eager, TEXTS[0], NEW)]


@pytest.fixture(scope="module")
def decoder(compiled: Any) -> Any:
    return compiled("llama", "AutoModelForCausalLM", "reference", task="generate", pooling="last")


def test_a_decoder_makes_the_tokens_of_transformers(tiny: Any, decoder: Any) -> None:
    eager = tiny("llama", "AutoModelForCausalLM")
    assert tokens(decoder.generate(TEXTS, max_new_tokens=NEW)) == [
        transformers_tokens(eager, text, NEW) for text in TEXTS
    ]


def test_the_same_seed_gives_the_same_text_whatever_shares_the_batch(decoder: Any) -> None:
    options = {"max_new_tokens": NEW, "temperature": 1.0, "ignore_eos": True}
    alone = [tokens(decoder.generate([text], seed=7, **options))[0] for text in TEXTS]
    assert tokens(decoder.generate(TEXTS, seed=7, **options)) == alone
    several = decoder.generate(TEXTS, seed=7, n=3, **options)
    assert [(one.index, len(one.token_ids)) for one in several] == [(index, NEW) for _ in TEXTS for index in range(3)]
    assert tokens(several[::3]) == alone
    assert tokens(decoder.generate(TEXTS, seed=8, **options)) != alone


def test_parts_make_up_the_whole(decoder: Any) -> None:
    whole = decoder.generate(TEXTS, max_new_tokens=NEW)
    last = {
        part.prompt: part.generation for part in decoder.generate_iter(TEXTS, max_new_tokens=NEW) if part.generation
    }
    assert [last[place] for place in range(len(TEXTS))] == whole
    told: dict[int, list[int]] = {place: [] for place in range(len(TEXTS))}
    for part in decoder.generate_iter(TEXTS, max_new_tokens=NEW):
        told[part.prompt] += part.token_ids
    assert list(told.values()) == tokens(whole)


def test_log_probabilities_are_the_models_own(tiny: Any, decoder: Any) -> None:
    (one,) = decoder.generate([TEXTS[0]], max_new_tokens=3, temperature=0.7, seed=1, logprobs=2, ignore_eos=True)
    ids = torch.tensor([TEXTS[0] + list(one.token_ids)])
    with torch.no_grad():
        logits = tiny("llama", "AutoModelForCausalLM")(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    known = logits[len(TEXTS[0]) - 1 : -1].log_softmax(-1)
    for place, (token, told) in enumerate(zip(one.token_ids, one.logprobs, strict=True)):
        assert told.token_id == token
        assert told.logprob == pytest.approx(float(known[place, token]), abs=1e-5)
        assert [token for token, _ in told.top] == known[place].topk(2).indices.tolist()


def test_other_tasks_of_the_model_answer_beside(decoder: Any) -> None:
    before = decoder([TEXTS[0]], task="embed")[0]
    parts = decoder.generate_iter([TEXTS[1]], max_new_tokens=NEW)
    next(parts, None)
    assert (decoder([TEXTS[0]], task="embed")[0] == before).all()
    assert [part.generation for part in parts][-1] == decoder.generate([TEXTS[1]], max_new_tokens=NEW)[0]


def test_texts_and_stop_strings(tiny: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", headrace.HeadraceWarning)
        model = headrace.compile(
            tiny("llama", "AutoModelForCausalLM"),
            target="reference",
            task="generate",
            pooling="last",
            tokenizer=bert_like(),
        )
        (whole,) = model.generate("w5 w6", max_new_tokens=NEW, ignore_eos=True)
        assert whole.finish_reason == "length"
        assert whole.text
        word = whole.text.split()[1]
        (cut,) = model.generate(["w5 w6"], max_new_tokens=NEW, ignore_eos=True, stop=word)
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(word)]


@pytest.mark.parametrize(
    ("given", "met"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temprature": 1}, "but 'temperature'"),
        ({"top_p": 2.0}, "top_p is 2.0"),
    ],
)
def test_options_that_are_refused(decoder: Any, given: Any, met: str) -> None:
    with pytest.raises(headrace.InputError, match=met):
        decoder.generate(TEXTS, **given)


@pytest.mark.parametrize("prompts", [[[]], [3.5], [[5, 96]], [[-1]], ["a text"]])
def test_prompts_that_are_refused(decoder: Any, prompts: Any) -> None:
    with pytest.raises(headrace.HeadraceError):
        decoder.generate(prompts)
    assert not decoder.engine.decoding().lane.state.store.used()


def test_a_prompt_that_fills_the_model_is_refused(decoder: Any) -> None:
    with pytest.raises(headrace.InputTooLongError, match="leaves no room for a new one"):
        decoder.generate([[5] * 64])
    (last,) = decoder.generate([[5] * 63])
    assert (len(last.token_ids), last.finish_reason) == (1, "length")


@pytest.mark.parametrize(
    "name",
    [
        "gemma3",  # two groups of caches
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "llama4-chunked", "qwen3-next", "rwkv")),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("t5", "bart")),
    ],
)
def test_compiled_code_makes_the_tokens_of_transformers(tiny: Any, compiled: Any, name: str) -> None:
    head = "AutoModelForSeq2SeqLM" if name in {"t5", "bart"} else "AutoModelForCausalLM"
    eager = tiny(name, head)
    model = compiled(name, head, "cpu", task="generate", pooling="last")
    assert tokens(model.generate(TEXTS, max_new_tokens=NEW)) == [
        transformers_tokens(eager, text, NEW) for text in TEXTS
    ]
    assert not model.engine.decoding().lane.state.store.used()


@pytest.mark.parametrize(("name", "head"), [("qwen3-next", "AutoModelForCausalLM"), ("t5", "AutoModelForSeq2SeqLM")])
def test_a_saved_model_generates_as_before(compiled: Any, tmp_path: Any, name: str, head: str) -> None:
    pooling = "last" if name != "t5" else "mean"
    model = compiled(name, head, "reference", task="generate", pooling=pooling)
    wanted = model.generate(TEXTS, max_new_tokens=NEW)
    assert headrace.load(model.save(tmp_path / "m")).generate(TEXTS, max_new_tokens=NEW) == wanted
