"""Words without a transformer: sentence-transformers' WordEmbeddings and BoW, from memory and from their folders."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import InputError, LoadError, TargetError
from headrace.frontend.load.checkpoint import load
from headrace.frontend.load.sentence_transformers.modules.words import WordTokenizer
from headrace.frontend.trace import trace
from headrace.ir import Layout, Task
from headrace.lowering.pipeline import analyse, prepare
from tests.words import bert_like

st = pytest.importorskip("sentence_transformers")

VOCABULARY = ["PADDING_TOKEN", "the", "cat", "Sat", "sat", "on", "mat", "U.S.", "dog", "cat"]
# Case, punctuation around and inside words, unknown words, stop words, white space of all kinds.
TEXTS = [
    "cat",
    "The cat, Sat on the (mat)!",
    "dog\tdog\nDOG",
    "a U.S. cat\u00a0sat unheard of",
    "cat " * 20,
    "MAT: sat; 'on'",
]


def words(stop: list[str], lowers: bool = False, most: int = 1_000_000) -> Any:
    from sentence_transformers.sentence_transformer.modules import WordEmbeddings
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    table = torch.randn(len(VOCABULARY), 16, generator=torch.Generator().manual_seed(0))
    return WordEmbeddings(WhitespaceTokenizer(VOCABULARY, stop, lowers), table, max_seq_length=most)


def mean(width: int = 16, kind: str = "mean") -> Any:
    from sentence_transformers.sentence_transformer.modules import Pooling

    return Pooling(width, kind)


def wrapped() -> Any:
    from sentence_transformers.sentence_transformer.modules import WordEmbeddings

    return WordEmbeddings(bert_like(), torch.randn(96, 16, generator=torch.Generator().manual_seed(0)))


def weighed() -> Any:
    from sentence_transformers.sentence_transformer.modules import WordWeights

    return WordWeights(VOCABULARY, {"cat": 0.3, "sat": 2.0})


def bag(**options: Any) -> Any:
    from sentence_transformers.sentence_transformer.modules import BoW

    return BoW(VOCABULARY, {"cat": 0.3, "mat": 2.0}, unknown_word_weight=0.5, **options)


def lstm(layers: int = 1, both: bool = True) -> Any:
    from sentence_transformers.sentence_transformer.modules import LSTM

    torch.manual_seed(2)
    return LSTM(16, 12, layers, bidirectional=both)


def dense() -> Any:
    from sentence_transformers.sentence_transformer.modules import Dense

    torch.manual_seed(1)
    return Dense(len(set(VOCABULARY)), 8)


MADE: dict[str, Callable[[], list[Any]]] = {
    "words": lambda: [words([]), mean()],
    "stop words": lambda: [words(["the", "on"]), mean()],
    "lower case, cut": lambda: [words(["the"], lowers=True, most=3), mean()],
    "weighed": lambda: [words([]), weighed(), mean()],
    "lstm": lambda: [words(["the"]), lstm(), mean(24)],
    "lstm of two layers, last row": lambda: [words([]), lstm(2), mean(24, "lasttoken")],
    "lstm of three layers, forward, largest": lambda: [words([]), lstm(3, both=False), mean(12, "max")],
    "bag": lambda: [bag()],
    "bag, each once, dense": lambda: [bag(cumulative_term_frequency=False), dense()],
}


@pytest.mark.parametrize("name", list(MADE))
def test_equals_sentence_transformers(name: str, tmp_path: Path) -> None:
    model = st.SentenceTransformer(modules=MADE[name](), device="cpu")
    expected = np.stack([model.encode(text) for text in TEXTS])
    model.save_pretrained(str(tmp_path / "theirs"))
    for source in (model, tmp_path / "theirs"):
        ours = headrace.compile(source, target="reference")
        np.testing.assert_allclose(ours.embed(TEXTS, truncate=True), expected, atol=1e-6)
        # Its file keeps each word once, and so gives the words behind one that is there twice other places.
        read_back = st.SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
        expected = np.stack([read_back.encode(text) for text in TEXTS])
    loaded = headrace.load(ours.save(tmp_path / "ours"))
    np.testing.assert_array_equal(loaded.embed(TEXTS, truncate=True), ours.embed(TEXTS, truncate=True))


@pytest.mark.parametrize(("both", "looks"), [(True, "both ways"), (False, "back only")])
def test_an_lstm_says_which_way_it_looks(both: bool, looks: str) -> None:
    made = [words([]), lstm(2, both), mean(24 if both else 12)]
    ours = headrace.compile(st.SentenceTransformer(modules=made, device="cpu"), target="reference")
    rows = [line.split() for line in ours.explain().splitlines() if " lstm " in line]
    assert [" ".join(row[3:5]) for row in rows] == [looks] * 2


def test_an_lstm_has_a_row_a_text() -> None:
    """It has no packed form, and none that goes on from a state: a text is read whole."""
    model = st.SentenceTransformer(modules=[words([]), lstm(), mean(24)], device="cpu")
    traced = trace(load(model, dtype=torch.float32))
    analysed = analyse(traced.program, traced.behaviour)
    assert prepare(analysed, Task.EMBED, Layout.PACKED).form.layout_why == (
        "lstm is an LSTM, which takes a row a sequence."
    )
    with pytest.raises(TargetError, match=r"an LSTM, whose states no cache keeps\. Pass prefill=.single_pass."):
        headrace.compile(model, target="reference", token_budget=8)


def test_a_tokenizer_of_transformers_behind_words(tmp_path: Path) -> None:
    model = st.SentenceTransformer(modules=[wrapped(), mean()], device="cpu")
    texts = ["w5 w6 w7", "w9", "", "w20 nothing w21"]
    model.save_pretrained(str(tmp_path))
    for source in (model, tmp_path):
        ours = headrace.compile(source, target="reference")
        np.testing.assert_allclose(ours.embed(texts), [model.encode(text) for text in texts], atol=1e-6)
    said = json.loads((tmp_path / "wordembedding_config.json").read_text())
    (tmp_path / "wordembedding_config.json").write_text(json.dumps(said | {"max_seq_length": 5}))
    with pytest.raises(LoadError, match="cuts a text to 5 tokens"):
        load(tmp_path, dtype=torch.float32)


NGRAMS = ["PADDING_TOKEN", "New_York", "new_york_city", "is", "big", "n't", "yes", "__", "a__b", "the", "u.s.", "of",
          "one_two_three", "two_three"]  # fmt: skip
LINES = [
    "New York isn't (BIG), yes!",
    "In new york CITY. Big: The U.S. of New  York",
    "one two three Two Three --yes--",
]


def phrases(**options: Any) -> Any:
    from sentence_transformers.sentence_transformer.modules import WordEmbeddings
    from sentence_transformers.sentence_transformer.modules.tokenizer import PhraseTokenizer

    table = torch.randn(len(NGRAMS), 16, generator=torch.Generator().manual_seed(0))
    return WordEmbeddings(PhraseTokenizer(NGRAMS, **options), table)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stop_words": [], "do_lower_case": True},
        {"max_ngram_length": 2},
        {"ngram_separator": None},
        {"stop_words": ["The"]},
    ],
    ids=str,
)
def test_phrases(options: dict[str, Any], tmp_path: Path) -> None:
    """Sentence-transformers' ids of every text, and its vectors, from memory, its folder and ours."""
    pytest.importorskip("nltk", reason="needs nltk: pip install 'headrace[words]'")
    first = phrases(**options)
    model = st.SentenceTransformer(modules=[first, mean()], device="cpu")
    expected = [model.encode(text) for text in LINES]
    model.save_pretrained(str(tmp_path / "theirs"))
    for source in (model, tmp_path / "theirs"):
        tokenizer = load(source, dtype=torch.float32).tokenizer
        for text in [*LINES, "", *NGRAMS]:
            assert tokenizer(text, add_special_tokens=False)["input_ids"] == first.tokenizer.tokenize(text), text
        ours = headrace.compile(source, target="reference")
        np.testing.assert_allclose(ours.embed(LINES), expected, atol=1e-6)
    loaded = headrace.load(ours.save(tmp_path / "ours"))
    np.testing.assert_array_equal(loaded.embed(LINES), ours.embed(LINES))


def test_phrases_without_their_library_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    st.SentenceTransformer(modules=MADE["words"](), device="cpu").save_pretrained(str(tmp_path))
    path = tmp_path / "wordembedding_config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"tokenizer_class": "sentence_transformers.models.tokenizer.PhraseTokenizer"}))
    (tmp_path / "whitespacetokenizer_config.json").rename(tmp_path / "phrasetokenizer_config.json")
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(TargetError, match=r'A PhraseTokenizer needs nltk, .*: pip install "headrace\[words\]"'):
        load(tmp_path, dtype=torch.float32)


def test_what_splits_otherwise_is_refused(tmp_path: Path) -> None:
    st.SentenceTransformer(modules=MADE["words"](), device="cpu").save_pretrained(str(tmp_path))
    path = tmp_path / "wordembedding_config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"tokenizer_class": "sentence_transformers.models.tokenizer.Unheard"}))
    with pytest.raises(LoadError, match=r"splits words by Unheard.*WhitespaceTokenizer, PhraseTokenizer, Transformers"):
        load(tmp_path, dtype=torch.float32)
    path.write_text(json.dumps(said))
    (tmp_path / "whitespacetokenizer_config.json").unlink()
    with pytest.raises(LoadError, match=r"holds no whitespacetokenizer_config\.json, by which words are split"):
        load(tmp_path, dtype=torch.float32)


def test_a_text_without_a_known_word_is_refused() -> None:
    ours = headrace.compile(st.SentenceTransformer(modules=[bag()], device="cpu"), target="reference")
    assert list(ours.tasks) == ["embed"]
    with pytest.raises(InputError, match="Text 1 has no tokens"):
        ours.embed(["cat", "unheard of"])


def test_words_are_looked_up_in_three_forms() -> None:
    """As sentence-transformers does, in its order."""
    made = WordTokenizer(VOCABULARY, ["on"], do_lower_case=False)
    found = made.tokenize("Sat SAT 'Sat' U.S. u.s. (U.S.) on ON. The")
    assert found == ["Sat", "sat", "Sat", "U.S.", "the"]
    assert made.convert_tokens_to_ids(["cat"]) == [9]  # of a word that is there twice, the last
    assert made.decode([1, 2]) == "the cat"
