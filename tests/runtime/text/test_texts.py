"""Texts to token ids: token types, prompts, spans, and what is refused."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from headrace import examples
from headrace.errors import InputError
from headrace.ir import (
    TextRules,
)
from headrace.runtime.text.texts import Texts
from tests.synthetic import token_inputs
from tests.trained import (
    KINDS,
    Counting,
    byte_level,
    ids,
    limited,
    program,
    slow,
    wordpiece,
    words,
)


def test_p11_token_types_belong_to_the_tokens_that_truncation_left() -> None:
    """Case P11: 4 query tokens and 20 document tokens, truncated from the left to 8."""
    tokenizer = wordpiece(truncation_side="left")
    query, document = "the fox the dog", "the quick dog " * 6 + "my box"
    (one,) = Texts(tokenizer, limited(8)).encode([(query, document)], truncate=True, pairs=True)
    tokens = tokenizer.convert_ids_to_tokens(one.ids.tolist())
    assert tokens == ["[CLS]", "the", "dog", "[SEP]", "dog", "my", "box", "[SEP]"]
    assert one.types is not None
    assert one.types.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_p12_token_types_tell_query_from_document() -> None:
    """Case P12: equal to transformers' own, and not all zero."""
    tokenizer = wordpiece()
    (one,) = Texts(tokenizer, program()).encode([("the fox", "the dog")], truncate=None, pairs=True)
    assert one.types is not None
    assert one.types.tolist() == tokenizer("the fox", "the dog")["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


def test_p13_no_token_types_where_the_tokenizer_or_the_model_has_none() -> None:
    """Case P13: None, which the batch feeds as zeros."""
    names = ["input_ids", "attention_mask"]
    for tokenizer, inputs in (
        (wordpiece(model_input_names=names), program()),
        (wordpiece(), program(inputs=token_inputs("input_ids"))),
    ):
        (one,) = Texts(tokenizer, inputs).encode([("the fox", "the dog")], truncate=None, pairs=True)
        assert one.types is None


@pytest.mark.parametrize("kind", ["byte_level", "unsplit", "slow"])
def test_p14_a_pair_without_a_separator_holds_no_none(kind: str) -> None:
    """Case P14: what the tokenizer lacks does not turn into the text "None"."""
    tokenizer = KINDS[kind]()
    (one,) = Texts(tokenizer, program()).encode([("ab", "cd")], truncate=None, pairs=True)
    assert "None" not in tokenizer.decode(one.ids.tolist())
    assert one.ids.tolist() == tokenizer("ab", "cd")["input_ids"]


def test_l3_an_empty_text_is_what_the_tokenizer_adds_or_an_error() -> None:
    """Case L3."""
    assert ids(Texts(wordpiece(), limited(8)).encode(["", "fox"], truncate=None))[0] == [2, 3]
    with pytest.raises(InputError, match=r"Text 1 has no tokens: .*adds no special tokens"):
        Texts(byte_level(), limited(8)).encode(["fox", ""], truncate=None)


@pytest.mark.parametrize("kind", KINDS)
def test_s5_texts_are_not_stripped(kind: str) -> None:
    """Case S5: white space goes to the tokenizer as it is."""
    tokenizer = KINDS[kind]()
    text = " text\n"
    assert ids(Texts(tokenizer, limited(30)).encode([text], truncate=None)) == [tokenizer(text)["input_ids"]]


def test_s5_real_weights_equal_sentence_transformers() -> None:
    """Case S5, and padding and truncation to 128 that MiniLM's tokenizer.json brings."""
    from sentence_transformers import SentenceTransformer
    from transformers import AutoTokenizer

    folder = examples.folder("minilm")
    peer = SentenceTransformer(str(folder), device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    backend: Any = tokenizer.backend_tokenizer
    assert backend.padding["length"] == backend.truncation["max_length"] == 128
    rules = TextRules(max_length=peer.max_seq_length, truncates=True)
    texts = Texts(tokenizer, limited(512, text=rules))
    samples = [" text\n", "text", "", "Two  Words\t", "fox " * 200, "fox " * 3000, "東京 🎉"]
    for sample, one in zip(samples, texts.encode(samples, truncate=True), strict=True):
        assert one.ids.tolist() == peer.preprocess([sample])["input_ids"][0].tolist(), sample


@pytest.mark.parametrize("thing", [None, 5, b"bytes", ["nested"], ("a", "b"), float("nan")])
def test_what_is_no_text_is_refused(thing: Any) -> None:
    with pytest.raises(InputError, match=r"Text 1 is .*; here a str is accepted"):
        Texts(wordpiece(), program()).encode(["fox", thing], truncate=None)


@pytest.mark.parametrize("thing", [None, "fox", "ab", ("a",), ("a", "b", "c"), ("a", None), (("a", "b"), "c")])
def test_what_is_no_pair_is_refused(thing: Any) -> None:
    with pytest.raises(InputError, match=r"Text 1 is .*; here a pair of two str is accepted"):
        Texts(wordpiece(), program()).encode([("a", "b"), thing], truncate=None, pairs=True)


def test_no_texts_are_no_requests() -> None:
    for pairs in (False, True):
        assert Texts(wordpiece(), limited(8)).encode([], truncate=None, pairs=pairs) == []


def test_half_a_surrogate_pair_is_refused() -> None:
    for tokenizer in (wordpiece(), slow()):
        with pytest.raises(InputError, match="Text 0 has half a surrogate pair at character 2"):
            Texts(tokenizer, program()).encode(["ab\ud800"], truncate=None)


def test_a_tokenizer_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"Text 0 has token id .* 5 token embeddings"):
        Texts(wordpiece(), program(vocabulary=5)).encode(["fox"], truncate=None)


def test_no_tokenizer_takes_no_texts() -> None:
    texts = Texts(None, limited(8, text=TextRules(max_length=4, lower_case=True)))
    assert texts.bound.length == 4
    with pytest.raises(InputError, match=r"no tokenizer.*tokenizer=.*token ids"):
        texts.encode(["fox"], truncate=None)
    with pytest.raises(InputError, match="a tokenizer of transformers is accepted"):
        Texts("bert-base-uncased", limited(8))


def test_a_prompt_is_a_name_a_text_or_the_default() -> None:
    rules = TextRules(prompts=(("query", "find: "), ("passage", "")), default_prompt="query")
    texts = Texts(byte_level(), program(text=rules))

    def read(prompt: str | None, text: Any = "fox", **options: Any) -> str:
        (one,) = texts.encode([text], truncate=None, prompt=prompt, **options)
        return str(byte_level().decode(one.ids.tolist()))

    assert read(None) == read("query") == "find: fox"
    assert read("") == read("passage") == "fox"
    assert read("say ") == "say fox"
    assert read("query", ("a", "b"), pairs=True) == "find: ab"
    lost = TextRules(default_prompt="lost", prompts=(("query", "find: "),))
    with pytest.raises(InputError, match="default prompt 'lost' is not among its prompts \\(query\\)"):
        Texts(byte_level(), program(text=lost)).encode(["fox"], truncate=None)


@pytest.mark.parametrize("kind", ["byte_level", "slow"])
def test_lower_case_is_the_folders_rule_and_leaves_the_users_tokenizer_alone(kind: str) -> None:
    tokenizer = KINDS[kind]()
    lower = Texts(tokenizer, program(text=TextRules(lower_case=True)))
    assert ids(lower.encode(["FOX"], truncate=None)) == [tokenizer("fox")["input_ids"]]
    assert tokenizer("FOX")["input_ids"] != tokenizer("fox")["input_ids"]


def test_lower_case_knows_special_tokens() -> None:
    """As in sentence-transformers, which lower-cases inside the tokenizer."""
    tokenizer = wordpiece()
    lower = Texts(tokenizer, program(text=TextRules(lower_case=True)))
    assert ids(lower.encode(["FOX [MASK]"], truncate=None)) == [tokenizer("fox [MASK]")["input_ids"]]


@pytest.mark.parametrize("side", ["right", "left"])
def test_spans_are_places_in_the_whole_text(side: str) -> None:
    tokenizer = wordpiece(truncation_side=side)
    text = words(2000)
    (one,) = Texts(tokenizer, limited(20)).encode([text], truncate=True, offsets=True)
    whole = tokenizer(
        text, truncation=True, max_length=20, return_offsets_mapping=True, return_special_tokens_mask=True
    )
    assert one.spans is not None
    assert one.spans.offsets == whole["offset_mapping"]
    assert one.spans.special.tolist() == whole["special_tokens_mask"]
    assert one.spans.tokens == tokenizer.convert_ids_to_tokens(whole["input_ids"])
    assert one.spans.marked
    assert not Texts(byte_level(), program()).encode(["fox"], truncate=None, offsets=True)[0].spans.marked


def test_a_slow_tokenizer_gives_ids_but_no_spans() -> None:
    texts = Texts(slow(), limited(8))
    assert ids(texts.encode(["fox"], truncate=None)) == [slow()("fox")["input_ids"]]
    with pytest.raises(InputError, match=r"runs in Python and cannot say where.*fast one"):
        texts.encode(["fox"], truncate=None, offsets=True)


def test_threads_use_the_tokenizer_one_at_a_time() -> None:
    """It keeps settings between calls, and raises where they are set during another's call."""

    class Slow(Counting):
        inside = most = 0

        def __call__(self, *columns: list[str], **settings: Any) -> Any:
            self.inside += 1
            self.most = max(self.most, self.inside)
            time.sleep(0.002)  # time for another thread to come in
            self.inside -= 1
            return super().__call__(*columns, **settings)

    tokenizer = Slow(wordpiece())
    texts = Texts(tokenizer, limited(16))
    threads = [threading.Thread(target=texts.encode, args=(["the fox"],), kwargs={"truncate": True}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tokenizer.most == 1
