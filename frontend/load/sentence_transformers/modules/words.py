"""Sentence-transformers' word splitter, as a tokenizer of transformers: its rules are those of no tokenizer library."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizer

from headrace.errors import LoadError
from headrace.frontend.load.keys import read_json, require_known
from headrace.frontend.load.sentence_transformers.pipeline import BAG, WORDS, Step

FILE = "whitespacetokenizer_config.json"
# What splits words, by sentence-transformers' names, and how many it leaves whole.
SPLIT, WRAPPED = "WhitespaceTokenizer", "TransformersTokenizerWrapper"
SERVED, UNCUT = (SPLIT, WRAPPED), 1_000_000
WORD_KEYS, WORD_IDLE = ("tokenizer_class", "max_seq_length"), ("update_embeddings",)
KEYS = ("vocab", "stop_words", "do_lower_case")


class WordTokenizer(PreTrainedTokenizer):
    """Sentence-transformers' `WhitespaceTokenizer`: words between white space, but for unknown ones and stop words.

    A word is looked up as it stands, then without the punctuation around it, then in lower case.
    """

    def __init__(self, vocab: list[str], stop_words: list[str], do_lower_case: bool, **options: Any) -> None:
        """A word's id is its place in `vocab`."""
        self._words, self._stop = list(vocab), frozenset(stop_words)
        # Of a word that is there twice, the last place counts.
        self._places, self._lowers = {word: place for place, word in enumerate(vocab)}, do_lower_case
        super().__init__(**{"model_input_names": ["input_ids"], **options})  # type: ignore[no-untyped-call]

    @property
    def vocab_size(self) -> int:
        """How many words have a place."""
        return len(self._words)

    def get_vocab(self) -> dict[str, int]:
        """Each word's id."""
        return dict(self._places)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        words = (text.lower() if self._lowers else text).split()
        return [found for word in words if (found := self._found(word)) is not None]

    def _found(self, word: str) -> str | None:
        """The word as the vocabulary has it; None of one that it has not, or that is left out."""
        bare = word.strip(string.punctuation)
        for form in (word, bare, bare.lower()):
            if form in self._stop:
                return None
            if form and form in self._places:
                return form
        return None

    def _convert_token_to_id(self, token: str) -> int:
        return self._places[token]

    def _convert_id_to_token(self, index: int) -> str:
        return self._words[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Words with a space between each two."""
        return " ".join(tokens)

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str]:
        """Write sentence-transformers' file."""
        path = Path(save_directory) / FILE
        said = {"vocab": self._words, "stop_words": sorted(self._stop), "do_lower_case": self._lowers}
        path.write_text(json.dumps(said), encoding="utf-8")
        return (str(path),)


def read_words(folder: Path) -> WordTokenizer:
    """The tokenizer of a folder.

    Raises:
        LoadError: there is none, or its file says what is not known.
    """
    path = folder / FILE
    if not path.is_file():
        raise LoadError(f"{folder} holds no {FILE}, by which words are split. Save the model again.")
    said = require_known(read_json(path), str(path), KEYS)
    return WordTokenizer(said["vocab"], said.get("stop_words") or [], bool(said.get("do_lower_case", False)))


def word_tokenizer(step: Step, folder: Path) -> Any:
    """What a table of words, or a bag of them, splits texts by; None for a tokenizer of transformers in the folder.

    Raises:
        LoadError: it splits in a way that is not served.
    """
    if step.kind == BAG:
        return WordTokenizer(list(dict.fromkeys(step.config["vocab"])), [], do_lower_case=False)
    kind = _kind(step)
    if kind not in SERVED:
        raise LoadError(
            f"{step.where} splits words by {kind} (tokenizer_class), which is not served; {' and '.join(SERVED)} are. "
            "A PhraseTokenizer takes NLTK's words and joins them to the phrases that it knows."
        )
    live: Any = step.live
    held = None if live is None else live.tokenizer
    if kind == WRAPPED:
        return None if held is None else held.tokenizer
    if held is None:
        return read_words(folder)
    return WordTokenizer(list(held.vocab), sorted(held.stop_words), held.do_lower_case)


def word_limit(step: Step) -> int | None:
    """The words that a text is cut to; None where it is left whole.

    Raises:
        LoadError: tokens of a tokenizer of transformers are cut, its own at the end among them.
    """
    config = require_known(step.config, step.where, WORD_KEYS, WORD_IDLE)
    length = config.get("max_seq_length", UNCUT)
    if length >= UNCUT:
        return None
    if _kind(step) == WRAPPED:
        raise LoadError(
            f"{step.where} cuts a text to {length} tokens (max_seq_length), its end token among those that it cuts "
            f"off, which is not served. Leave texts whole: {UNCUT}."
        )
    return int(length)


def keeps_special(step: Step) -> bool:
    """Whether the tokenizer's own tokens stay, as of one of transformers behind a table of words."""
    return step.kind == WORDS and _kind(step) == WRAPPED


def _kind(step: Step) -> str:
    return str(step.config["tokenizer_class"]).rsplit(".", 1)[-1]
