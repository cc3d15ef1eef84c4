"""Texts end where they should, are cut before what ended them, and are told no further than they surely go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.runtime.generate.detokenizer import Vocabulary
from headrace.runtime.generate.stopping import FinishReason, Stopping, StopRules
from tests.runtime.generate.test_detokenizer import MADE, ids_of, tokenizer_of

END = 3


def ended(ids: list[int], tokenizer: Any, *, strings: tuple[str, ...] = (), least: int = 0, most: int = 1000,
          tokens: tuple[int, ...] = ()) -> tuple[Stopping, list[str]]:  # fmt: skip
    """The text of tokens as they come, and what was told after each."""
    made, told = Stopping(Vocabulary(tokenizer), StopRules(tokens, strings, least, most)), []
    for one in ids:
        reason = made.push(one)
        told.append(made.take())
        if reason is not None:
            break
    return made, told


@st.composite
def with_stops(draw: Any, kind: str) -> tuple[list[int], tuple[str, ...]]:
    """Tokens, and stop strings of which some are parts of their text."""
    ids = draw(ids_of(kind))
    text = tokenizer_of(kind).decode(ids, skip_special_tokens=True)
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, max(len(text) - 1, 0)))
        parts.append(text[start : start + draw(st.integers(1, 5))] + draw(st.sampled_from(["", "", "x"])))
    return ids, tuple(part for part in parts if part)


@pytest.mark.parametrize("kind", [*MADE, "minilm"])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_text_is_cut_at_the_first_stop_string_of_its_whole(kind: str, data: Any) -> None:
    """The oracle decodes all tokens so far after each, and looks the strings up in that."""
    tokenizer = tokenizer_of(kind)
    ids, strings = data.draw(with_stops(kind))
    least = data.draw(st.integers(0, 6))
    expected, cut, early = "", None, 0
    count = 0
    for count in range(1, len(ids) + 1):
        expected = tokenizer.decode(ids[:count], skip_special_tokens=True)
        if count < least:
            early = len(expected)
            continue
        starts = [expected.find(one, max(0, early - len(one) + 1)) for one in strings]
        if (cut := min((start for start in starts if start >= 0), default=None)) is not None:
            break
    found, told = ended(ids, tokenizer, strings=strings, least=least)
    assert found.ids == ids[:count]
    assert found.text == expected[:cut]
    assert found.reason == (None if cut is None else FinishReason.STOP)
    assert expected[:cut].startswith("".join(told))
    if cut is not None:
        assert "".join(told) == expected[:cut]


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    tokenizer = tokenizer_of("byte_level")
    ids = [tokenizer.convert_tokens_to_ids(one) for one in "a#b##"]
    found, told = ended(ids, tokenizer, strings=("###",))
    assert (told, found.text) == (["a", "", "#b", "", ""], "a#b##")
    assert found.push(ids[-1]) is FinishReason.STOP
    assert (found.take(), found.text, found.ids) == ("", "a#b", [*ids, ids[-1]])


def test_the_end_token_ends_a_text_and_is_no_part_of_it() -> None:
    tokenizer = tokenizer_of("byte_level")
    ids = tokenizer("water")["input_ids"]
    found, told = ended([*ids, END], tokenizer, tokens=(END,))
    assert (found.text, "".join(told), found.reason) == ("water", "water", FinishReason.STOP)
    assert found.ids == [*ids, END]


def test_the_most_tokens_end_a_text_and_a_stop_at_the_last_counts() -> None:
    tokenizer = tokenizer_of("byte_level")
    ids = [tokenizer.convert_tokens_to_ids(one) for one in "abc"]
    assert ended(ids, tokenizer, most=3)[0].reason is FinishReason.LENGTH
    assert ended(ids, tokenizer, most=2)[0].ids == ids[:2]
    found, _ = ended(ids, tokenizer, most=3, strings=("c",))
    assert (found.reason, found.text) == (FinishReason.STOP, "ab")


def test_what_is_unsure_is_told_at_the_end() -> None:
    """Half a character, which nothing completes any more."""
    tokenizer = tokenizer_of("byte_level")
    ids = tokenizer("ü")["input_ids"][:1]
    assert ended(ids, tokenizer)[1] == [""]
    found, told = ended(ids, tokenizer, most=1)
    assert told == [found.text] == ["\ufffd"]


def test_a_stop_string_of_bytes_ends_a_text_at_once() -> None:
    """Though later bytes could change what it reads as: none come."""
    tokenizer = tokenizer_of("llama2")
    newline = tokenizer.convert_tokens_to_ids("<0x0A>")
    word = tokenizer("fox", add_special_tokens=False)["input_ids"]
    found, told = ended([*word, newline, *word], tokenizer, strings=("\n",))
    assert (found.text, "".join(told), len(found.ids)) == ("fox", "fox", len(word) + 1)


def test_a_stop_string_may_lie_in_what_is_unsure() -> None:
    """Bytes that came before anything could stop, and one behind them: nothing of it is sure."""
    tokenizer = tokenizer_of("llama2")
    ids = [tokenizer.convert_tokens_to_ids(f"<0x{ord(one):02X}>") for one in "abcd"]
    found, _ = ended(ids, tokenizer, strings=("d",), least=3)
    assert (found.text, found.reason) == ("abc", FinishReason.STOP)
    found, _ = ended(ids, tokenizer, strings=("c",), least=3)
    assert (found.text, found.reason) == ("ab", FinishReason.STOP)
    assert ended(ids, tokenizer, strings=("b",), least=3)[0].reason is None


def test_nothing_is_read_as_text_before_somebody_asks() -> None:
    """Without stop strings and streaming, a token costs a look-up."""

    class Refusing:
        def decode(self, *_: Any, **__: Any) -> str:
            raise AssertionError("decoded")

    made = Stopping(Vocabulary(Refusing()), StopRules((END,), (), 0, 100))
    for one in (5, 6, 7):
        assert made.push(one) is None
    assert made.push(END) is FinishReason.STOP
