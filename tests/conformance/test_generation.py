"""Real weights make, greedily, the very tokens of transformers: alone, together, joining and leaving, in pieces."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers

import headrace
from headrace.examples.models import folder

NEW = 64
SHARED = "You are a careful assistant. Answer in one short sentence, and say so where you do not know. "
TEXTS = (
    "The capital of France is", "Once upon a time, in a village by the sea,", "def fibonacci(n):", "2 + 2 =",
    "The history of the Roman empire begins with", "A recipe for bread:", "Dear Sir or Madam,", "The", "Water boils at",
    "In 1969, two men", "The three laws of thermodynamics are these. First,", "To be, or not to be,",
    "Q: Who are you?\nA:", "Le chat est", "SELECT name FROM", "The quick brown fox jumps over the lazy dog. " * 12,
    *(SHARED + asked for asked in ("What is a whale?", "What is a star?", "Who wrote Hamlet?", "Why is the sky blue?")),
)  # fmt: skip

pytestmark = pytest.mark.slow(reason="on compiled targets: test_decoding.py has the same loops on the reference")


@pytest.fixture(scope="module")
def right() -> list[list[int]]:
    """The new tokens of the eager model in float32, each text alone."""
    where = folder("smollm2")
    eager = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(where)
    made = []
    for text in TEXTS:
        given = tokenizer(text, return_tensors="pt")
        out = eager.eval().generate(**given, max_new_tokens=NEW, do_sample=False)
        made.append(out[0, given["input_ids"].shape[1] :].tolist())
    return made


@pytest.fixture(scope="module", params=["cpu"])
def model(request: pytest.FixtureRequest) -> Any:
    return headrace.compile(folder("smollm2"), target=request.param, task="generate", progress=False)


def tokens(found: list[headrace.Generation]) -> list[list[int]]:
    return [list(one.token_ids) for one in found]


def test_alone(model: Any, right: list[list[int]]) -> None:
    assert [tokens(model.generate(text, max_new_tokens=NEW))[0] for text in TEXTS] == right


def test_in_one_batch_with_prefixes_that_are_known(model: Any, right: list[list[int]]) -> None:
    before = model.engine.decoding().tokens_known
    assert tokens(model.generate(list(TEXTS), max_new_tokens=NEW)) == right
    assert model.engine.decoding().tokens_known > before


def test_joining_and_leaving_in_pieces_of_random_size(model: Any, right: list[list[int]]) -> None:
    chance, loop = random.Random(0), model.engine.decoding()
    budget = loop.scheduler.tokens
    streams = {place: iter(model.generate_iter(TEXTS[place], max_new_tokens=NEW)) for place in range(len(TEXTS))}
    waiting, running, found = list(streams), list[int](), dict[int, list[int]]()
    chance.shuffle(waiting)
    try:
        while waiting or running:
            loop.scheduler.tokens = chance.choice((3, 17, 64, budget))
            if waiting and (not running or chance.random() < 0.2):
                running.append(waiting.pop())
            place = chance.choice(running)
            if len(found) % 5 == 4 and chance.random() < 0.02:  # a reader who stops, and asks again
                streams[place].close()
                streams[place] = iter(model.generate_iter(TEXTS[place], max_new_tokens=NEW))
            part = next(streams[place])
            if part.generation is not None:
                found[place] = list(part.generation.token_ids)
                running.remove(place)
    finally:
        loop.scheduler.tokens = budget
    assert [found[place] for place in range(len(TEXTS))] == right
    assert not loop.lane.state.store.used()
