"""Texts keep to the grammar that was asked for, whatever the model would rather say."""

from __future__ import annotations

import builtins
import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from headrace.errors import InputError, TargetError
from headrace.ir import Decoding
from headrace.runtime.generate.answer import Model, begin_answers
from headrace.runtime.generate.batch import batched
from headrace.runtime.generate.guided import Grammar, Grammars
from headrace.runtime.generate.options import GenerateOptions
from headrace.runtime.generate.sampling import sample
from headrace.runtime.generate.stopping import FinishReason
from tests import trained
from tests.runtime.generate.test_detokenizer import llama2

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
KINDS = {"byte_level": trained.byte_level, "llama2": llama2}


@cache
def tokenizer_of(kind: str) -> Any:
    made = KINDS[kind]()
    made.add_special_tokens({"eos_token": "<|end|>"})
    return made


def written(kind: str, seed: int, *, ends: bool = True, temperature: float = 2.0, **given: Any) -> Any:
    """An answer of a model that finds every token about as likely."""
    tokenizer = tokenizer_of(kind)
    width = len(tokenizer) + 7  # heads are padded
    decoding = Decoding(ends=(tokenizer.eos_token_id,) if ends else (), suppressed=(5,))
    options = GenerateOptions(temperature=temperature, max_new_tokens=400, seed=seed, **given)
    (answer,) = begin_answers(Model(decoding, width, tokenizer=tokenizer), np.array([9, 9]), options)
    logits = torch.randn(1, width, generator=torch.Generator().manual_seed(seed))
    while answer.reason is None:
        answer.push(int(sample(logits, batched([answer.row], width)).ids))
    return answer.generation()


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_one_of_the_choices(kind: str) -> None:
    choices = ("quick", "quick brown", "the lazy dog", "liquor jugs", "12345")
    found = [written(kind, seed, choice=choices) for seed in range(40)]
    assert {one.text for one in found} == set(choices)
    assert {one.finish_reason for one in found} == {FinishReason.STOP}


def test_a_choice_ends_without_an_end_token_where_nothing_can_follow() -> None:
    found = written("byte_level", 0, ends=False, choice=["quick", "slow"])
    assert (found.text in {"quick", "slow"}, found.finish_reason) == (True, FinishReason.STOP)


def test_choices_that_only_an_end_token_tells_apart_need_one() -> None:
    tokenizer = tokenizer_of("byte_level")
    options = GenerateOptions(choice=["the", "the quick"])
    with pytest.raises(InputError, match=r"Of the choices \['the', 'the quick'\], one begins another, and the model"):
        Grammars(tokenizer, len(tokenizer), ()).read(options)


def test_a_choice_that_reads_otherwise_is_refused() -> None:
    tokenizer = tokenizer_of("llama2")
    with pytest.raises(
        InputError, match=r"The choice 'a<\|end\|>' cannot be written in the model's tokens, which read"
    ):
        Grammars(tokenizer, len(tokenizer), (0,)).read(GenerateOptions(choice=["a<|end|>"]))
    with pytest.raises(InputError, match="cannot be written"):
        Grammars(tokenizer, 3, (0,)).read(GenerateOptions(choice=["quick"]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_satisfies_its_schema(kind: str) -> None:
    pytest.importorskip("llguidance")
    for seed in range(6):
        found = written(kind, seed, json_schema=SCHEMA)
        assert found.finish_reason is FinishReason.STOP
        read = json.loads(found.text)
        assert set(read) == {"name", "age", "tags"}
        assert len(read["name"]) <= 8
        assert 0 <= read["age"] <= 120
        assert set(read["tags"]) <= {"a", "bc"}


def test_a_place_in_a_grammar_is_each_answers_own() -> None:
    tokenizer = tokenizer_of("byte_level")
    grammar: Grammar | None = Grammars(tokenizer, len(tokenizer), (0,)).read(GenerateOptions(choice=["quick", "the"]))
    assert grammar is not None
    one, other = grammar.begin(), grammar.begin()
    one.advance(tokenizer("quick")["input_ids"][0])
    assert not np.array_equal(one.allowed(), other.allowed())


def test_a_schema_that_cannot_be_followed_is_refused() -> None:
    pytest.importorskip("llguidance")
    tokenizer = tokenizer_of("byte_level")
    wrong = GenerateOptions(json_schema={"type": "whatever"})
    with pytest.raises(InputError, match="json_schema cannot be followed: "):
        Grammars(tokenizer, len(tokenizer), (0,)).read(wrong)
    with pytest.raises(InputError, match="no end token, which ends a JSON text"):
        Grammars(tokenizer, len(tokenizer), ()).read(GenerateOptions(json_schema=SCHEMA))
    with pytest.raises(InputError, match=r"the model has no tokenizer\.json"):
        Grammars(trained.slow(), 400, (1,)).read(GenerateOptions(json_schema=SCHEMA))


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "llguidance":
            raise ModuleNotFoundError("No module named 'llguidance'", name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    tokenizer = tokenizer_of("byte_level")
    with pytest.raises(TargetError, match=r'json_schema needs llguidance, .*: pip install "headrace\[guided\]"'):
        Grammars(tokenizer, len(tokenizer), (0,)).read(GenerateOptions(json_schema=SCHEMA))


def test_a_grammar_needs_a_tokenizer_and_its_own_length() -> None:
    with pytest.raises(InputError, match="choice and json_schema need a tokenizer"):
        Grammars(None, 10, ()).read(GenerateOptions(choice=["a"]))
    assert Grammars(None, 10, ()).read(GenerateOptions()) is None
