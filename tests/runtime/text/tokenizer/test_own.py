"""What others do with a tokenizer changes no answer: a model reads with a copy of its own (case F7)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import headrace
from headrace.runtime.api import Lowered
from headrace.runtime.text.tokenizer.own import own_copy
from tests.tiny import build
from tests.words import bert_like, gpt_like

TEXTS = [" ".join(f"w{5 + (n * 7 + i) % 90}" for i in range(1 + n)) for n in range(56)]


@pytest.fixture(scope="module")
def lowered() -> Any:
    return headrace.lower(build("bert"), target="reference", tokenizer=bert_like(), pooling="mean")


def beside(work: Callable[[], Any], ask: Callable[[], None]) -> Any:
    """What `work` answers while another thread asks on and on."""
    done = Event()

    def asking() -> None:
        while not done.is_set():
            ask()

    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(asking)
        try:
            return work()
        finally:
            done.set()
            other.result()


def read(model: Any) -> list[list[int]]:
    """The token ids of the texts: so many that the tokenizer's library is asked directly."""
    return [one.ids.tolist() for one in model._reader.encode(TEXTS * 2, truncate=True)]


@pytest.mark.parametrize("whose", ["given", "model's"])
def test_counting_tokens_beside_a_call(lowered: Any, whose: str) -> None:
    model = lowered.compile()
    tokenizer, wanted = lowered.tokenizer if whose == "given" else model.tokenizer, read(model)

    def count() -> None:
        tokenizer(TEXTS[40], truncation=True, max_length=8)

    found = beside(lambda: [read(model) for _ in range(10)], count)
    assert all(ids == wanted for ids in found)


def test_two_models_of_one_tokenizer(lowered: Any) -> None:
    short, long = lowered.compile(max_length=8), lowered.compile(max_length=60)
    wanted = read(long)
    found = beside(lambda: [read(long) for _ in range(80)], lambda: read(short))
    assert all(ids == wanted for ids in found)


def test_what_is_done_to_a_tokenizer_afterwards(tmp_path: Path) -> None:
    """It is read, saved and exported as it was when the model was compiled."""
    given = bert_like()
    model = headrace.compile(build("bert", "AutoModelForMaskedLM"), target="reference", tokenizer=given)
    wanted = model.fill_mask("w5 [MASK] new")
    for tokenizer in (given, model.tokenizer):
        tokenizer.add_tokens(["new"])
        tokenizer.mask_token = "w5"
        tokenizer.truncation_side = "left"
    assert model.fill_mask("w5 [MASK] new") == wanted
    model.save(tmp_path / "saved")
    assert headrace.load(tmp_path / "saved").fill_mask("w5 [MASK] new") == wanted


def test_nothing_is_done_to_the_callers(lowered: Any) -> None:
    given = lowered.tokenizer
    given.backend_tokenizer.enable_truncation(4)
    given.backend_tokenizer.enable_padding(length=9)
    model = lowered.compile()
    assert [len(ids) for ids in read(model)] == [2 + 1 + n for n in range(56)] * 2
    assert [row.shape[0] for row in model.token_embed(TEXTS[:3])] == [3, 4, 5]
    assert given.backend_tokenizer.truncation["max_length"] == 4
    assert given.backend_tokenizer.padding["length"] == 9


def test_the_models_own_is_handed_out_as_a_copy(lowered: Any) -> None:
    model = lowered.compile()
    assert model.tokenizer is not lowered.tokenizer
    assert model.tokenizer is model.tokenizer
    assert model.tokenizer("w5")["input_ids"] == [0, 5, 2]
    assert Lowered(lowered.program, lowered.backend, None).compile().tokenizer is None


def test_a_tokenizer_that_cannot_be_copied() -> None:
    """It may hold a function of Python's own: the model reads with it, and says what that asks of its owner."""
    from tokenizers import pre_tokenizers

    class Spaces:
        def pre_tokenize(self, text: Any) -> None:
            text.split(lambda _, part: part.split(" ", "removed"))

    given = gpt_like()
    given.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Spaces())
    with pytest.warns(headrace.HeadraceWarning, match=r"cannot be copied .*while this model reads"):
        assert own_copy(given) is given
