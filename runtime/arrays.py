"""Arrays to requests: which are accepted by a model that reads pixels, samples or features in place of text.

Images and sound become arrays by the processor of the model's folder, where it has one.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError, InputTooLongError
from headrace.ir import Axis, Input, Program
from headrace.ir.printer import axes_text
from headrace.runtime.media.processor import Processor
from headrace.runtime.places import IN_ORDER, Places
from headrace.runtime.text.validate import counts, read_array

LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True, eq=False)
class Given:
    """One request: float32 values without a batch axis; `length` is its free axis' size, else how many rows it makes.

    Requests of one length can go together.
    """

    values: NDArray[np.float32]
    length: int


class Arrays:
    """What a model's array input accepts."""

    def __init__(self, program: Program, max_length: int | None = None, token_budget: int | None = None) -> None:
        """Read the shape off the program.

        Raises:
            InputError: a limit in tokens, or a budget that no request fits.
        """
        (self._input,) = program.signature.arrays
        self._axes = self._input.axes[1:]
        self._free = free_axis(self._input)
        self._rows, self._budget = program.signature.rows, token_budget
        said = program.facts.processor
        self._processor = Processor(self._input, said) if said else None
        if max_length is not None:
            self.bounded(max_length)
        if token_budget is not None and (not counts(token_budget) or token_budget < (program.signature.rows or 1)):
            least = (
                f"one request makes {program.signature.rows} rows"
                if program.signature.rows
                else "an int of 1 and above is accepted"
            )
            raise InputError(f"token_budget is {token_budget!r}, the rows in one step at most; {least}.")

    def drawn(self, given: Any, pairs: bool = False) -> Iterator[Any]:
        """One array or many, one after the other: an array of the input's own rank is one, of one more a batch.

        One file, image or sound with its rate is one too.
        """
        if self._processor is not None and not isinstance(given, list) and self._processor.takes(given):
            return iter([given])
        if hasattr(given, "__array__"):
            array = read_array(given)[0]
            batch = given if array is None else array
            return iter(batch if getattr(batch, "ndim", 0) == len(self._axes) + 1 else [batch])
        if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
            return iter([given])
        return iter(given)

    def listed(self, given: Any, pairs: bool = False) -> Sequence[Any]:
        """`drawn`, all at once."""
        return list(self.drawn(given))

    def bounded(self, max_length: int) -> NoReturn:
        """Refuse a limit in tokens.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"max_length counts tokens, but the model reads {self._described()}. Leave max_length={max_length!r} out."
        )

    def ahead(self, given: Iterable[Any], *, sizes: Any = None, **options: Any) -> Iterator[list[Given]]:
        """What `encode` gives, in one part whatever the sizes: to check arrays takes no time to speak of."""
        yield self.encode(given, **options)

    def encode(
        self,
        given: Iterable[Any],
        *,
        truncate: bool | None = None,
        pairs: bool = False,
        prompt: str | None = None,
        places: Places = IN_ORDER,
    ) -> list[Given]:
        """Check each array. The options are those of texts; none of them has a meaning here.

        Raises:
            InputError: something that is no array of the model's shape, or an option of texts.
            InputTooLongError: an array of more rows than the token budget.
        """
        if truncate is not None or prompt is not None:
            raise InputError(f"truncate and prompt are for texts; the model reads {self._described()}. Leave them out.")
        return [self._checked(one, places.number(request)) for request, one in enumerate(given)]

    def no_text(self) -> InputError:
        """The refusal of a task that answers with parts of a text."""
        return InputError(
            f"The task answers with parts of a text, but the model reads {self._described()}. Call the model itself on "
            "them: model(arrays) gives the logits of every row."
        )

    def raw(self, given: Any, types: Any, sizes: Any = None) -> tuple[int, list[list[Given]]]:
        """The requests of a call on the model itself: how many, and in one part."""
        if types is not None:
            raise InputError(f"The model reads {self._described()} and takes no token_type_ids. Leave them out.")
        encoded = self.encode(self.drawn(given))
        return len(encoded), [encoded]

    def _checked(self, one: Any, number: int) -> Given:
        if self._processor is not None and self._processor.takes(one):
            one = self._processor.array(one, number)
        if isinstance(one, (str, bytes, Mapping)):
            raise self._refusal(f"Request {number} is {reprlib.repr(one)}")
        if isinstance(one, np.ma.MaskedArray):
            raise self._refusal(f"Request {number} is a masked array")
        values, why = read_array(one)
        if values is None:
            raise self._refusal(f"Request {number} is {reprlib.repr(one)}, and {why}")
        if values.dtype.kind != "f":
            raise self._refusal(f"Request {number} holds {values.dtype} values")
        if len(values.shape) != len(self._axes) or any(
            axis.size not in (None, size) or size < axis.least
            for axis, size in zip(self._axes, values.shape, strict=True)
        ):
            raise self._refusal(f"Request {number} has the shape {list(values.shape)}")
        if not (np.abs(values) <= LARGEST).all():
            raise InputError(
                f"Request {number} holds NaN or infinite values, or some beyond float32; finite ones are accepted."
            )
        return Given(np.ascontiguousarray(values, np.float32), self._length(values, number))

    def _length(self, values: NDArray[Any], number: int) -> int:
        if self._free is None:
            assert self._rows is not None
            return self._rows
        size = int(values.shape[self._axes.index(self._free)])
        if self._budget is not None and (rows := self._free.rows(size)) > self._budget:
            raise InputTooLongError(
                f"Request {number} makes {rows} rows; at most {self._budget} are accepted (token_budget="
                f"{self._budget}). Split it."
            )
        return size

    def _refusal(self, met: str) -> InputError:
        name = self._input.name
        # The transformers class that makes such arrays of files: images have a height.
        maker = "AutoImageProcessor" if any(axis.name == "height" for axis in self._axes) else "AutoFeatureExtractor"
        if self._processor is not None:
            also = f"{self._processor.accepts}, of which its folder's processor makes such arrays"
            return InputError(f"{met}; the model reads {self._described()}, one a request; or {also}.")
        return InputError(
            f"{met}; the model reads {self._described()}, one a request. Its folder holds no processor "
            f"(preprocessor_config.json) that would read files: make the arrays with transformers.{maker}, "
            f'processor(..., return_tensors="np")["{name}"].'
        )

    def _described(self) -> str:
        return f"{self._input.name}: floating-point arrays {axes_text(self._axes)}"


def free_axis(given: Input) -> Axis | None:
    """The axis but the batch's whose size each request brings."""
    return next((axis for axis in given.axes[1:] if axis.size is None), None)
