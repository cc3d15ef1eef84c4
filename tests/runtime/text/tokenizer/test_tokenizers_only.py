"""A tokenizer.json read without transformers gives what the tokenizer that wrote it gives, however it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.runtime.text.texts import Texts
from headrace.runtime.text.tokenizer.fast import reads_alike
from headrace.runtime.text.tokenizer.reader import MANY
from headrace.runtime.text.tokenizer.tokenizers_only import PlainTokenizer, exact_facts
from tests.synthetic import facts
from tests.words import bert_like, gpt_like


def plain(tokenizer: Any, folder: Path) -> PlainTokenizer:
    tokenizer.save_pretrained(folder)
    held = exact_facts(tokenizer, folder)
    assert held is not None
    return PlainTokenizer(folder, held)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("made", [bert_like, gpt_like])
def test_many_texts_are_read_as_by_transformers(made: Any, truncate: bool, pairs: bool, tmp_path: Path) -> None:
    whole = made()
    texts: list[Any] = [f"w{5 + i} w6 [SEP] w7" for i in range(MANY)]
    if pairs:
        texts = [(text, "w8 " * (1 + i % 5)) for i, text in enumerate(texts)]
    longest = 4 if truncate else None
    found = [
        Texts(tokenizer, facts(), max_length=longest).encode(texts, truncate=truncate, pairs=pairs)
        for tokenizer in (plain(whole, tmp_path), whole)
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        assert one.lost == other.lost


@pytest.mark.parametrize("made", [bert_like, gpt_like])
def test_words_given_are_read_as_by_transformers(made: Any, tmp_path: Path) -> None:
    whole, given = made(), [["w5", "w6w7", "w8"], ["w9"], []]
    for one, other in zip(*(Texts(by, facts()).whole(given) for by in (plain(whole, tmp_path), whole)), strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        assert one.spans is not None
        assert other.spans is not None
        assert one.spans.offsets == other.spans.offsets
        np.testing.assert_array_equal(one.spans.sides, other.spans.sides)
        assert one.spans.split == other.spans.split
        np.testing.assert_array_equal(one.spans.words, other.spans.words)


def test_it_is_asked_directly(tmp_path: Path) -> None:
    assert reads_alike(plain(bert_like(), tmp_path))


def test_truncation_of_many_texts_is_not_left_to_the_next_call(tmp_path: Path) -> None:
    tokenizer = plain(bert_like(), tmp_path)
    texts = Texts(tokenizer, facts(), max_length=4)
    texts.encode(["w5 w6 w7 w8 w9"] * MANY, truncate=True)
    assert tokenizer(["w5 w6 w7 w8 w9"])["input_ids"] == [[0, 5, 6, 7, 8, 9, 2]]
    cut = texts.encode([("w5 w6 w7", "w8 w9")], truncate=True, pairs=True)[0]
    assert (cut.ids.tolist(), cut.lost) == ([0, 5, 2, 2], 4)


def test_a_tokenizer_that_splits_special_tokens_is_not_its_file(tmp_path: Path) -> None:
    tokenizer = bert_like(split_special_tokens=True)
    tokenizer.save_pretrained(tmp_path)
    assert exact_facts(tokenizer, tmp_path) is None
