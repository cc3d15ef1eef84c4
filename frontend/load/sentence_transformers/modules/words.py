"""Sentence-transformers' word splitters, as tokenizers of transformers: no library of these has their rules."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizer

from headrace.errors import LoadError, missing_library
from headrace.frontend.load.keys import read_json, require_known
from headrace.frontend.load.sentence_transformers.pipeline import BAG, WORDS, Step

FILE, PHRASE_FILE = "whitespacetokenizer_config.json", "phrasetokenizer_config.json"
# What splits words, by sentence-transformers' names, and how many it leaves whole.
SPLIT, PHRASES, WRAPPED = "WhitespaceTokenizer", "PhraseTokenizer", "TransformersTokenizerWrapper"
SERVED, UNCUT = (SPLIT, PHRASES, WRAPPED), 1_000_000
WORD_KEYS, WORD_IDLE = ("tokenizer_class", "max_seq_length"), ("update_embeddings",)
KEYS = ("vocab", "stop_words", "do_lower_case")
PHRASE_KEYS = ("ngram_separator", "max_ngram_length")


class WordTokenizer(PreTrainedTokenizer):
    """Sentence-transformers' `WhitespaceTokenizer`: words between white space, but for unknown ones and stop words.

    A word is looked up as it stands, then without the punctuation around it, then in lower case.
    """

    file = FILE

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
        return [found for word in self._split(text) if (found := self._found(word)) is not None]

    def _split(self, text: str) -> list[str]:
        """A text's words, as they stand in it."""
        return (text.lower() if self._lowers else text).split()

    def _forms(self, word: str) -> tuple[str, ...]:
        """What a word is looked up as, in order."""
        bare = word.strip(string.punctuation)
        return word, bare, bare.lower()

    def _found(self, word: str) -> str | None:
        """The word as the vocabulary has it; None of one that it has not, or that is left out."""
        for form in self._forms(word):
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
        path = Path(save_directory) / self.file
        path.write_text(json.dumps(self._said()), encoding="utf-8")
        return (str(path),)

    def _said(self) -> dict[str, Any]:
        return {"vocab": self._words, "stop_words": sorted(self._stop), "do_lower_case": self._lowers}


class PhraseTokenizer(WordTokenizer):
    """Sentence-transformers' `PhraseTokenizer`: NLTK's words, joined where the vocabulary has them as one phrase.

    A word is looked up as it stands, then in lower case, then without the punctuation around it too. Texts are never
    lowered first, whatever `do_lower_case` says.
    """

    file = PHRASE_FILE

    def __init__(
        self,
        vocab: list[str],
        stop_words: list[str],
        do_lower_case: bool,
        ngram_separator: str | None = "_",
        max_ngram_length: int = 5,
        **options: Any,
    ) -> None:
        """A phrase is an entry of `vocab` with the separator between its words, of `max_ngram_length` at most.

        Raises:
            TargetError: NLTK is not installed.
        """
        try:
            from nltk import word_tokenize
        except ImportError as error:
            raise missing_library(error, f"A {PHRASES}") or error from error
        self._words_of, self._separator, self._most = word_tokenize, ngram_separator, max_ngram_length
        self._phrases = {entry: count for entry in vocab if (count := self._count(entry)) > 1}
        super().__init__(vocab, stop_words, do_lower_case, **options)

    def _count(self, entry: str) -> int:
        """How many words a phrase has; 0 of what is none."""
        separator = self._separator
        if separator is None or separator not in entry or separator * 2 in entry:
            return 0
        count = entry.count(separator) + 1
        return count if count <= self._most else 0

    def _split(self, text: str) -> list[str]:
        # Of whole lines, which needs none of NLTK's data.
        words: list[str] = self._words_of(text, preserve_line=True)
        for length in sorted(set(self._phrases.values()), reverse=True):
            place = 0
            while place <= len(words) - length:
                joined = str(self._separator).join(words[place : place + length])
                if (found := next((one for one in (joined, joined.lower()) if one in self._phrases), None)) is not None:
                    words[place : place + length] = [found]
                place += 1
        return words

    def _forms(self, word: str) -> tuple[str, ...]:
        lower = word.lower()
        return word, lower, lower.strip(string.punctuation)

    def _said(self) -> dict[str, Any]:
        return super()._said() | dict(zip(PHRASE_KEYS, (self._separator, self._most), strict=True))


def says_words(folder: Path) -> bool:
    """Whether a folder holds the file of a word splitter."""
    return (folder / FILE).is_file() or (folder / PHRASE_FILE).is_file()


def read_words(folder: Path) -> WordTokenizer:
    """The tokenizer of a folder.

    Raises:
        LoadError: there is none, or its file says what is not known.
        TargetError: it splits by a library that is not installed.
    """
    phrases = (folder / PHRASE_FILE).is_file()
    path = folder / (PHRASE_FILE if phrases else FILE)
    if not path.is_file():
        raise LoadError(f"{folder} holds no {FILE}, by which words are split. Save the model again.")
    said = require_known(read_json(path), str(path), KEYS, PHRASE_KEYS if phrases else ())
    given = said["vocab"], said.get("stop_words") or [], bool(said.get("do_lower_case", False))
    if phrases:
        return PhraseTokenizer(*given, **{key: said[key] for key in PHRASE_KEYS if key in said})
    return WordTokenizer(*given)


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
            f"{step.where} splits words by {kind} (tokenizer_class), which is not served; {', '.join(SERVED)} are."
        )
    live: Any = step.live
    held = None if live is None else live.tokenizer
    if kind == WRAPPED:
        return None if held is None else held.tokenizer
    if held is None:
        return read_words(folder)
    given = list(held.vocab), sorted(held.stop_words), held.do_lower_case
    if kind == PHRASES:
        return PhraseTokenizer(*given, held.ngram_separator, held.max_ngram_length)
    return WordTokenizer(*given)


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
