"""Token ids of many requests in one array: what callers bring so costs nothing a request."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import InputError
from headrace.runtime.text.validate import read_array

Integers = NDArray[np.integer[Any]]


class Ragged(Sequence[Integers]):
    """Token ids of requests of any lengths, one after another; as a sequence, one array a request.

    Every method of a compiled model that takes token ids takes these, and the model itself does. An Arrow array of
    lists of int, and an array [requests, tokens] of int, are read as these are.

    Attributes:
        ids: of any integer dtype, [tokens].
        offsets: where each request begins in `ids`, and where the last ends: int64 [requests + 1].
    """

    def __init__(self, ids: ArrayLike, offsets: ArrayLike) -> None:
        """Copy nothing: the arrays stay the caller's, who leaves them as they are until answers have come.

        Args:
            ids: integers [tokens].
            offsets: integers [requests + 1], none below the one before, the last at most `len(ids)`.

        Raises:
            InputError: arrays of another form or dtype, or offsets that go back or past the ids.
        """
        self.ids, self.offsets = _integers(ids, "ids", 1), _integers(offsets, "offsets", 1).astype(np.int64, copy=False)
        if not len(self.offsets):
            raise InputError("offsets are empty; one more than there are requests is accepted, [0] for none.")
        if self.offsets[0] < 0:
            raise InputError(f"offsets[0] is {self.offsets[0]}; 0 and above are accepted.")
        if (back := np.flatnonzero(np.diff(self.offsets) < 0)).size:
            place = int(back[0])
            raise InputError(
                f"offsets[{place + 1}] is {self.offsets[place + 1]}, and offsets[{place}] {self.offsets[place]}: "
                f"request {place} ends before it begins. Offsets that never go back are accepted."
            )
        if self.offsets[-1] > len(self.ids):
            met = f"offsets end at {self.offsets[-1]}, and there are {len(self.ids)} ids"
            raise InputError(f"{met}; an end within them is accepted.")

    @classmethod
    def from_padded(cls, ids: ArrayLike, lengths: ArrayLike) -> Ragged:
        """The first `lengths[i]` ids of each row of an array that is padded on the right.

        Args:
            ids: integers [requests, width].
            lengths: integers [requests], 0 to width.

        Raises:
            InputError: arrays of another form or dtype, or lengths that do not fit.
        """
        rows, counts = _integers(ids, "ids", 2), _integers(lengths, "lengths", 1).astype(np.int64, copy=False)
        if len(rows) != len(counts):
            raise InputError(f"ids have {len(rows)} rows and lengths are {len(counts)}; one of each row is accepted.")
        if (wrong := np.flatnonzero((counts < 0) | (counts > rows.shape[1]))).size:
            place = int(wrong[0])
            raise InputError(f"lengths[{place}] is {counts[place]}; 0 to {rows.shape[1]}, the width, are accepted.")
        return cls(rows[np.arange(rows.shape[1]) < counts[:, None]], offsets_of(counts))

    def __len__(self) -> int:
        """How many requests."""
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, place: int) -> Integers: ...
    @overload
    def __getitem__(self, place: slice) -> Ragged: ...
    def __getitem__(self, place: int | slice) -> Integers | Ragged:
        """The ids of one request, or those of neighbours, which share the arrays.

        Raises:
            InputError: a slice with a step.
        """
        if isinstance(place, slice):
            begin, end, step = place.indices(len(self))
            if step != 1:
                raise InputError(f"The slice has the step {step}; neighbours are accepted, [begin:end].")
            return Ragged(self.ids, self.offsets[begin : max(begin, end) + 1])
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        place %= len(self)
        return self.ids[self.offsets[place] : self.offsets[place + 1]]

    def __repr__(self) -> str:
        """How much there is."""
        return f"<Ragged: {self.offsets[-1] - self.offsets[0]} ids of {len(self)} requests>"

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many ids each request has, int64 [requests]."""
        return np.diff(self.offsets)


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of so many begins, one after another, and where the last ends: int64 [n + 1]."""
    made = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=made[1:])
    return made


def as_ragged(given: Any) -> Ragged | None:
    """What holds the ids of many requests in one array as `Ragged`; None for anything else, or with a value missing.

    What is None here is read request by request, so that a message can name the one that is not accepted.
    """
    if isinstance(given, Ragged):
        return given
    arrow = sys.modules.get("pyarrow")  # whoever has such an array has imported it
    if arrow is not None and isinstance(given, (arrow.Array, arrow.ChunkedArray)):
        return _of_arrow(given)
    if not hasattr(given, "__array__") or getattr(given, "ndim", 0) != 2:
        return None
    array, _ = read_array(given)
    if array is None or array.ndim != 2 or array.dtype.kind not in "iu":
        return None
    return Ragged(array.reshape(-1), np.arange(len(array) + 1) * array.shape[1])


def _of_arrow(column: Any) -> Ragged | None:
    """A column of lists of int, whole or in chunks."""
    from pyarrow import ChunkedArray, compute, types

    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if not any(is_kind(column.type) for is_kind in kinds) or not types.is_integer(column.type.value_type):
        return None
    values = compute.list_flatten(column)
    if column.null_count or values.null_count:
        return None
    lengths = compute.list_value_length(column).to_numpy()
    flat = values.to_numpy() if isinstance(values, ChunkedArray) else values.to_numpy(zero_copy_only=False)
    return Ragged(flat, offsets_of(lengths.astype(np.int64)))


def _integers(given: Any, name: str, axes: int) -> Integers:
    array, why = read_array(given)
    form = "[requests, width]" if axes == 2 else "of one axis"
    if array is None:
        raise InputError(f"{name} are {reprlib.repr(given)} ({why}); an array of int {form} is accepted.")
    if array.ndim != axes or array.dtype.kind not in "iu":
        met = f"an array {list(array.shape)} of {array.dtype}"
        raise InputError(f"{name} are {met}; an array of int {form} is accepted.")
    return array
