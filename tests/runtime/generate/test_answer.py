"""Answers grow as transformers' `generate` makes them, from the same logits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from headrace.errors import InputError
from headrace.frontend.load.decoding import held_config, read_decoding
from headrace.ir import Decoding
from headrace.runtime.generate.answer import Model, Start, begin_answers, seed_of
from headrace.runtime.generate.batch import SamplingBatch, batched
from headrace.runtime.generate.generation import Generation, TokenLogprob
from headrace.runtime.generate.options import GenerateOptions, read_options
from headrace.runtime.generate.sampling import known_logprobs, sample
from headrace.runtime.generate.stopping import FinishReason
from tests import tiny, trained

PROMPTS = [[5, 9, 17, 5, 9], [30], [8, 8, 8, 41, 8, 8]]
HEADS = {"llama": "AutoModelForCausalLM", "bart": "AutoModelForSeq2SeqLM", "t5": "AutoModelForSeq2SeqLM"}


@cache
def model_of(kind: str) -> Any:
    return tiny.build(kind, HEADS[kind]).eval()


def pair(kind: str) -> bool:
    return HEADS[kind].endswith("Seq2SeqLM")


@torch.no_grad()
def answered(kind: str, prompts: list[list[int]], decoding: Decoding, options: GenerateOptions) -> list[Generation]:
    """The answers of all prompts, a step at a time, each row's logits of its sequence alone."""
    module = model_of(kind)
    width = module.get_output_embeddings().weight.shape[0]
    model = Model(decoding, width)
    answers = [one for ids in prompts for one in begin_answers(model, np.array(ids), options, source=pair(kind))]
    sources = [ids for ids in prompts for _ in range(options.n)]
    while going := [number for number, one in enumerate(answers) if one.reason is None]:
        rows = []
        for number in going:
            ids = torch.from_numpy(np.concatenate([answers[number].start.held, answers[number].new]))[None]
            given = {"input_ids": torch.tensor([sources[number]]), "decoder_input_ids": ids}
            rows.append(module(**(given if pair(kind) else {"input_ids": ids})).logits[0, -1])
        found = sample(torch.stack(rows), batched([answers[number].row for number in going], width))
        known = known_logprobs(found, [answers[number].row for number in going])
        for place, number in enumerate(going):
            answers[number].push(int(found.ids[place]), known[place])
    return [one.generation() for one in answers]


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(
    "entries",
    [
        {},
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2},
        {"encoder_no_repeat_ngram_size": 1},
        {"min_new_tokens": 9},
        {"min_length": 12, "max_length": 17},
        {"bad_words_ids": [[2], [40], [5, 9]], "suppress_tokens": [7, 11, 12, 13], "begin_suppress_tokens": [41, 42]},
        {"forced_bos_token_id": 6, "begin_suppress_tokens": [2, 9], "forced_eos_token_id": 2},
        {"eos_token_id": [2, 17, 30, 44, 60, 61, 62, 63, 64]},
        {"sequence_bias": [[[33], 4.0], [[33, 34], 6.0]]},
    ],
    ids=lambda entries: "+".join(entries) or "nothing",
)
def test_greedy_tokens_are_those_of_generate(kind: str, entries: dict[str, Any]) -> None:
    module = model_of(kind)
    config = {**held_config(module), **entries}
    limits = {} if "max_length" in entries else {"max_new_tokens": 14}
    found = answered(kind, PROMPTS, *_read(config, kind, limits))
    for ids, one in zip(PROMPTS, found, strict=True):
        source = torch.tensor([ids])
        expected = module.generate(source, attention_mask=torch.ones_like(source), do_sample=False, **entries, **limits)
        held = 1 if pair(kind) else len(ids)
        assert list(one.token_ids) == expected[0, held:].tolist()
        assert one.prompt_tokens == len(ids)


def _read(config: dict[str, Any], kind: str, given: dict[str, Any]) -> tuple[Decoding, GenerateOptions]:
    width = model_of(kind).get_output_embeddings().weight.shape[0]
    decoding = read_decoding(config, width, pair=pair(kind))
    return decoding, read_options(decoding, **given)


def test_the_same_seed_is_the_same_text_whatever_shares_the_batch() -> None:
    given = {"temperature": 1.3, "top_p": 0.95, "seed": 12, "max_new_tokens": 20, "presence_penalty": 0.4, "n": 3}
    decoding, options = _read({}, "llama", given)
    together = answered("llama", PROMPTS, decoding, options)
    alone = [one for ids in PROMPTS for one in answered("llama", [ids], decoding, options)]
    assert together == alone
    assert len({one.token_ids for one in together}) == len(together)
    assert [one.index for one in together] == [0, 1, 2] * 3
    first = answered("llama", PROMPTS, decoding, read_options(decoding, **(given | {"n": 1})))
    assert first == together[::3]


def test_seeds_of_answers_are_apart() -> None:
    found = {seed_of(seed, index) for seed in (-5, 0, 1, (1 << 63) - 1) for index in range(100)}
    assert len(found) == 400
    assert all(-(1 << 63) <= one < 1 << 63 for one in found)
    assert seed_of(7, 0) == 7


def test_an_answer_without_a_seed_draws_one() -> None:
    made = [begin_answers(Model(Decoding(), 50), np.array([1]), GenerateOptions(temperature=1.0))[0] for _ in range(8)]
    assert len({one.row.seed for one in made}) == 8


def test_a_source_that_is_no_text_has_no_tokens() -> None:
    """Of a speech model, whose encoder reads arrays."""
    model = Model(Decoding(start=(7, 8), ends=(2,), encoder_no_repeat=3), 50)
    (answer,) = begin_answers(model, np.empty(0, np.int64), GenerateOptions(max_new_tokens=600), source=True)
    assert answer.row.prompt.tolist() == [7, 8]
    for token in [*range(10, 40)] * 19:
        assert answer.push(token) is None
    assert answer.row.new.tolist() == [*range(10, 40)] * 19
    assert answer.push(2) is FinishReason.STOP
    assert answer.generation().prompt_tokens == 0


def test_log_probabilities_are_kept() -> None:
    decoding, options = _read({}, "llama", {"logprobs": 0, "max_new_tokens": 5})
    (found,) = answered("llama", [[5, 6]], decoding, options)
    assert found.logprobs is not None
    assert [one.token_id for one in found.logprobs] == list(found.token_ids)
    assert all(one.logprob < 0 for one in found.logprobs)


def test_a_text_streams_to_what_it_is() -> None:
    tokenizer = trained.byte_level()
    ids = tokenizer("the quick brown fox 🎊 END jumps")["input_ids"]
    options = GenerateOptions(stop=" END", max_new_tokens=60)
    (answer,) = begin_answers(Model(Decoding(), 500, tokenizer=tokenizer), np.array([1]), options)
    told = ""
    for one in ids:
        ended = answer.push(one)
        told += answer.take()
        if ended:
            break
    found = answer.generation()
    assert told == found.text == "the quick brown fox 🎊"
    assert found.finish_reason is FinishReason.STOP
    assert str(found.finish_reason) == "stop"


def test_what_has_nothing_to_begin_with_is_refused() -> None:
    model = Model(Decoding(), 50)
    with pytest.raises(InputError, match=r"names no token that its decoder begins with. Add decoder_start_token_id"):
        Start(model, np.array([4, 5]), GenerateOptions(), source=True)
    with pytest.raises(InputError, match="The prompt has no tokens: there is nothing to continue"):
        Start(model, np.array([], np.int64), GenerateOptions())
    with pytest.raises(InputError, match="stop needs a tokenizer, and the model has none"):
        Start(model, np.array([4]), GenerateOptions(stop="x"))
    with pytest.raises(InputError, match="choice and json_schema need a tokenizer"):
        begin_answers(model, np.array([4]), GenerateOptions(choice="x"))


@pytest.mark.parametrize(
    ("given", "plain"),
    [({}, True), ({"stop_token_ids": [4], "max_new_tokens": 3}, True), ({"temperature": 1.0}, False),
     ({"logprobs": 0}, False), ({"presence_penalty": 1}, False), ({"logit_bias": {1: 1}}, False)],
)  # fmt: skip
def test_what_asks_for_nothing_but_the_likeliest_token_is_known(given: Any, plain: bool) -> None:
    start = Start(Model(Decoding(ends=(2,)), 50), np.array([4]), GenerateOptions(**given))
    assert start.plain == plain
    asked = batched([start.row(np.arange(1))], 50)
    assert (asked == SamplingBatch()) == plain


def test_a_generation_is_read_at_a_glance() -> None:
    made = Generation("It is 'so'." + "x" * 500, tuple(range(120)), FinishReason.LENGTH, 7, index=2)
    assert len(repr(made)) < 300
    assert repr(made).startswith("Generation(\"It is 'so'.xxx")
    assert repr(made).endswith("120 tokens, 'length', prompt_tokens=7, index=2)")
    known = Generation("a", (5,), FinishReason.STOP, 1, (TokenLogprob(5, -0.5),))
    assert repr(known) == "Generation('a', 1 tokens, 'stop', prompt_tokens=1, logprobs of 1)"
