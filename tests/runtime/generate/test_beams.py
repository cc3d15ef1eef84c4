"""Beam search finds what transformers' finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.errors import InputError
from headrace.frontend.load.decoding import held_config, read_decoding
from headrace.ir import Beams, BeamStop, Decoding
from headrace.runtime.generate.answer import Model, Start
from headrace.runtime.generate.batch import batched
from headrace.runtime.generate.beams import BeamSearch, find_candidates, held_scores
from headrace.runtime.generate.generation import Generation
from headrace.runtime.generate.options import GenerateOptions, find_beams, read_options
from tests.runtime.generate.test_answer import HEADS, PROMPTS, model_of, pair


@torch.no_grad()
def searched(kind: str, prompts: list[list[int]], config: dict[str, Any], **given: Any) -> list[Generation]:
    """The answers of prompts whose beams share steps, each row's logits of its sequence alone."""
    module = model_of(kind)
    width = module.get_output_embeddings().weight.shape[0]
    decoding = read_decoding(config, width, pair=pair(kind))
    options = read_options(decoding, **given)
    beams, model = find_beams(options, decoding, width), Model(decoding, width)
    assert beams is not None
    starts = [Start(model, np.array(ids), options, source=pair(kind)) for ids in prompts]
    searches = [BeamSearch(start, beams, width) for start in starts]
    while going := [number for number, one in enumerate(searches) if not one.done]:
        logits = []
        for number in going:
            for row in searches[number].rows:
                ids = torch.from_numpy(np.concatenate([row.prompt, row.new]))[None]
                both = {"input_ids": torch.tensor([prompts[number]]), "decoder_input_ids": ids}
                logits.append(module(**(both if pair(kind) else {"input_ids": ids})).logits[0, -1])
        rows = batched([row for number in going for row in searches[number].rows], width)
        scores = held_scores([searches[number] for number in going])
        found = find_candidates(torch.stack(logits), rows, scores, beams, searches[0].keep)
        for place, number in enumerate(going):
            searches[number].step(*(part[place].numpy() for part in found))
    return [one.generation() for one in searches]


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(
    "entries",
    [
        {"num_beams": 4},
        {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0},
        {"num_beams": 2, "early_stopping": "never", "length_penalty": 0.6, "eos_token_id": [2, 17, 30, 44, 60, 62]},
        {"num_beams": 3, "length_penalty": -1.0, "eos_token_id": [2, 5, 9, 17, 30, 44, 60, 62]},
        {"num_beams": 4, "renormalize_logits": True, "bad_words_ids": [[0], [8], [40, 41]], "forced_eos_token_id": 2},
        {"num_beams": 4, "no_repeat_ngram_size": 2, "min_length": 6, "max_length": 13, "early_stopping": True},
        {"num_beams": 2, "repetition_penalty": 1.6, "forced_bos_token_id": 6},
        {"num_beams": 3, "renormalize_logits": True, "sequence_bias": [[[9], -9.0], [[28], 4.0], [[33, 21], 9.0]]},
    ],
    ids=lambda entries: "+".join(f"{name}={value}" for name, value in entries.items() if name != "eos_token_id"),
)
def test_tokens_are_those_of_generate(kind: str, entries: dict[str, Any]) -> None:
    module = model_of(kind)
    limits = {} if "max_length" in entries else {"max_new_tokens": 9}
    found = searched(kind, PROMPTS, {**held_config(module), **entries}, **limits)
    for ids, one in zip(PROMPTS, found, strict=True):
        source = torch.tensor([ids])
        expected = module.generate(source, attention_mask=torch.ones_like(source), do_sample=False, **entries, **limits)
        held = 1 if pair(kind) else len(ids)
        assert list(one.token_ids) == expected[0, held:].tolist()


def test_a_search_alone_is_a_search_in_any_batch() -> None:
    config = {"eos_token_id": [2, 5, 9], "num_beams": 3, "decoder_start_token_id": 2}
    together = searched("bart", PROMPTS, config, max_new_tokens=9)
    alone = [one for ids in PROMPTS for one in searched("bart", [ids], config, max_new_tokens=9)]
    assert together == alone


@pytest.mark.parametrize(
    ("stop", "left", "done"),
    [
        (BeamStop.UNLIKELY, -2.4, True),  # over 2 tokens, it is below the worse of the whole, -1.0
        (BeamStop.UNLIKELY, -1.95, False),
        (BeamStop.FIRST, -1.95, True),
        (BeamStop.NEVER, -2.4, False),  # over the most tokens, it would be above
    ],
)
def test_a_search_ends_once_nothing_better_is_expected(stop: BeamStop, left: float, done: bool) -> None:
    start = Start(Model(Decoding(ends=(2,)), 50), np.array([7]), GenerateOptions(max_new_tokens=10))
    search = BeamSearch(start, Beams(2, 1.0, stop), 50)
    none = np.zeros(4, np.int64)
    first = search.step(np.array([-1.0, -1.5, -4, -5], np.float32), np.array([2, 9, 8, 6]), none)
    assert (first.tolist(), search.done) == ([0, 0], False)
    search.step(np.array([-1.8, left, -2.5, -2.6], np.float32), np.array([2, 9, 8, 6]), none)
    assert search.done == done


def test_beams_are_the_callers_else_the_folders() -> None:
    folder = Decoding(beams=Beams(4, 2.0, BeamStop.NEVER, renormalize=True))
    assert find_beams(GenerateOptions(), folder, 9) == folder.beams
    assert find_beams(GenerateOptions(beams=2), folder, 9) == Beams(2, 2.0, BeamStop.NEVER, renormalize=True)
    assert find_beams(GenerateOptions(beams=1), folder, 9) is None
    assert find_beams(GenerateOptions(beams=3), Decoding(), 3) == Beams(3)
    assert find_beams(GenerateOptions(), Decoding(), 9) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": 0.5}, r"temperature cannot be followed beside a beam search \(the folder's num_beams is 4\)"),
        ({"temperature": 0.5, "n": 2}, "temperature and n cannot be followed .* Leave them out, or pass beams=1"),
        ({"stop": "x", "beams": 3}, r"stop cannot be followed beside a beam search \(beams is 3\). Leave it out"),
        ({"logprobs": 0}, "logprobs cannot be followed"),
        ({"choice": "x"}, "choice cannot be followed"),
        ({"json_schema": {}}, "json_schema cannot be followed"),
        (
            {"beams": 10},
            "beams is 10, and a text can begin with 9 tokens, the model's vocabulary. Pass fewer as",
        ),
    ],
)
def test_what_is_not_served_beside_beams_is_refused(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        find_beams(GenerateOptions(**given), Decoding(beams=Beams(4)), 9)


def test_a_folder_that_asks_for_more_beams_than_the_vocabulary_has_tokens_is_refused() -> None:
    with pytest.raises(InputError, match="the folder's num_beams is 4, and a text can begin with 3 tokens"):
        find_beams(GenerateOptions(), Decoding(beams=Beams(4)), 3)
