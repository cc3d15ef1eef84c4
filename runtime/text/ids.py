"""Token ids that callers bring themselves: which are accepted."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.backends.onnx.names import IDS, TYPES
from headrace.errors import InputError, InputTooLongError
from headrace.ir import Program, Role
from headrace.runtime.ragged import Ragged, as_ragged
from headrace.runtime.text.bounds import Bound
from headrace.runtime.text.columns import unpacked
from headrace.runtime.text.encoded import Encoded, Tokens
from headrace.runtime.text.prefetch import Sizes, parts_of
from headrace.runtime.text.validate import many, read_array

# Numbers of some requests: all in one array, or each for itself.
Rows = Ragged | list[Any]


def read_ids(
    program: Program, token_ids: Any, token_type_ids: Any, bound: Bound, sizes: Sizes, first: int = 0
) -> tuple[int, Iterator[Tokens]]:
    """The requests of a call on token ids, one sequence of int each: how many, and in parts, each checked when drawn.

    Args:
        first: the number of the first request in messages.

    Raises:
        InputError: not int, none at all, ids outside the vocabulary, types that do not fit.
        InputTooLongError: more ids than the bound.
    """
    rows, types = _listed(token_ids, "token_ids"), None
    if token_type_ids is not None:
        _require_types(program)
        types = _listed(token_type_ids, TYPES)
        if len(types) != len(rows):
            raise InputError(
                f"{TYPES} are of {len(types)} requests and token_ids of {len(rows)}; one number is accepted for each "
                "token id."
            )
    cuts = (slice(part.start, part.stop) for part in parts_of(_sizes(rows), sizes))
    numbers = range(first, first + len(rows))
    return len(rows), (_read(program, rows[cut], types and types[cut], numbers[cut], bound) for cut in cuts)


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


def read_requests(program: Program, given: Sequence[Any], numbers: Sequence[int], bound: Bound) -> Sequence[Encoded]:
    """The requests of token ids that `are_ids` knows. They are taken as they are, special tokens and all.

    Args:
        given: the ids of each, or a mapping of `input_ids` and perhaps `token_type_ids`.
        numbers: what messages call them.

    Raises:
        InputError, InputTooLongError: as of `read_ids`; or a mapping with other keys.
    """
    named = [_named(one, number) for one, number in zip(given, numbers, strict=True)]
    if all(types is None for _, types in named):
        return _read(program, [ids for ids, _ in named], None, numbers, bound) if named else []
    _require_types(program)
    kinds = [None if types is None else [types] for _, types in named]
    each = zip(named, kinds, numbers, strict=True)
    return [_read(program, [ids], types, [number], bound)[0] for (ids, _), types, number in each]


def _named(given: Any, number: int) -> tuple[Any, Any]:
    """The ids and the token types of a request."""
    if not isinstance(given, Mapping):
        return given, None
    named = dict(given)
    ids, types = named.pop(IDS), named.pop(TYPES, None)
    if named:
        raise InputError(
            f"Request {number} has {', '.join(map(str, named))}; {IDS} and {TYPES} are accepted, unpadded: every id "
            "counts as text."
        )
    return ids, types


def _listed(rows: Any, name: str) -> Rows:
    if (whole := as_ragged(rows)) is not None:
        return whole
    rows = unpacked(rows, name)
    if not many(rows, name):
        raise InputError(f"{name} is {reprlib.repr(rows)}; a list of requests is accepted, each a sequence of int.")
    # Of an iterator, since a list asks for a length, and nested tensors have none.
    return rows if isinstance(rows, list) else list(iter(rows))


def _require_types(program: Program) -> None:
    if not program.signature.has(Role.TYPES):
        raise InputError(
            f"The model takes no {TYPES}; its inputs are {', '.join(program.signature.input_names)}. Leave them out."
        )


def _sizes(rows: Rows) -> NDArray[np.int64]:
    if isinstance(rows, Ragged):
        return rows.lengths
    try:
        return np.fromiter(map(len, rows), np.int64, len(rows))
    except Exception:  # of whatever library a row is of
        return np.fromiter(map(_size, rows), np.int64, len(rows))


def _size(row: Any) -> int:
    try:
        return len(row)
    except Exception:  # nested tensors have no length
        return 1  # it is refused when its turn comes


def _read(program: Program, rows: Rows, types: Rows | None, numbers: Sequence[int], bound: Bound) -> Tokens:
    """Requests, and their token types, checked; `numbers` are what messages call them."""
    given, lengths = _flat(rows, numbers, "token_ids")
    ids = given.astype(np.int64, copy=False)
    outside = ids.view(np.uint64).max() >= program.signature.vocabulary  # as what is below zero is then
    long = bound.length is not None and lengths.max() > bound.length
    marker = program.signature.marker
    if outside or long or (marker is not None and not _holds(ids, marker, lengths)):
        _check_each(program, np.split(given, lengths.cumsum()[:-1]), numbers, bound)
    kinds = None if types is None else _types(program, types, numbers, lengths).astype(np.int64, copy=False)
    return Tokens(ids, lengths, kinds)


def _holds(ids: NDArray[np.int64], marker: int, lengths: NDArray[np.int64]) -> bool:
    """Whether each request holds the token."""
    return bool(np.logical_or.reduceat(ids == marker, lengths.cumsum() - lengths).all())


def _types(program: Program, rows: Rows, numbers: Sequence[int], wanted: NDArray[np.int64]) -> NDArray[Any]:
    """Token types of requests that have so many tokens."""
    types, lengths = _flat(rows, numbers, TYPES)
    if (other := np.flatnonzero(lengths != wanted)).size:
        number, place = numbers[int(other[0])], other[0]
        raise InputError(
            f"{TYPES}[{number}] has {lengths[place]} numbers and token_ids[{number}] {wanted[place]}; one is accepted "
            "for each token id."
        )
    last = None if program.signature.token_types is None else program.signature.token_types - 1
    if (beyond := np.flatnonzero((types < 0) | (False if last is None else types > last))).size:
        number = numbers[int(np.searchsorted(lengths.cumsum(), beyond[0], "right"))]
        accepted = "0 and above" if last is None else f"0 to {last}"
        raise InputError(f"{TYPES}[{number}] holds {types[beyond[0]]}; {accepted} are accepted.")
    return types


def _check_each(program: Program, rows: list[NDArray[Any]], numbers: Sequence[int], bound: Bound) -> None:
    """Raise for the first request that is outside the vocabulary, too long, or lacks the token that the head reads."""
    for number, row in zip(numbers, rows, strict=True):
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


def _flat(rows: Rows, numbers: Sequence[int], name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The numbers of all rows in one array, and how many each has."""
    if isinstance(rows, Ragged):
        lengths = rows.lengths
        if (empty := np.flatnonzero(lengths == 0)).size:
            raise _refusal(rows[int(empty[0])], numbers[int(empty[0])], name)
        return rows.ids[rows.offsets[0] : rows.offsets[-1]], lengths
    flat = _joined(rows)
    if flat is None:
        rows = [_integers(row, number, name) for number, row in zip(numbers, rows, strict=True)]
        # Of int64 beside uint64 numpy would make float64.
        mixed = len({row.dtype.kind for row in rows}) > 1
        flat = np.concatenate(rows, dtype=object if mixed else None)
    return flat, np.fromiter(map(len, rows), np.int64, len(rows))


def _joined(rows: Sequence[Any]) -> NDArray[Any] | None:
    """The numbers of rows that are all alike; None where each is to be looked at alone."""
    kinds = set(map(type, rows))
    if kinds <= {list, tuple} and all(rows):
        numbers = list(chain.from_iterable(rows))
        made = np.array(numbers) if set(map(type, numbers)) == {int} else None  # which no bool is
        return made if made is not None and made.dtype == np.int64 else None
    if kinds == {np.ndarray} and {row.ndim for row in rows} == {1} and len({row.dtype for row in rows}) == 1:
        return np.concatenate(rows) if rows[0].dtype.kind in "iu" and all(map(len, rows)) else None
    return None


def _integers(row: Any, number: int, name: str) -> NDArray[Any]:
    array, why = read_array(row)
    if array is None or array.ndim != 1 or not array.size or array.dtype.kind not in "iu" or _hides(row, array):
        raise _refusal(row, number, name, why)
    return array


def _refusal(row: Any, number: int, name: str, why: str = "") -> InputError:
    return InputError(
        f"{name}[{number}] is {reprlib.repr(row)}{f' ({why})' * bool(why)}; a sequence of one or more int is accepted, "
        "one a request."
    )


def _hides(row: Any, array: NDArray[Any]) -> bool:
    """Whether there is a bool among the numbers of a row, which numpy takes for 0 or 1."""
    return not hasattr(row, "__array__") and any(_is_bool(row[place]) for place in np.flatnonzero(array <= 1))


def _is_bool(one: Any) -> bool:
    if isinstance(one, int):
        return isinstance(one, bool)
    array, _ = read_array(one)
    return array is None or array.dtype.kind == "b"
