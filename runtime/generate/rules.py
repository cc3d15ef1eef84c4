"""What a row's next token may not be, or is likelier to be, by its place and the tokens before it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.ir import Decoding
from headrace.runtime.generate.options import GenerateOptions

Ids = NDArray[np.int64]
Bits = NDArray[np.int32]
Biases = tuple[Ids, NDArray[np.float32]]
NEVER = np.float32(-np.inf)


class Rules:
    """The rules of one request: those of its options, and the folder's.

    Attributes:
        asked: what the caller adds to logits, whatever the folder says: ids, each once, and values.
        idle: whether there are none at any place.
    """

    def __init__(
        self,
        options: GenerateOptions,
        decoding: Decoding,
        vocabulary: int,
        lengths: tuple[int, int],
        source: Ids | None = None,
    ) -> None:
        """Gather what no place changes.

        Args:
            lengths: the least and the most new tokens.
            source: what the encoder of an encoder-decoder read, None where there is none.

        Raises:
            InputError: options name tokens that the head has no logit for.
        """
        _require_known("logit_bias", (token for token, _ in options.logit_bias), vocabulary)
        _require_known("stop_token_ids", options.stop_token_ids, vocabulary)
        self._decoding, self._vocabulary = decoding, vocabulary
        self._least, self._most = lengths
        self._stops = list(dict.fromkeys((*decoding.ends, *options.stop_token_ids)))
        self._source = source
        self.asked = _summed(list(options.logit_bias))
        self._always = _summed(
            list(options.logit_bias)
            + [(tokens[0], bias) for tokens, bias in decoding.biases if len(tokens) == 1]
            + [(token, float(NEVER)) for token in decoding.suppressed]
            + [(word[0], float(NEVER)) for word in decoding.bad_words if len(word) == 1]
        )
        self._sequences = [(tokens, bias) for tokens, bias in decoding.biases if len(tokens) > 1]
        self._sequences += [(word, float(NEVER)) for word in decoding.bad_words if len(word) > 1]
        self._moves = bool(self._sequences or decoding.no_repeat or decoding.encoder_no_repeat)
        forces = decoding.first is not None or decoding.last or decoding.suppressed_first
        self.idle = not (len(self._always[0]) or self._moves or forces or (self._least and self._stops))

    def forced(self, held: Ids, new: Ids) -> Bits | None:
        """The tokens of which one must come, as bits; None where no rule of the folder forces any.

        Args:
            held: what the decoder began with, int64 [h].
            new: the tokens since, int64 [place].
        """
        if len(new) == self._most - 1 and self._decoding.last:
            return as_bits(self._decoding.last, self._vocabulary)
        if len(held) + len(new) == 1 and self._decoding.first is not None:
            return as_bits((self._decoding.first,), self._vocabulary)
        return None

    def biases(self, held: Ids, new: Ids) -> Biases:
        """What is added to logits: ids, each once, and values; tokens as `forced` has them."""
        never = [*(self._stops if len(new) < self._least else ()), *self._suppressed_now(held, new)]
        if not never and not self._moves:
            return self._always
        ruled = [(token, float(NEVER)) for token in never]
        if self._moves:
            ids = np.concatenate([held, new])
            ruled += [(tokens[-1], bias) for tokens, bias in self._sequences if _ends_in(ids, tokens[:-1])]
            ruled += [(int(token), float(NEVER)) for token in self._repeats(ids)]
        return _summed([*zip(*(part.tolist() for part in self._always), strict=True), *ruled])

    def _suppressed_now(self, held: Ids, new: Ids) -> tuple[int, ...]:
        """Those of the first place: the second, where the folder forces the first."""
        first = int(len(held) == 1 and self._decoding.first is not None)
        return self._decoding.suppressed_first if len(new) == first else ()

    def _repeats(self, ids: Ids) -> Ids:
        """Tokens that would end a sequence of tokens that came before, here or in what the encoder read."""
        own = _followers(ids, ids, self._decoding.no_repeat)
        if self._source is None:
            return own
        return np.concatenate([own, _followers(self._source, ids, self._decoding.encoder_no_repeat)])


def as_bits(ids: tuple[int, ...] | Ids, vocabulary: int) -> Bits:
    """Tokens as int32 [(vocabulary + 31) // 32], a bit each, the lowest first."""
    held = np.zeros((vocabulary + 31) // 32 * 32, np.uint8)
    held[np.asarray(ids, np.int64)] = 1
    return np.packbits(held, bitorder="little").view("<i4").astype(np.int32)


def _require_known(name: str, ids: Iterable[int], vocabulary: int) -> None:
    if beyond := [token for token in ids if token >= vocabulary]:
        raise InputError(f"{name} holds {beyond[0]}; 0 to {vocabulary - 1} are accepted.")


def _summed(pairs: list[tuple[int, float]]) -> Biases:
    """Each id once, with the sum of what is added to it."""
    ids, places = np.unique(np.array([token for token, _ in pairs], np.int64), return_inverse=True)
    sums = np.zeros(len(ids), np.float64)
    np.add.at(sums, places.reshape(-1), np.array([bias for _, bias in pairs], np.float64))
    return ids, sums.astype(np.float32)


def _ends_in(ids: Ids, tokens: tuple[int, ...]) -> bool:
    return len(ids) >= len(tokens) and ids[len(ids) - len(tokens) :].tolist() == list(tokens)


def _followers(among: Ids, ids: Ids, size: int) -> Ids:
    """What follows in `among` wherever the last tokens of `ids` are there: so many tokens with it."""
    if not size or len(among) < size or len(ids) + 1 < size:
        return np.empty(0, np.int64)
    windows = sliding_window_view(among, size)
    return np.asarray(windows[(windows[:, :-1] == ids[len(ids) + 1 - size :]).all(1), -1], np.int64)
