"""A tokenizer.json run by the tokenizers library alone, and called as tokenizers of transformers are."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from headrace.backends.onnx.names import IDS, TYPES
from headrace.errors import ArtifactError
from headrace.runtime.text.tokenizer.equivalence import alike

FILE = "tokenizer.json"
# What transformers writes beside it, and reads again to make the tokenizer that wrote it.
BESIDE = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt",
    "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja",
)  # fmt: skip
# What transformers takes spaces out of, one after the other.
TIDIED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


@dataclass(frozen=True)
class TokenizerFacts:
    """What a tokenizer's file does not say of its use, or says in ways that only transformers reads.

    Attributes:
        cls_token: the one that stands for a whole text.
        padding_side: "right" or "left"; a question goes before its context where padding would not.
        tidies: whether spaces before punctuation are taken out of what ids decode to.
    """

    model_input_names: tuple[str, ...]
    model_max_length: int
    truncation_side: str
    unk_token: str | None
    mask_token: str | None
    cls_token: str | None = None
    padding_side: str = "right"
    tidies: bool = False


class Found(dict[str, list[Any]]):
    """What a call answers: lists by name, a row a text."""

    def __init__(self, encodings: Sequence[Any], **lists: list[Any]) -> None:
        """Keep the encodings for what is asked later."""
        super().__init__(lists)
        self._encodings = encodings

    def sequence_ids(self, row: int) -> list[int | None]:
        """For each token the text of a pair that it belongs to, None for the tokenizer's own."""
        found: list[int | None] = self._encodings[row].sequence_ids
        return found

    def word_ids(self, row: int) -> list[int | None]:
        """For each token the word that it is of, None for the tokenizer's own."""
        found: list[int | None] = self._encodings[row].word_ids
        return found


class PlainTokenizer:
    """Answers as the transformers tokenizer that wrote the file does; that was checked when it was written."""

    is_fast = True
    split_special_tokens = False  # the file cannot say otherwise

    def __init__(self, folder: Path, facts: TokenizerFacts) -> None:
        """Read the file.

        Raises:
            ArtifactError: it cannot be read.
        """
        self.folder, self.facts = folder, facts
        self.name_or_path = folder.name
        try:
            self.backend_tokenizer = Tokenizer.from_file(str(folder / FILE))
        except Exception as error:  # the library raises bare exceptions
            raise ArtifactError(f"{folder / FILE} cannot be read: {error}") from error
        self.model_input_names = list(facts.model_input_names)
        self.model_max_length, self.truncation_side = facts.model_max_length, facts.truncation_side
        self.mask_token = facts.mask_token
        self.clean_up_tokenization_spaces = facts.tidies
        self.cls_token_id, self.padding_side = self._id(facts.cls_token), facts.padding_side
        self.unk_token_id, self.mask_token_id = self._id(facts.unk_token), self._id(facts.mask_token)

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self.backend_tokenizer.token_to_id(token)

    def __call__(
        self, texts: list[Any], pairs: list[str] | None = None, *, add_special_tokens: bool = True,
        is_split_into_words: bool = False, **_options: Any,
    ) -> Found:  # fmt: skip
        """Token ids of each text, or of each text and the one of `pairs` at its place, whole and unpadded.

        Args:
            is_split_into_words: whether each text is a list of words.
        """
        given: list[Any] = texts if pairs is None else list(zip(texts, pairs, strict=True))
        # Files bring settings of their own, and whoever asks the library directly leaves some behind.
        self.backend_tokenizer.no_padding()
        self.backend_tokenizer.no_truncation()
        encodings = self.backend_tokenizer.encode_batch(
            given, is_pretokenized=is_split_into_words, add_special_tokens=add_special_tokens
        )
        return Found(
            encodings,
            input_ids=[one.ids for one in encodings],
            token_type_ids=[one.type_ids for one in encodings],
            special_tokens_mask=[one.special_tokens_mask for one in encodings],
            offset_mapping=[one.offsets for one in encodings],
        )

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it."""
        return [str(self.backend_tokenizer.id_to_token(int(i))) for i in ids]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Tokens as text."""
        decoder = self.backend_tokenizer.decoder
        text: str = decoder.decode(tokens) if decoder is not None else " ".join(tokens)
        return text

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Token ids as text."""
        text: str = self.backend_tokenizer.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)
        return tidy(text) if self.facts.tidies else text

    def save_pretrained(self, folder: Path) -> None:
        """Copy the file, and what lies beside it of the tokenizer that wrote it."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in (FILE, *BESIDE):
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)


def tidy(text: str) -> str:
    """A text without the spaces that transformers takes out where a tokenizer has clean_up_tokenization_spaces."""
    for spaced in TIDIED:
        text = text.replace(spaced, spaced.strip())
    return text


def exact_facts(tokenizer: Any, folder: Path) -> TokenizerFacts | None:
    """The facts with which the file that a tokenizer wrote to a folder stands for it; None where it does not.

    Both are run on texts that show differences, alone and in pairs.
    """
    if isinstance(tokenizer, PlainTokenizer):  # which was checked so
        return tokenizer.facts
    if not (folder / FILE).is_file() or not getattr(tokenizer, "is_fast", False) or tokenizer.split_special_tokens:
        return None
    read = TokenizerFacts(
        model_input_names=tuple(tokenizer.model_input_names),
        model_max_length=int(tokenizer.model_max_length),
        truncation_side=tokenizer.truncation_side,
        unk_token=tokenizer.unk_token,
        mask_token=tokenizer.mask_token,
        cls_token=getattr(tokenizer, "cls_token", None),
        padding_side=tokenizer.padding_side,
    )
    # transformers leaves the spaces of some that ask for that, by their model.
    plains = [PlainTokenizer(folder, replace(read, tidies=tidies)) for tidies in (False, True)]
    same = (one for one in plains if alike(partial(_answers, tokenizer), partial(_answers, one)))
    found = next((one for one in same if one.unk_token_id == tokenizer.unk_token_id), None)
    return None if found is None else found.facts


def _answers(tokenizer: Any, columns: list[list[str]]) -> list[Any]:
    found = tokenizer(
        *columns, padding=False, truncation=False, return_token_type_ids=True, return_offsets_mapping=True,
        return_special_tokens_mask=True, verbose=False,
    )  # fmt: skip
    rows = range(len(columns[0]))
    named = [found[name] for name in (IDS, TYPES, "special_tokens_mask")]
    tokens = [tokenizer.convert_ids_to_tokens(found[IDS][row]) for row in rows]
    offsets = [[tuple(pair) for pair in found["offset_mapping"][row]] for row in rows]
    joined = [tokenizer.convert_tokens_to_string(one) for one in tokens]
    decoded = [tokenizer.decode(ids, skip_special_tokens=skips) for ids in found[IDS] for skips in (False, True)]
    return [named, tokens, offsets, joined, decoded, [found.sequence_ids(row) for row in rows]]
