"""The tokenizers library asked directly gives what a call of the tokenizer gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import processors

from headrace.runtime.text.texts import Texts
from headrace.runtime.text.tokenizer import reader as readers
from headrace.runtime.text.tokenizer.fast import read_direct, reads_alike
from tests.synthetic import facts, token_inputs
from tests.words import bert_like, gpt_like


@pytest.mark.parametrize("made", [bert_like, gpt_like])
def test_many_texts_are_read_as_one_is(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = made()
    assert reads_alike(tokenizer)
    texts = ["water runs", "", " a  wheel ", "[CLS] water", "x" * 40] * 20
    reader, apart = (Texts(tokenizer, facts()) for _ in range(2))
    asked: list[int] = []

    def counted(*args: Any) -> Any:
        asked.append(1)
        return read_direct(*args)

    monkeypatch.setattr(readers, "read_direct", counted)
    kept = [text for text in texts if len(tokenizer(text)["input_ids"])]
    many = reader.encode(kept, truncate=None)
    alone = [apart.encode([text], truncate=None)[0] for text in kept]
    assert len(asked) == 1
    for one, other in zip(many, alone, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("made", [bert_like, gpt_like])
def test_many_long_texts_are_cut_as_one_is(made: Any, side: str) -> None:
    tokenizer = made()
    tokenizer.truncation_side = side
    reader, apart = (Texts(tokenizer, facts(), max_length=6) for _ in range(2))
    texts = ["water runs", " a  wheel ", "water runs and " * 9, "x" * 40] * 20
    alone = [apart.encode([text], truncate=True)[0] for text in texts]
    for one, other in zip(reader.encode(texts, truncate=True), alone, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)


def test_token_types_of_a_text_alone_are_read_where_one_is_not_zero() -> None:
    """A template may give the whole text, or a token of its own, another type."""
    plain = bert_like()
    other = bert_like()
    other.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:2 $A:0 [SEP]:0",
        pair="[CLS]:2 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, plain.convert_tokens_to_ids(name)) for name in ("[CLS]", "[SEP]")],
    )
    found = []
    for tokenizer in (plain, other):
        reader = Texts(tokenizer, facts(inputs=token_inputs("input_ids", "token_type_ids"), token_types=3))
        found.append(reader.encode(["water runs"] * 80, truncate=None)[0].types)
    assert found[0] is None or not found[0].any()
    assert found[1] is not None
    assert found[1][0] == 2


def test_a_tokenizer_that_does_more_than_its_library_is_called() -> None:
    class Lower:
        """Says in Python what its library does not."""

        is_fast, split_special_tokens = True, False

        def __init__(self, made: Any) -> None:
            self._made, self.backend_tokenizer = made, made.backend_tokenizer

        def __call__(self, texts: Any, pairs: Any = None, **options: Any) -> Any:
            return self._made([text + " water" for text in texts], pairs, **options)

    assert not reads_alike(Lower(bert_like()))
