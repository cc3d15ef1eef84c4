"""Pieces of text make up what all tokens decode to, and nothing that was said is taken back."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from transformers import AutoTokenizer

from headrace.examples import models
from headrace.runtime.generate.detokenizer import CONTEXT, Detokenizer, Vocabulary
from headrace.runtime.text.tokenizer.tokenizers_only import PlainTokenizer, exact_facts
from tests import trained


def llama2(**settings: Any) -> Any:
    """Bytes for what its vocabulary lacks, spelled as such; the first space is the tokenizer's own."""
    held = json.loads(trained.unsplit().backend_tokenizer.to_str())
    held["added_tokens"] = [one for one in held["added_tokens"] if not one["content"].startswith("<0x")]
    made = trained.wrapped(Tokenizer.from_str(json.dumps(held)), unk_token="<unk>", **settings)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.backend_tokenizer.decoder = decoders.Sequence(steps)
    return made


def tidied(**settings: Any) -> Any:
    """One that takes spaces before punctuation out of what it decodes."""
    return trained.unigram(clean_up_tokenization_spaces=True, **settings)


MADE = {made.__name__: made for made in (*trained.KINDS.values(), llama2, tidied)}
TEXTS = [
    "It 's ' quoted ' , isn 't it ? do n't",
    "a ' . b ' , c ''",
    "naïve 東京 🎉 x\n\n\ny",
    "  two  spaces ",
    *trained.CORPUS,
]


@cache
def tokenizer_of(kind: str) -> Any:
    if kind in MADE:
        made = MADE[kind]()
        if made.is_fast:
            made.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
        return made
    return AutoTokenizer.from_pretrained(models.folder(kind))


KINDS = [*MADE, "minilm", pytest.param("smollm2", marks=pytest.mark.slow)]


@st.composite
def ids_of(draw: Any, kind: str) -> list[int]:
    """Random tokens, and those of texts, in pieces of both."""
    tokenizer = tokenizer_of(kind)
    top = len(tokenizer)
    found: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            found += draw(st.lists(st.integers(0, top - 1), max_size=12))
        else:
            text = draw(st.sampled_from(TEXTS) | st.text(max_size=12))
            found += tokenizer(text, add_special_tokens=False)["input_ids"][: draw(st.integers(1, 40))]
    return found


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_pieces_make_up_the_whole(kind: str, skip: bool, data: Any) -> None:
    """Whatever tokens come, at once or one by one: text and tail are what all decode to, and text only grows."""
    tokenizer = tokenizer_of(kind)
    ids = data.draw(ids_of(kind))
    at_once = data.draw(st.integers(1, 3))
    made, said = Detokenizer(Vocabulary(tokenizer, skip)), ""
    for start in range(0, len(ids), at_once):
        made.push(ids[start : start + at_once])
        assert made.text.startswith(said)
        said = made.text
        expected = tokenizer.decode(ids[: start + at_once], skip_special_tokens=skip)
        assert made.text + made.tail == expected, tokenizer.convert_ids_to_tokens(ids[: start + at_once])


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_told_as_they_come(kind: str) -> None:
    """Nothing is held back longer than it must be, and the tokens that are decoded again stay few."""
    tokenizer = tokenizer_of(kind)
    ids = tokenizer(trained.words(300, seed=4), add_special_tokens=False)["input_ids"]
    made = Detokenizer(Vocabulary(tokenizer))
    most, unsure = 0, 0
    for one in ids:
        made.push([one])
        most, unsure = max(most, len(made._ids)), max(unsure, len(made.tail))
    assert unsure <= 24, unsure
    assert most < 8 * CONTEXT, most


def test_a_character_of_several_tokens_is_told_whole() -> None:
    tokenizer = tokenizer_of("byte_level")
    ids = tokenizer("a🎊é")["input_ids"]
    made, told = Detokenizer(Vocabulary(tokenizer)), []
    for one in ids:
        before = len(made.text)
        made.push([one])
        told.append(made.text[before:])
    assert [piece for piece in told if piece] == ["a", "🎊", "é"]


@pytest.mark.parametrize("kind", [name for name in MADE if name != "slow"])
def test_a_file_alone_decodes_as_its_tokenizer_does(kind: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(kind)
    tokenizer.save_pretrained(tmp_path)
    held = exact_facts(tokenizer, tmp_path)
    assert held is not None
    plain = PlainTokenizer(tmp_path, held)
    for text in TEXTS:
        ids = [*tokenizer(text)["input_ids"], tokenizer.convert_tokens_to_ids("<|im_end|>"), 5]
        for skip in (False, True):
            assert plain.decode(ids, skip_special_tokens=skip) == tokenizer.decode(ids, skip_special_tokens=skip)
        made = Detokenizer(Vocabulary(plain))
        for one in ids:
            made.push([one])
        assert made.text + made.tail == tokenizer.decode(ids, skip_special_tokens=True)


def test_what_a_tokenizer_does_beside_its_library_is_kept() -> None:
    class Shouting:
        """Says in Python what its library does not."""

        def __init__(self, made: Any) -> None:
            self._made, self.backend_tokenizer = made, made.backend_tokenizer

        def decode(self, ids: list[int], **options: Any) -> str:
            return self._made.decode(ids, **options).upper()

    tokenizer = tokenizer_of("byte_level")
    ids = tokenizer("a quick fox")["input_ids"]
    assert Vocabulary(Shouting(tokenizer)).decode(ids) == "A QUICK FOX"
    assert Vocabulary(tokenizer).decode(ids) == "a quick fox"
