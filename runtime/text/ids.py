"""Token ids that callers bring themselves: which are accepted."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError, InputTooLongError
from headrace.ir import Program, Role
from headrace.runtime.text.bounds import Bound
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.prefetch import Sizes, in_parts
from headrace.runtime.text.tokenizer.keys import IDS, TYPES
from headrace.runtime.text.validate import many, read_array

# Rows of numbers, by their number in messages.
Rows = Sequence[Any] | Mapping[int, Any]


def read_ids(
    program: Program, token_ids: Any, token_type_ids: Any, bound: Bound, sizes: Sizes
) -> tuple[int, Iterator[list[Encoded]]]:
    """The requests of a call on token ids, one sequence of int each: how many, and in parts, each checked when drawn.

    Raises:
        InputError: not int, none at all, ids outside the vocabulary, types that do not fit.
        InputTooLongError: more ids than the bound.
    """
    rows = _listed(token_ids, "token_ids")
    if token_type_ids is None:
        return len(rows), (_checked(program, rows, part, bound) for part in in_parts(map(_size, rows), sizes))
    _require_types(program)
    types = _listed(token_type_ids, TYPES)
    if len(types) != len(rows):
        raise InputError(
            f"{TYPES} are of {len(types)} requests and token_ids of {len(rows)}; one number is accepted for each token "
            "id."
        )
    parts = in_parts(map(_size, rows), sizes)
    return len(rows), (_typed(program, _checked(program, rows, part, bound), types, part) for part in parts)


def are_ids(given: Any) -> bool:
    """Whether something is meant as the token ids of one request: a sequence of int, or a mapping that names them."""
    if isinstance(given, Mapping):
        return IDS in given
    if isinstance(given, (list, tuple)):
        return bool(given) and isinstance(given[0], (int, np.integer))
    kind = getattr(getattr(given, "dtype", None), "kind", None)
    if kind is None and hasattr(given, "__array__") and not isinstance(given, str):
        array, _ = read_array(given)
        return array is not None and array.ndim == 1 and array.dtype.kind in "iu"
    return kind is not None and kind in "iu" and getattr(given, "ndim", 0) == 1


def read_request(program: Program, given: Any, number: int, bound: Bound) -> Encoded:
    """The request of token ids that `are_ids` knows. They are taken as they are, special tokens and all.

    Args:
        given: the ids, or a mapping of `input_ids` and perhaps `token_type_ids`.
        number: the request's, in messages.

    Raises:
        InputError, InputTooLongError: as of `read_ids`; or a mapping with other keys.
    """
    named = dict(given) if isinstance(given, Mapping) else {IDS: given}
    ids, types = named.pop(IDS), named.pop(TYPES, None)
    if named:
        raise InputError(
            f"Request {number} has {', '.join(map(str, named))}; {IDS} and {TYPES} are accepted, unpadded: every id "
            "counts as text."
        )
    part = range(number, number + 1)
    encoded = _checked(program, {number: ids}, part, bound)
    if types is not None:
        _require_types(program)
        encoded = _typed(program, encoded, {number: types}, part)
    return encoded[0]


def _listed(rows: Any, name: str) -> Sequence[Any]:
    if not many(rows, name):
        raise InputError(f"{name} is {reprlib.repr(rows)}; a list of requests is accepted, each a sequence of int.")
    # Of an iterator, since a list asks for a length, and nested tensors have none.
    return rows if isinstance(rows, list) else list(iter(rows))


def _require_types(program: Program) -> None:
    if not program.signature.has(Role.TYPES):
        raise InputError(
            f"The model takes no {TYPES}; its inputs are {', '.join(program.signature.input_names)}. Leave them out."
        )


def _size(row: Any) -> int:
    try:
        return len(row)
    except Exception:  # of whatever library it is of: nested tensors have no length
        return 1  # it is refused when its turn comes


def _checked(program: Program, given: Rows, part: range, bound: Bound) -> list[Encoded]:
    rows = _integers(given, part, "token_ids")
    whole = np.concatenate(rows)
    outside = whole.min() < 0 or whole.max() >= program.signature.vocabulary
    if (
        outside
        or program.signature.marker is not None
        or (bound.length is not None and max(map(len, rows)) > bound.length)
    ):
        _check_each(program, rows, part, bound)
    return [Encoded(row.astype(np.int64, copy=False)) for row in rows]


def _typed(program: Program, encoded: list[Encoded], given: Rows, part: range) -> list[Encoded]:
    types = _integers(given, part, TYPES)
    last = None if program.signature.token_types is None else program.signature.token_types - 1
    for number, one, row in zip(part, encoded, types, strict=True):
        if len(one.ids) != len(row):
            raise InputError(
                f"{TYPES}[{number}] has {len(row)} numbers and token_ids[{number}] {len(one.ids)}; one is accepted for "
                "each token id."
            )
        if (least := row.min()) < 0 or (last is not None and row.max() > last):
            accepted = "0 and above" if last is None else f"0 to {last}"
            raise InputError(f"{TYPES}[{number}] holds {least if least < 0 else row.max()}; {accepted} are accepted.")
    return [Encoded(one.ids, row.astype(np.int64)) for one, row in zip(encoded, types, strict=True)]


def _check_each(program: Program, rows: list[NDArray[Any]], part: range, bound: Bound) -> None:
    """Raise for the first request that is outside the vocabulary, too long, or lacks the token that the head reads."""
    for number, row in zip(part, rows, strict=True):
        if (outside := row[(row < 0) | (row >= program.signature.vocabulary)]).size:
            raise InputError(
                f"token_ids[{number}] holds {outside[0]}; 0 to {program.signature.vocabulary - 1} are accepted."
            )
        if bound.length is not None and len(row) > bound.length:
            raise InputTooLongError(
                f"token_ids[{number}] has {len(row)} tokens; at most {bound.length} are accepted ({bound.why}). "
                "Shorten or split it."
            )
        require_marker(program, row, f"token_ids[{number}]")


def require_marker(program: Program, ids: NDArray[Any], name: str) -> None:
    """Refuse a request without the token whose row the model's head reads, if there is one.

    Raises:
        InputError: `ids` do not hold it; `name` begins the message.
    """
    marker = program.signature.marker
    if marker is not None and marker not in ids:
        raise InputError(
            f"{name} has no token {marker}, whose row the model's head reads. Add the end-of-text token, as the "
            "model's tokenizer does."
        )


def _integers(rows: Rows, part: range, name: str) -> list[NDArray[Any]]:
    arrays = []
    for number in part:
        row = rows[number]
        array, why = read_array(row)
        if array is None or array.ndim != 1 or not array.size or array.dtype.kind not in "iu" or _hides(row, array):
            raise InputError(
                f"{name}[{number}] is {reprlib.repr(row)}{f' ({why})' * bool(why)}; a sequence of one or more int is "
                "accepted, one a request."
            )
        arrays.append(array)
    return arrays


def _hides(row: Any, array: NDArray[Any]) -> bool:
    """Whether there is a bool among the numbers of a row, which numpy takes for 0 or 1."""
    return not hasattr(row, "__array__") and any(_is_bool(row[place]) for place in np.flatnonzero(array <= 1))


def _is_bool(one: Any) -> bool:
    if isinstance(one, int):
        return isinstance(one, bool)
    array, _ = read_array(one)
    return array is None or array.dtype.kind == "b"
