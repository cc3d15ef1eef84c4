"""What a model's code does with rows, in forms that export at any length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headrace.compat.torch import oblivious_sizes


@contextmanager
def any_length() -> Iterator[None]:
    """Let the export decide nothing by whether a text but for its last token is one token long.

    It would ask for texts of three tokens at least. What depends on that length is how memory is laid out alone.
    """
    with WholeRows(), oblivious_sizes():
        yield


class WholeRows(TorchFunctionMode):
    """`rows[:, n:] = tail` as one write of the whole rows.

    The export of a write into a view that is shorter than the text asks of the length of the view.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Replace such a write; anything else is as it was."""
        if func is Tensor.__setitem__ and _is_tail(*args):
            rows, index, tail = args
            return rows.copy_(torch.cat([rows[..., : index[-1].start], tail.to(rows.dtype)], -1))
        return func(*args, **(kwargs or {}))


class FlatRows(TorchFunctionMode):
    """`rows.reshape(...)` by way of a copy in one dimension.

    Which dimensions of the two shapes hold the same elements hangs on the sizes, and the export would ask for it.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Copy such rows first; anything else is as it was."""
        if func in (Tensor.reshape, torch.reshape):
            args = (args[0].clone(memory_format=torch.contiguous_format).view(-1), *args[1:])
        return func(*args, **(kwargs or {}))


def _is_tail(rows: Tensor, index: Any, tail: Any) -> bool:
    """Whether the index takes the end of every row, and `tail` fills it without being stretched."""
    if not (isinstance(index, tuple) and isinstance(tail, Tensor) and tail.dim() == rows.dim() == 2 == len(index)):
        return False
    first, last = index
    every = first is Ellipsis or first == slice(None)
    begins = isinstance(last, slice) and isinstance(last.start, int) and last.start > 0
    if not (every and begins and last.stop is None and last.step is None):
        return False
    return tuple(tail.shape) == (rows.shape[0], rows.shape[1] - last.start)
