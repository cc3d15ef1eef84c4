"""A tokenizer as it is asked: by its library directly where that reads alike, else by a call."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from headrace.backends.onnx.names import IDS, TYPES
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.spans import Spans, read_spans
from headrace.runtime.text.tokenizer.fast import as_encoded, own_tokens, read_direct, reads_alike, types_alone
from headrace.runtime.text.truncation import Piece, Strategy, kept
from headrace.utils.forks import Guard

# So many texts at once are worth finding out whether the tokenizer's library can be asked directly.
MANY = 64
# Makes requests of what a tokenizer has answered.
Answer = Callable[[], list[Encoded]]


class Reader:
    """One tokenizer; used from any thread.

    Attributes:
        asked: whether this process has asked any, whose library then keeps threads.
    """

    asked: ClassVar[bool] = False

    def __init__(self, tokenizer: Any, typed: bool, alone: bool = False) -> None:
        """Ask nothing yet.

        Args:
            tokenizer: of transformers.
            typed: whether to give token types.
            alone: whether texts are read without the tokenizer's own tokens, which a chat template puts in itself.
        """
        self._tokenizer, self._typed = tokenizer, typed
        # A call first resets the tokenizer's own settings, which must not happen while another call reads with them.
        # Its library has locks of its own besides, which a child that is forked off during a call would find locked.
        self._guard = Guard(settles=True)
        self._alone = alone
        self._direct: bool | None = False if alone else None  # not known before there are many texts
        self._typed_alone = typed

    def free(self) -> bool:
        """Whether no other thread reads just now."""
        if free := self._guard.lock.acquire(blocking=False):
            self._guard.lock.release()
        return bool(free)

    def read(
        self, pieces: list[Piece], offsets: bool = False, longest: int | None = None,
        strategy: Strategy = Strategy.LONGEST_FIRST,
    ) -> list[Encoded]:  # fmt: skip
        """Token ids of each piece, truncated to so many; where its tokens stand, if asked for."""
        return self.ask(pieces, offsets, longest, strategy)()

    def ask(
        self, pieces: list[Piece], offsets: bool = False, longest: int | None = None,
        strategy: Strategy = Strategy.LONGEST_FIRST,
    ) -> Answer:  # fmt: skip
        """`read` without what needs Python's lock all the time: that is left to whoever calls what is returned."""
        if not pieces:
            return list
        Reader.asked = True
        columns = [list(column) for column in zip(*(piece.parts for piece in pieces), strict=True)]
        if not offsets and (len(pieces) >= MANY or self._direct) and (longest is None or len(columns) == 1):
            with self._guard.lock:
                if self._reads_alike() and (longest is None or own_tokens(self._tokenizer) < longest):
                    found = read_direct(self._tokenizer, columns, longest)
                    typed, own = self._typed if len(columns) > 1 else self._typed_alone, own_tokens(self._tokenizer)
                    return lambda: as_encoded(found, typed, longest, own)
        answered = self._called(columns, offsets, longest, strategy)
        return lambda: self._encoded(answered, pieces, offsets, longest, strategy)

    def read_words(self, texts: list[tuple[str, ...]]) -> list[Encoded]:
        """Token ids of texts that came in words, with where their tokens stand in the words joined by spaces."""
        if not texts:
            return []
        Reader.asked = True
        columns = [[list(words) for words in texts]]
        found = self._called(columns, offsets=True, longest=None, strategy=Strategy.LONGEST_FIRST, split=True)
        return [self._one(found, row, self._spans(found, row, 0, words)) for row, words in enumerate(texts)]

    def _called(
        self, columns: list[Any], offsets: bool, longest: int | None, strategy: Strategy, split: bool = False
    ) -> Any:
        with self._guard.lock:
            # Padding and truncation are named each time: a tokenizer's file may bring settings of its own.
            return self._tokenizer(
                *columns,
                add_special_tokens=not self._alone,
                is_split_into_words=split,
                padding=False,
                truncation=strategy.value if longest is not None and not self._tokenizer.is_fast else False,
                max_length=longest,
                return_attention_mask=False,
                return_token_type_ids=self._typed,
                return_offsets_mapping=offsets,
                return_special_tokens_mask=offsets,
                verbose=False,
            )

    def _encoded(
        self, found: Any, pieces: list[Piece], offsets: bool, longest: int | None, strategy: Strategy
    ) -> list[Encoded]:
        encoded = []
        for row, piece in enumerate(pieces):
            one = self._one(found, row, self._spans(found, row, piece.start) if offsets else None)
            if self._tokenizer.is_fast and longest is not None and one.length > longest:
                one = one.only(kept(found.sequence_ids(row), longest, self._tokenizer.truncation_side, strategy))
            encoded.append(one)
        return encoded

    def _one(self, found: Any, row: int, spans: Spans | None) -> Encoded:
        types = np.asarray(found[TYPES][row], np.int64) if self._typed else None
        return Encoded(np.asarray(found[IDS][row], np.int64), types, spans)

    def _spans(self, found: Any, row: int, start: int, given: tuple[str, ...] = ()) -> Spans:
        with self._guard.lock:
            return read_spans(self._tokenizer, found, row, start, self.joined, given)

    def joined(self, tokens: list[str]) -> str:
        """Tokens as text."""
        with self._guard.lock:
            return str(self._tokenizer.convert_tokens_to_string(tokens))

    def decode(self, ids: list[int]) -> str:
        """Token ids as text."""
        with self._guard.lock:
            return str(self._tokenizer.decode(ids))

    def _reads_alike(self) -> bool:
        if self._direct is None:
            self._direct = reads_alike(self._tokenizer)
            self._typed_alone = self._typed and (not self._direct or types_alone(self._tokenizer))
        return self._direct


def _alone() -> None:
    """Keep the library to one thread in a forked child, where those that it would wait for do not live."""
    if Reader.asked:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


os.register_at_fork(after_in_child=_alone)
