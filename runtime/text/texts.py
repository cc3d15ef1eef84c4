"""Texts to token ids: which requests are accepted, how long they may be, and how a longer one is truncated.

Nothing here imports transformers: a tokenizer is any object that is called as those of transformers are.
"""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tokenizers import normalizers

from headrace.backends.onnx.names import TYPES
from headrace.errors import InputError, warn
from headrace.ir import Program, Role
from headrace.runtime.places import IN_ORDER, Places
from headrace.runtime.ragged import Ragged, as_ragged
from headrace.runtime.text.bounds import Bound, find_bound
from headrace.runtime.text.chat import Chat, common_end
from headrace.runtime.text.columns import unpacked
from headrace.runtime.text.encoded import Encoded, Tokens
from headrace.runtime.text.fits import Fits
from headrace.runtime.text.ids import are_ids, read_ids, read_requests
from headrace.runtime.text.prefetch import PACKED, Sizes, in_parts, made_ahead
from headrace.runtime.text.prompts import find_prompt, require_unicode
from headrace.runtime.text.reading import Part, Reading
from headrace.runtime.text.tokenizer.reader import Reader
from headrace.runtime.text.truncation import (
    Piece,
    Strategy,
    about,
    clip,
    first_size,
    giving,
    grown,
    kept,
    read_truncate,
)
from headrace.runtime.text.validate import many, require_words
from headrace.runtime.text.windows import Window, cut


class Texts:
    """A model's tokenizer under the model's rules; built once a model, used from any thread."""

    def __init__(
        self, tokenizer: Any, program: Program, max_length: int | None = None, token_budget: int | None = None
    ) -> None:
        """Work out the bound.

        Args:
            tokenizer: a transformers tokenizer, None for a model that is called on token ids alone.
            max_length: the user's own limit in tokens.
            token_budget: the tokens that one run of the model may hold.

        Raises:
            InputError: a limit below one or above what the model can read, or no tokenizer of transformers.
        """
        if tokenizer is not None and not hasattr(tokenizer, "is_fast"):
            raise InputError(f"tokenizer is {reprlib.repr(tokenizer)}; a tokenizer of transformers is accepted.")
        self._program = program
        self._tokenizer = tokenizer
        self._fits, self._budget = Fits(program, find_bound(tokenizer, program, max_length, token_budget)), token_budget
        self._lower = program.facts.text.lower_case and tokenizer is not None
        if self._lower and tokenizer.is_fast:
            self._tokenizer, self._lower = _lower_casing(tokenizer), False
        typed = program.signature.has(Role.TYPES) and TYPES in getattr(tokenizer, "model_input_names", ())
        rules = program.facts.text.chat
        self._chat = None if rules is None else Chat(self._tokenizer, rules)
        alone = rules is not None or not program.facts.text.special_tokens
        self._reader = Reader(self._tokenizer, typed, alone=alone)

    def drawn(self, texts: Any, pairs: bool = False) -> Iterator[Any]:
        """One text, or many texts or pairs, one after the other. What each is is checked where it is tokenised.

        Args:
            pairs: whether the task takes pairs too.

        Raises:
            InputError: a mapping, a set or a table, whose texts have no place that an answer could take; or two texts
                in a tuple, which could be one pair or two texts, of a task that takes pairs.
        """
        texts = unpacked(texts, "The texts")
        if not many(texts, "The texts") or are_ids(texts):
            return iter([texts])
        if pairs and isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(one, str) for one in texts):
            raise InputError(
                f"The texts came as a tuple of two, {reprlib.repr(texts)}: one pair, or two texts. Pass a list: "
                "[(a, b)] is one pair, [a, b] two texts."
            )
        return iter(texts)

    def listed(self, texts: Any, pairs: bool = False) -> Sequence[Any]:
        """`drawn`, all at once; ids of many requests in one array stay there."""
        whole = as_ragged(texts)
        return list(self.drawn(texts, pairs)) if whole is None else whole

    def bounded(self, max_length: int) -> Texts:
        """The same reader, of texts of at most so many tokens, over what the folder or its maker says.

        Raises:
            InputError: a limit below one, or above what the model can read.
        """
        return self.within(find_bound(self._tokenizer, self._program, max_length, self._budget))

    def limited(self, length: int | None, why: str) -> Texts:
        """The same reader, of texts of at most so many tokens where that is fewer."""
        if length is None or (self.bound.length is not None and self.bound.length <= length):
            return self
        return self.within(Bound(length, why))

    def within(self, bound: Bound) -> Texts:
        """The same reader, of texts within that bound."""
        made = copy.copy(self)
        vars(made).update(_fits=Fits(self._program, bound))
        return made

    @property
    def bound(self) -> Bound:
        """How long a text may be, and what says so."""
        return self._fits.bound

    @property
    def length(self) -> int | None:
        """The tokens of a text at most."""
        return self.bound.length

    def raw(self, token_ids: Any, token_type_ids: Any, sizes: Sizes) -> tuple[int, Iterator[Tokens]]:
        """The requests of a call on token ids; see `read_ids`."""
        return read_ids(self._program, token_ids, token_type_ids, self.bound, sizes)

    def at_once(self) -> bool:
        """Whether to read a few short texts takes no longer than to have another thread do so.

        It does where the tokenizer is fast, and no other thread has it.
        """
        return self._tokenizer is None or (self._tokenizer.is_fast and self._reader.free())

    def decode(self, ids: list[int]) -> str:
        """Token ids as text."""
        return self._reader.decode(ids)

    def encode(self, texts: Iterable[Any], **options: Any) -> list[Encoded]:
        """Every part that `ahead` gives, when all are there."""
        assert not isinstance(texts, str), "a list of texts"
        return [one for part in self.ahead(list(texts), **options) for one in part]

    def ahead(
        self,
        texts: Sequence[Any],
        *,
        truncate: bool | str | None,
        pairs: bool = False,
        prompt: str | None = None,
        offsets: bool = False,
        places: Places = IN_ORDER,
        sizes: Sizes = PACKED,
        cuttable: bool = True,
    ) -> Iterator[Sequence[Encoded]]:
        """Token ids of each text, or of each pair of texts, in parts: the next are read while one is used.

        Args:
            texts: str, or pairs of str where `pairs` is set. White space stays as it is. Or token ids, which are
                taken as they are: no prompt goes before them, and none are truncated.
            truncate: whether to cut longer texts to the bound, or by which `Strategy` those of pairs; None does where
                the model's folder says so, and warns.
            prompt: a prompt's name in the folder, or its text; None takes the folder's default, "" none. It goes
                before the text, or before the first text of a pair.
            offsets: whether to say where the tokens stand in the text.
            places: where the texts stand in the caller's list.
            sizes: of the parts.
            cuttable: whether the caller has an option by which texts are truncated.

        Raises:
            InputError: something that is no text, a text without tokens, or a tokenizer that cannot do this.
            InputTooLongError: a text longer than the bound that is not to be truncated.
        """
        assert not (offsets and (pairs or prompt)), "offsets are those of one text without a prompt"
        if isinstance(texts, Ragged) and len(texts):
            self._require_alone(bool(prompt), offsets, places.number(0))
            yield from read_ids(self._program, texts, None, self.bound, sizes, places.first)[1]
            return
        _require(self._tokenizer, offsets)
        cuts = read_truncate(self._program.facts.text.truncates if truncate is None else truncate, pairs)
        before = "" if offsets else find_prompt(self._program, prompt)
        reading = Reading(cuts, pairs, before, bool(prompt), offsets, places, cuttable=cuttable)
        most = None if self.bound.length is None else first_size(self.bound.length)

        # What truncates in one go says how much it took away; of pairs, few have to be truncated.
        at_once = self.bound.length if cuts is not None and self._tokenizer.is_fast and not pairs else None
        parts = (self._part(texts, span, reading) for span in in_parts((about(text, most) for text in texts), sizes))
        shortened, read = list[int](), 0
        for part, answer in made_ahead(parts, lambda part: self._reader.ask(part.pieces, offsets, at_once)):
            encoded = part.whole(self._finished(part, answer(), reading, at_once))
            shortened += [request for request, one in enumerate(encoded, read) if one.lost]
            read += len(encoded)
            yield encoded
        if truncate is None and shortened:
            self.warn_of_cuts(shortened, len(texts), places)

    def whole(self, texts: Sequence[Any], *, pairs: bool = False, first: int = 0) -> list[Encoded]:
        """Token ids of each text however long, with where its tokens stand in it.

        Args:
            texts: str, or pairs of str where `pairs` is set; or each a list of words, whose tokens' places are those
                in the words with a space between each two.
            first: the number of the first text in messages.

        Raises:
            InputError: something that is no text, some texts in words and some not, or a tokenizer that does not say
                where tokens stand.
        """
        _require(self._tokenizer, offsets=True)
        if not pairs and any(isinstance(text, (list, tuple)) for text in texts):
            return self._reader.read_words([require_words(text, number) for number, text in enumerate(texts, first)])
        reading = Reading(None, pairs, before="", prompted=False, offsets=True, places=Places(first))
        requests = [self._request(text, reading, number) for number, text in enumerate(texts, first)]
        return self._reader.read([Piece(parts) for parts in requests], offsets=True)

    def fitted(self, whole: Sequence[Encoded], *, truncate: bool | str | None, first: int = 0) -> list[Encoded]:
        """What `whole` gave, within the bound; arguments and errors as of `ahead`."""
        cuts = read_truncate(self._program.facts.text.truncates if truncate is None else truncate, pairs=False)
        longest, found = self.bound.length, list(whole)
        over = [i for i, one in enumerate(found) if longest is not None and one.length > longest]
        if over and cuts is None:
            numbers = list(range(first, first + len(found)))
            raise self._fits.too_long(over, Part(numbers, [], [Piece(())] * len(found), {}), found)
        for i in over:
            spans = found[i].spans
            assert spans is not None
            sides = [None if side < 0 else side for side in spans.sides.tolist()]
            found[i] = found[i].only(kept(sides, longest or 0, self._tokenizer.truncation_side))
        for number, one in enumerate(found, first):
            self._fits.check(one, number, None)
        if over and truncate is None:
            self.warn_of_cuts(over, len(found), Places(first))
        return found

    def windows(self, whole: Encoded, stride: int, *, side: int = 0, first: int = 0) -> list[Window]:
        """What `whole` gave of one text, in windows within the bound that share so many tokens with the next.

        Args:
            side: which text of a pair is cut.
            first: the text's number in messages.
        """
        found = cut(whole, self.bound, stride, side, backwards=self._tokenizer.truncation_side == "left")
        for window in found:
            self._fits.check(window.encoded, first, None)
        return found

    def _part(self, texts: Sequence[Any], span: range, reading: Reading) -> Part:
        ids = [place for place, request in enumerate(span) if are_ids(texts[request])]
        given = dict(zip(ids, self._given(texts, [span[place] for place in ids], reading), strict=True))
        others = [request for place, request in enumerate(span) if place not in given]
        numbers = [reading.places.number(request) for request in others]
        requests = [self._request(texts[other], reading, number) for other, number in zip(others, numbers, strict=True)]
        longest, side = self.bound.length, self._tokenizer.truncation_side
        if longest is None:
            return Part(numbers, requests, [Piece(parts) for parts in requests], given, reading.cuttable)
        strategy = reading.cuts or Strategy.LONGEST_FIRST
        pieces = [clip(parts, first_size(longest), side, strategy) for parts in requests]
        return Part(numbers, requests, pieces, given, reading.cuttable)

    def _given(self, texts: Sequence[Any], places: list[int], reading: Reading) -> Sequence[Encoded]:
        """The requests at those places, which came as token ids."""
        numbers = [reading.places.number(place) for place in places]
        if numbers:
            self._require_alone(reading.prompted, reading.offsets, numbers[0])
        return read_requests(self._program, [texts[place] for place in places], numbers, self.bound)

    @staticmethod
    def _require_alone(prompted: bool, offsets: bool, number: int) -> None:
        """Refuse token ids where something of a text is asked for."""
        if offsets:
            raise InputError(
                f"Request {number} is token ids, and the answer is parts of a text. Pass the text, or call the model "
                "itself on the ids, for its logits."
            )
        if prompted:
            raise InputError(
                f"Request {number} is token ids, which are taken as they are: no prompt goes before them. Put its ids "
                "before them, or pass the text."
            )

    def _finished(self, part: Part, encoded: list[Encoded], reading: Reading, at_once: int | None) -> list[Encoded]:
        """The requests of a part, of what its pieces were read as: each whole or truncated, and checked."""
        bound, offsets = self.bound.length, reading.offsets
        self._lengthen(part, encoded, reading, at_once)
        over = [i for i, one in enumerate(encoded) if bound is not None and len(one.ids) > bound]
        if over and reading.cuts is None:
            raise self._fits.too_long(over, part, encoded)
        strategy = reading.cuts or Strategy.LONGEST_FIRST
        read = self._reader.read([part.pieces[i] for i in over], offsets, bound, strategy)
        for i, one in zip(over, read, strict=True):
            encoded[i] = one if one.lost else replace(one, lost=len(encoded[i].ids) - len(one.ids))
        if self._chat is not None and self._chat.restores and reading.cuts is not None:
            self._restore(self._chat, encoded, reading)
        if not self._fits.surely(encoded):
            for number, one in zip(part.numbers, encoded, strict=True):
                self._fits.check(one, number, reading.cuts)
        filling = self._program.facts.filling
        return encoded if filling is None else [one.filled(filling) for one in encoded]

    def _request(self, text: Any, reading: Reading, number: int) -> tuple[str, ...]:
        parts = tuple(text) if reading.pairs and isinstance(text, list | tuple) else (text,)
        for part in parts:
            if not isinstance(part, str) or len(parts) != 1 + reading.pairs:
                wanted = "a pair of two str" if reading.pairs else "a str"
                ids = "" if reading.offsets else ", or token ids"
                raise InputError(f"Text {number} is {reprlib.repr(text)}; here {wanted} is accepted{ids}.")
            if not part.isascii():
                require_unicode(part, f"Text {number}")
        if self._chat is not None:
            parts = (self._chat.render(parts, reading.before),)
        elif reading.before:
            parts = (reading.before + parts[0], *parts[1:])
        return tuple(part.lower() for part in parts) if self._lower else parts

    def _lengthen(self, part: Part, encoded: list[Encoded], reading: Reading, at_once: int | None) -> None:
        """Read more of each text whose piece does not surely have more tokens than the bound."""
        pieces, longest, offsets = part.pieces, self.bound.length, reading.offsets
        strategy = reading.cuts or Strategy.LONGEST_FIRST
        sizes = {i: first_size(longest or 0) for i, piece in enumerate(pieces) if piece.spare is not None}
        others = self._others(part, list(sizes), strategy)

        def needed(i: int) -> int:
            return 0 if (spare := pieces[i].spare) is None else (longest or 0) + spare + 2 * others.get(i, 0)

        while short := [i for i in sizes if encoded[i].whole < needed(i)]:
            for i in short:
                sizes[i] = grown(sizes[i], encoded[i].whole, needed(i))
                pieces[i] = clip(part.requests[i], sizes[i], self._tokenizer.truncation_side, strategy)
            for i, again in zip(short, self._reader.read([pieces[i] for i in short], offsets, at_once), strict=True):
                encoded[i] = again

    def _others(self, part: Part, clipped: list[int], strategy: Strategy) -> dict[int, int]:
        """For each pair with a clipped text, the tokens of its other text.

        How a pair is truncated depends on which text has more tokens: the clipped one must go on having more.
        """
        pairs = [i for i in clipped if len(part.pieces[i].parts) > 1]
        texts = [part.requests[i] for i in pairs]
        encoded = self._reader.read([Piece((parts[1 - giving(parts, strategy)],)) for parts in texts])
        return {i: len(one.ids) for i, one in zip(pairs, encoded, strict=True)}

    def warn_of_cuts(self, shortened: list[int], total: int, places: Places) -> None:
        """Say which of so many requests were truncated though nobody asked for it."""
        warn(
            f"{places.count_texts(shortened)} of {places.count_texts(range(total))} texts, the first of them text "
            f"{places.number(shortened[0])}, were truncated to {self.bound.length} tokens ({self.bound.why}). Pass "
            "truncate=True to accept that, or truncate=False to refuse them."
        )

    def _restore(self, chat: Chat, encoded: list[Encoded], reading: Reading) -> None:
        """Put the template's end over that of every text that fills the bound: truncation takes it first."""
        full = [i for i, one in enumerate(encoded) if len(one.ids) == self.bound.length]
        if not full:
            return
        filled = chat.filled(1 + reading.pairs, reading.before)
        end = common_end(*(one.ids for one in self._reader.read([Piece((text,)) for text in filled])))
        for i in full:
            room = len(encoded[i].ids) - len(end)
            ids = np.concatenate([encoded[i].ids[: max(0, room)], end[max(0, -room) :]])
            encoded[i] = replace(encoded[i], ids=ids)


def _require(tokenizer: Any, offsets: bool) -> None:
    if tokenizer is None:
        raise InputError(
            "The model has no tokenizer, so it takes no texts. Pass one as tokenizer=, or call the model on token ids."
        )
    if offsets and not tokenizer.is_fast:
        raise InputError(
            f"The tokenizer {tokenizer.name_or_path or reprlib.repr(tokenizer)} runs in Python and cannot say where "
            "its tokens stand in the text. Pass a fast one (with a tokenizer.json) as tokenizer=."
        )


def _lower_casing(tokenizer: Any) -> Any:
    """A copy that lower-cases first: after special tokens are found, and with offsets in the text as it was."""
    made = copy.deepcopy(tokenizer)
    backend = made.backend_tokenizer
    rest = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    return made
