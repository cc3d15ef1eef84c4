"""Whether a request fits its model: by its length, its token ids and its token types."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.errors import InputError, InputTooLongError
from headrace.ir import Program
from headrace.runtime.text.bounds import Bound
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.ids import require_marker
from headrace.runtime.text.reading import Part
from headrace.runtime.text.truncation import Strategy


@dataclass(frozen=True)
class Fits:
    """What a program can take.

    Attributes:
        bound: the tokens of a request at most.
    """

    program: Program
    bound: Bound

    def surely(self, encoded: list[Encoded]) -> bool:
        """Whether no text can be refused by `check`, seen all at once."""
        lengths = [len(one.ids) for one in encoded]
        if not lengths or min(lengths) == 0 or self.program.signature.marker is not None:
            return False
        fit = self.bound.length is None or max(lengths) <= self.bound.length
        if not fit or any(self._beyond_types(one) is not None for one in encoded):
            return False
        return int(np.concatenate([one.ids for one in encoded]).max()) < self.program.signature.vocabulary

    def check(self, one: Encoded, number: int, cuts: Strategy | None) -> None:
        """Refuse a request that the model cannot take.

        Args:
            number: the text's, in messages.
            cuts: how it was truncated.

        Raises:
            InputTooLongError: it has more tokens than the bound.
            InputError: it has none, or one that the model has no embedding of.
        """
        longest, vocabulary = self.bound.length, self.program.signature.vocabulary
        if not one.ids.size:
            raise InputError(
                f"Text {number} has no tokens: the tokenizer makes none of it and adds no special tokens. Leave it out."
            )
        over = longest is not None and len(one.ids) > longest
        if over and cuts not in (None, Strategy.LONGEST_FIRST):
            raise InputTooLongError(
                f"Text {number} has {len(one.ids)} tokens with none left of the text that {cuts} truncates; at "
                f"most {longest} are accepted ({self.bound.why}). Shorten its other text, or pass truncate=True."
            )
        # The tokenizer's own tokens stay, whatever the bound.
        if over:
            raise InputTooLongError(
                f"At most {longest} tokens are accepted ({self.bound.why}), which leaves no room beside those that "
                "the tokenizer adds. Raise that limit."
            )
        require_marker(self.program, one.ids, f"Text {number}")
        if one.ids.max() >= vocabulary:
            raise InputError(
                f"Text {number} has token id {one.ids.max()}, but the model has {vocabulary} token embeddings. Pass "
                "the tokenizer that belongs to the model, as tokenizer=."
            )
        if (beyond := self._beyond_types(one)) is not None:
            raise InputError(
                f"Text {number} has token type {beyond}, but the model has {self.program.signature.token_types} token "
                "type embeddings, numbered from 0. Pass the tokenizer that belongs to the model, as tokenizer=."
            )

    def _beyond_types(self, one: Encoded) -> int | None:
        """The highest token type of a request, where the model's table has no row for it."""
        if one.types is None or self.program.signature.token_types is None:
            return None
        highest = int(one.types.max(initial=0))
        return highest if highest >= self.program.signature.token_types else None

    def too_long(self, over: list[int], part: Part, encoded: list[Encoded]) -> InputTooLongError:
        """The refusal of some of a part's requests, by their places in it."""
        count, spare = len(encoded[over[0]].ids), part.pieces[over[0]].spare
        has = count if spare is None else f"more than {count - spare}"
        others = f" ({len(over) - 1} more of these texts are too long)" if len(over) > 1 else ""
        return InputTooLongError(
            f"Text {part.numbers[over[0]]} has {has} tokens; at most {self.bound.length} are accepted "
            f"({self.bound.why}){others}. Shorten or split it{', or pass truncate=True' if part.cuttable else ''}."
        )
