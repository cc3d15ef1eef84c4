"""Texts to token ids: which requests are accepted, how long they may be, and how a longer one is truncated.

Nothing here imports transformers: a tokenizer is any object that is called as those of transformers are.
"""

from __future__ import annotations

import copy
import reprlib
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import normalizers

from headrace.errors import HeadraceWarning, InputError, InputTooLongError
from headrace.ir import Program
from headrace.runtime.text.bounds import Bound, find_bound
from headrace.runtime.text.direct import leaves_room, read_direct, reads_alike, types_alone
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.given import many, require_choice
from headrace.runtime.text.pieces import Piece, clip, first_size, grown, kept
from headrace.runtime.text.spans import read_spans

TYPES = "token_type_ids"
# So many texts at once are worth finding out whether the tokenizer's library can be asked directly.
MANY = 64


class Texts:
    """A model's tokenizer under the model's rules; built once a model, used from any thread."""

    noun = "texts"

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
        self._bound = find_bound(tokenizer, program, max_length, token_budget)
        self._typed = TYPES in program.input_names and TYPES in getattr(tokenizer, "model_input_names", ())
        # A call first resets the tokenizer's own settings, which must not happen while another call reads with them.
        self._lock = threading.Lock()
        self._lower = program.text.lower_case and tokenizer is not None
        if self._lower and tokenizer.is_fast:
            self._tokenizer, self._lower = _lower_casing(tokenizer), False
        self._direct: bool | None = None  # not known before there are many texts
        self._typed_alone = self._typed

    def drawn(self, texts: Any) -> Iterator[Any]:
        """One text or pair, or many, one after the other. What each is is checked where it is tokenised.

        Raises:
            InputError: a mapping or a set, whose texts have no place that an answer could take.
        """
        one_pair = isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(item, str) for item in texts)
        return iter([texts] if one_pair or not many(texts, "The texts") else texts)

    def raw(self, token_ids: Iterable[Any], token_type_ids: Iterable[Any] | None) -> list[Encoded]:
        """The requests of a call on token ids; see `check_ids`."""
        return check_ids(self._program, token_ids, token_type_ids, self._bound)

    def encode(
        self,
        texts: Iterable[Any],
        *,
        truncate: bool | None,
        pairs: bool = False,
        prompt: str | None = None,
        offsets: bool = False,
        first: int = 0,
        cut: list[int] | None = None,
    ) -> list[Encoded]:
        """Token ids of each text, or of each pair of texts.

        Args:
            texts: str, or pairs of str where `pairs` is set. White space stays as it is.
            truncate: whether to cut longer texts to the bound; None does where the model's folder says so, and warns.
            prompt: a prompt's name in the folder, or its text; None takes the folder's default, "" none. It goes
                before the text, or before the first text of a pair.
            offsets: whether to say where the tokens stand in the text.
            first: the number of the first text in messages.
            cut: takes the numbers of the texts that were truncated, for `warn_of_cuts` to tell of; None tells at once.

        Raises:
            InputError: something that is no text, a text without tokens, or a tokenizer that cannot do this.
            InputTooLongError: a text longer than the bound that is not to be truncated.
        """
        assert not isinstance(texts, str), "a list of texts"
        assert not (offsets and (pairs or prompt)), "offsets are those of one text without a prompt"
        _require(self._tokenizer, offsets)
        require_choice("truncate", truncate)
        before = "" if offsets else _prompt(self._program, prompt)
        if before and not self._program.text.pools_prompt:
            raise InputError(
                f"The folder's Pooling leaves the prompt {before!r} out (include_prompt is false), which is not served "
                'yet. Pass prompt="" to embed without one.'
            )
        requests = [self._request(text, pairs, before, number) for number, text in enumerate(texts, first)]
        pieces, encoded = self._read(requests, offsets)
        longest = self._bound.length
        over = [i for i, one in enumerate(encoded) if longest is not None and len(one.ids) > longest]
        if over:
            self._allow_truncation(truncate, over, pieces, encoded, first)
            if truncate is None and cut is not None:
                cut += [first + i for i in over]
            elif truncate is None:
                self.warn_of_cuts([first + i for i in over], len(encoded))
            for i, one in zip(over, self._tokenise([pieces[i] for i in over], offsets, longest), strict=True):
                encoded[i] = one
        if not self._surely_fit(encoded):
            for number, one in enumerate(encoded, first):
                self._check(one, number)
        return encoded

    def _request(self, text: Any, pair: bool, before: str, number: int) -> tuple[str, ...]:
        parts = tuple(text) if pair and isinstance(text, list | tuple) else (text,)
        if len(parts) != 1 + pair or not all(isinstance(part, str) for part in parts):
            wanted = "a pair of two str" if pair else "a str"
            raise InputError(f"Text {number} is {reprlib.repr(text)}; here {wanted} is accepted.")
        for part in parts:
            _require_unicode(part, f"Text {number}")
        parts = (before + parts[0], *parts[1:])
        return tuple(part.lower() for part in parts) if self._lower else parts

    def _read(self, requests: list[tuple[str, ...]], offsets: bool) -> tuple[list[Piece], list[Encoded]]:
        """Tokenises each request, or a piece that surely has more tokens than the bound."""
        longest, side = self._bound.length, self._tokenizer.truncation_side
        if longest is None:
            pieces = [Piece(parts) for parts in requests]
            return pieces, self._tokenise(pieces, offsets)
        sizes = [first_size(longest)] * len(requests)
        pieces = [clip(parts, size, side) for parts, size in zip(requests, sizes, strict=True)]
        others = self._others(requests, pieces)
        encoded = self._tokenise(pieces, offsets)

        def needed(i: int) -> int:
            return 0 if (spare := pieces[i].spare) is None else longest + spare + 2 * others.get(i, 0)

        while short := [i for i, one in enumerate(encoded) if len(one.ids) < needed(i)]:
            for i in short:
                sizes[i] = grown(sizes[i], len(encoded[i].ids), needed(i))
                pieces[i] = clip(requests[i], sizes[i], side)
            for i, again in zip(short, self._tokenise([pieces[i] for i in short], offsets), strict=True):
                encoded[i] = again
        return pieces, encoded

    def _others(self, requests: list[tuple[str, ...]], pieces: list[Piece]) -> dict[int, int]:
        """For each pair with a clipped text, the tokens of its other text.

        How a pair is truncated depends on which text has more tokens: the clipped one must go on having more.
        """
        clipped = [i for i, piece in enumerate(pieces) if piece.spare is not None and len(piece.parts) > 1]
        # Of two texts of one length, the first is clipped.
        encoded = self._tokenise([Piece((min(reversed(requests[i]), key=len),)) for i in clipped])
        return {i: len(one.ids) for i, one in zip(clipped, encoded, strict=True)}

    def _tokenise(self, pieces: list[Piece], offsets: bool = False, longest: int | None = None) -> list[Encoded]:
        if not pieces:
            return []
        columns = [list(column) for column in zip(*(piece.parts for piece in pieces), strict=True)]
        fast = self._tokenizer.is_fast
        if not offsets and (len(pieces) >= MANY or self._direct) and (longest is None or len(columns) == 1):
            with self._lock:
                if self._reads_alike() and (longest is None or leaves_room(self._tokenizer, longest)):
                    typed = self._typed if len(columns) > 1 else self._typed_alone
                    return read_direct(self._tokenizer, columns, typed, longest)
        with self._lock:
            # Padding and truncation are named each time: a tokenizer's file may bring settings of its own.
            found = self._tokenizer(
                *columns,
                padding=False,
                truncation=longest is not None and not fast,
                max_length=longest,
                return_attention_mask=False,
                return_token_type_ids=self._typed,
                return_offsets_mapping=offsets,
                return_special_tokens_mask=offsets,
                verbose=False,
            )
        encoded = []
        for row, piece in enumerate(pieces):
            ids = np.asarray(found["input_ids"][row], np.int64)
            types = np.asarray(found[TYPES][row], np.int64) if self._typed else None
            one = Encoded(ids, types, read_spans(self._tokenizer, found, row, piece.start) if offsets else None)
            if fast and longest is not None:
                one = one.only(kept(found.sequence_ids(row), longest, self._tokenizer.truncation_side))
            encoded.append(one)
        return encoded

    def _reads_alike(self) -> bool:
        if self._direct is None:
            self._direct = reads_alike(self._tokenizer)
            self._typed_alone = self._typed and (not self._direct or types_alone(self._tokenizer))
        return self._direct

    def _allow_truncation(
        self, truncate: bool | None, over: list[int], pieces: list[Piece], encoded: list[Encoded], first: int
    ) -> None:
        bound = self._bound
        if truncate is False or (truncate is None and not self._program.text.truncates):
            count, spare = len(encoded[over[0]].ids), pieces[over[0]].spare
            has = count if spare is None else f"more than {count - spare}"
            others = f" ({len(over) - 1} more of these texts are too long)" if len(over) > 1 else ""
            raise InputTooLongError(
                f"Text {first + over[0]} has {has} tokens; at most {bound.length} are accepted ({bound.why}){others}. "
                "Shorten or split it, or pass truncate=True."
            )

    def warn_of_cuts(self, cut: list[int], total: int) -> None:
        """Say which texts the folder's rule has truncated, if any."""
        if cut:
            message = (
                f"{len(cut)} of {total} texts, the first of them text {cut[0]}, were truncated to {self._bound.length} "
                f"tokens ({self._bound.why}). Pass truncate=True to accept that, or False to refuse them."
            )
            warnings.warn(message, HeadraceWarning, stacklevel=3)

    def _surely_fit(self, encoded: list[Encoded]) -> bool:
        """Whether no text can be refused by `_check`, seen all at once."""
        lengths = [len(one.ids) for one in encoded]
        if not lengths or min(lengths) == 0 or self._program.marker is not None:
            return False
        fit = self._bound.length is None or max(lengths) <= self._bound.length
        return fit and int(np.concatenate([one.ids for one in encoded]).max()) < self._program.vocabulary

    def _check(self, one: Encoded, number: int) -> None:
        longest, vocabulary = self._bound.length, self._program.vocabulary
        if not one.ids.size:
            raise InputError(
                f"Text {number} has no tokens: the tokenizer makes none of it and adds no special tokens. Leave it out."
            )
        # The tokenizer's own tokens stay, whatever the bound.
        if longest is not None and len(one.ids) > longest:
            raise InputTooLongError(
                f"At most {longest} tokens are accepted ({self._bound.why}), which leaves no room beside those that "
                "the tokenizer adds. Raise that limit."
            )
        _require_marker(self._program, one.ids, f"Text {number}")
        if one.ids.max() >= vocabulary:
            raise InputError(
                f"Text {number} has token id {one.ids.max()}, but the model has {vocabulary} token embeddings. Pass "
                "the tokenizer that belongs to the model, as tokenizer=."
            )


def check_ids(
    program: Program, token_ids: Iterable[Any], token_type_ids: Iterable[Any] | None, bound: Bound
) -> list[Encoded]:
    """The requests of a call on token ids, one sequence of int each.

    Raises:
        InputError: not int, none at all, ids outside the vocabulary, types that do not fit.
        InputTooLongError: more ids than the bound.
    """
    rows = _integers(token_ids, "token_ids")
    whole = np.concatenate(rows) if rows else np.zeros(1, np.int64)
    longest = max(map(len, rows), default=0)
    outside = whole.min() < 0 or whole.max() >= program.vocabulary
    if outside or program.marker is not None or (bound.length is not None and longest > bound.length):
        _check_each(program, rows, bound)
    if token_type_ids is None:
        return [Encoded(row.astype(np.int64, copy=False)) for row in rows]
    if TYPES not in program.input_names:
        raise InputError(
            f"The model takes no {TYPES}; its inputs are {', '.join(program.input_names)}. Leave them out."
        )
    types = _integers(token_type_ids, TYPES)
    if [len(row) for row in types] != [len(row) for row in rows] or any(row.min() < 0 for row in types):
        raise InputError(f"{TYPES} do not fit token_ids: one number of at least 0 is accepted for each token id.")
    if program.token_types is not None and any(row.max() >= program.token_types for row in types):
        raise InputError(f"{TYPES} hold a value past {program.token_types - 1}, the model's last token type.")
    return [Encoded(row.astype(np.int64), kind.astype(np.int64)) for row, kind in zip(rows, types, strict=True)]


def _check_each(program: Program, rows: list[NDArray[Any]], bound: Bound) -> None:
    """Raise for the first request that is outside the vocabulary, too long, or lacks the token that the head reads."""
    for number, row in enumerate(rows):
        if (outside := row[(row < 0) | (row >= program.vocabulary)]).size:
            raise InputError(f"token_ids[{number}] holds {outside[0]}; 0 to {program.vocabulary - 1} are accepted.")
        if bound.length is not None and len(row) > bound.length:
            raise InputTooLongError(
                f"token_ids[{number}] has {len(row)} tokens; at most {bound.length} are accepted ({bound.why}). "
                "Shorten or split it."
            )
        _require_marker(program, row, f"token_ids[{number}]")


def _require_marker(program: Program, ids: NDArray[Any], name: str) -> None:
    if program.marker is not None and program.marker not in ids:
        raise InputError(
            f"{name} has no token {program.marker}, whose row the model's head reads. Add the end-of-text token, as "
            "the model's tokenizer does."
        )


def _integers(rows: Iterable[Any], name: str) -> list[NDArray[Any]]:
    if not many(rows, name):
        raise InputError(f"{name} is {reprlib.repr(rows)}; a list of requests is accepted, each a sequence of int.")
    arrays = []
    for number, row in enumerate(rows):
        try:
            array = np.asarray(row)
        except (TypeError, ValueError):
            array = np.empty(0)
        if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
            raise InputError(
                f"{name}[{number}] is {reprlib.repr(row)}; a sequence of one or more int is accepted, one a request."
            )
        arrays.append(array)
    return arrays


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


def _prompt(program: Program, prompt: str | None) -> str:
    known = dict(program.text.prompts)
    name = program.text.default_prompt if prompt is None else prompt
    if prompt is not None and not isinstance(prompt, str):
        raise InputError(f"prompt is {reprlib.repr(prompt)}; a prompt's name or its text is accepted.")
    if name is None or name in known:
        return known.get(name or "", "") or ""
    if prompt is None:
        raise InputError(
            f"The model's default prompt {name!r} is not among its prompts ({', '.join(known) or 'none'}). Pass "
            'prompt="" to go without one.'
        )
    if known and prompt:
        warnings.warn(
            f"prompt={prompt!r:.80} is none of the model's prompts ({', '.join(known)}) and is taken as a text.",
            HeadraceWarning,
            stacklevel=5,
        )
    _require_unicode(prompt, "The prompt")
    return prompt


def _require_unicode(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} has half a surrogate pair at character {error.start}, which no tokenizer reads. Decode it anew "
            'with errors="replace".'
        ) from None


def _lower_casing(tokenizer: Any) -> Any:
    """A copy that lower-cases first: after special tokens are found, and with offsets in the text as it was."""
    made = copy.deepcopy(tokenizer)
    backend = made.backend_tokenizer
    rest = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    return made
