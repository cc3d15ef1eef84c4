"""The tokenizers library asked directly gives what a call of the tokenizer gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.runtime.text import tokens
from headrace.runtime.text.direct import read_direct, reads_alike
from headrace.runtime.text.tokens import Texts
from tests.synthetic import facts
from tests.words import bert_like, gpt_like


@pytest.mark.parametrize("made", [bert_like, gpt_like])
def test_many_texts_are_read_as_one_is(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = made()
    assert reads_alike(tokenizer)
    texts = ["water runs", "", " a  wheel ", "[CLS] water", "x" * 40] * 20
    reader = Texts(tokenizer, facts())
    asked: list[int] = []

    def counted(*args: Any) -> Any:
        asked.append(1)
        return read_direct(*args)

    monkeypatch.setattr(tokens, "read_direct", counted)
    kept = [text for text in texts if len(tokenizer(text)["input_ids"])]
    many = reader.encode(kept, truncate=None)
    alone = [reader.encode([text], truncate=None)[0] for text in kept]
    assert len(asked) == 1
    for one, other in zip(many, alone, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        assert (one.types is None) == (other.types is None)


def test_a_tokenizer_that_does_more_than_its_library_is_called() -> None:
    class Lower:
        """Says in Python what its library does not."""

        is_fast, split_special_tokens = True, False

        def __init__(self, made: Any) -> None:
            self._made, self.backend_tokenizer = made, made.backend_tokenizer

        def __call__(self, texts: Any, pairs: Any = None, **options: Any) -> Any:
            return self._made([text + " water" for text in texts], pairs, **options)

    assert not reads_alike(Lower(bert_like()))
