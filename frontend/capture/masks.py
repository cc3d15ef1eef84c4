"""The kind of a mask, read from the index closure that transformers hands a mask function."""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor

from headrace.compat.torch import without_modes
from headrace.ir import MaskKind, Window
from headrace.ops.attention import visible

# Query positions to look from. None is a multiple of a power of two: at the edge of a chunk, a chunked mask
# would pass for a window of one.
ORIGIN, OTHER_ORIGINS = 1 << 16, (65_543, 99_991, 131_071)
# Rows of the batch that a closure is asked about.
ROWS = 8
LEAST_REACH, WIDENINGS = 64, (1, 8, 64, 512)
# Positions whose every pair must bear out what was read near the origins: the start of a text and far apart.
PAIRED = (*range(16), *(place + near for place in (2**i for i in range(5, 18)) for near in (-1, 0, 1)))


def read_mask(closure: Callable[..., object], local_size: int | None) -> tuple[MaskKind, Window]:
    """Evaluate `closure(batch, head, query, key)` on concrete positions around a query.

    Args:
        closure: transformers' mask function, true where the query sees the key.
        local_size: the window or chunk that the caller of the closure states, a hint of how far to look.

    Returns:
        The kind and the inclusive window, or OPAQUE where the relation depends on more than the distance.
    """
    # The closure runs while the model is being traced; these evaluations must not enter the graph.
    with without_modes():
        if _captures(closure):
            return _chunks(closure)
        for wider in WIDENINGS:
            kind, window = _near(closure, 2 * wider * max(local_size or 0, LEAST_REACH) + 5)
            if kind is MaskKind.OPAQUE or _holds(closure, kind, window):
                return kind, window
    return MaskKind.OPAQUE, Window()


def _near(closure: Callable[..., object], reach: int) -> tuple[MaskKind, Window]:
    """What the keys within reach of several queries say, each in another row of the batch and another head."""
    origins = (ORIGIN, *OTHER_ORIGINS, reach + 3)
    lines = [_around(closure, index, origin, reach) for index, origin in enumerate(origins)]
    seen = lines[0]
    left, right = _run(seen[reach::-1]), _run(seen[reach:])
    if any(line != seen for line in lines) or not seen[reach] or left is None or right is None:
        return MaskKind.OPAQUE, Window()
    return _kind(left, right, reach)


def _holds(closure: Callable[..., object], kind: MaskKind, window: Window, first: int = 0) -> bool:
    """Whether the closure is that kind and window wherever two positions lie, counted from a row's first."""
    zero, places = torch.zeros((), dtype=torch.long), torch.tensor(PAIRED) + first
    q, k = places[:, None], places[None, :]
    seen = torch.as_tensor(closure(zero, zero, q, k))
    expected = visible(q - first, k - first, kind, window)
    return bool(seen.all() if expected is None else (seen == expected).all())


def _captures(closure: Any) -> list[Tensor]:
    """The tensors that the closure, or one that it calls, holds."""
    cells = [cell.cell_contents for cell in getattr(closure, "__closure__", None) or ()]
    held = [item for cell in cells for item in (cell if isinstance(cell, (tuple, list)) else [cell])]
    inner = [tensor for item in held if callable(item) and not isinstance(item, Tensor) for tensor in _captures(item)]
    return [item for item in held if isinstance(item, Tensor)] + inner


def _chunks(closure: Callable[..., object]) -> tuple[MaskKind, Window]:
    """CHUNKED where the tensors that the closure holds are each row's first position, from which it counts blocks.

    What they hold is put in place of them, which a relation of anything else than two places would not survive.
    """
    if any(tensor.dim() != 1 or tensor.is_floating_point() for tensor in _captures(closure)):
        return MaskKind.OPAQUE, Window()
    zero, places = torch.zeros((), dtype=torch.long), torch.arange(1, ORIGIN)
    seen = torch.as_tensor(_shifted(closure, 0)(zero, zero, places, places - 1))
    if seen.all():
        return MaskKind.OPAQUE, Window()
    window = Window(int(seen.int().argmin()), 0)
    moved = all(_holds(_shifted(closure, first), MaskKind.CHUNKED, window, first) for first in (0, 3, 100))
    return (MaskKind.CHUNKED, window) if moved else (MaskKind.OPAQUE, Window())


def _shifted(closure: Any, first: int) -> Any:
    """The closure with every tensor that it holds [batch] filled with the first position of a row."""

    def filled(held: Any) -> Any:
        if isinstance(held, Tensor):
            return torch.full((ROWS,), first)
        if isinstance(held, (tuple, list)):
            return type(held)(filled(item) for item in held)
        return _shifted(held, first) if isinstance(held, FunctionType) else held

    cells = tuple(CellType(filled(cell.cell_contents)) for cell in closure.__closure__ or ())
    return FunctionType(closure.__code__, closure.__globals__, closure.__name__, closure.__defaults__, cells)


def _kind(left: int, right: int, reach: int) -> tuple[MaskKind, Window]:
    before = -1 if left == reach else left
    if right == 0:
        return MaskKind.CAUSAL, Window(before, 0)
    return MaskKind.BIDIRECTIONAL, Window(before, -1 if right == reach else right)


def _around(closure: Callable[..., object], index: int, origin: int, reach: int) -> list[bool]:
    row = torch.as_tensor(index)
    keys = torch.arange(origin - reach, origin + reach + 1)
    seen: list[bool] = torch.as_tensor(closure(row, row, torch.as_tensor(origin), keys)).expand(keys.shape).tolist()
    return seen


def _run(seen: list[bool]) -> int | None:
    """How far an unbroken run of seen keys goes beyond the query itself; None where it breaks and resumes."""
    length = seen.index(False) if False in seen else len(seen)
    return None if any(seen[length:]) else length - 1
