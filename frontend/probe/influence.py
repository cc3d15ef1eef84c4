"""How far a row of an attention module's input reaches: the module is run again with noise in one row at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headrace.compat.torch import TorchDispatchMode
from headrace.frontend.eager.signature import first_tensor

# The arguments of one call of a module, by name or place.
Given = dict[Any, Any]
# Sizes of a change, in standard deviations of the rows.
NOISES = (1.0, 3.0, 3.0, 10.0)
# No key that can be seen scores so far below another; masks are made of less.
HIDING = 1000.0
SOFTMAX = frozenset({torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default})


def rows_given(given: Given, length: int, place: int) -> int | str | None:
    """The name or number of the argument that holds, of those with one row a token, the first or the second.

    Queries are made from the first; the second, if there is one, can be what the keys are made from.
    """
    # A second sequence may be of another length.
    wanted = length if place == 0 else None
    rows = [(name, value) for name, value in given.items() if rows_axis(value, wanted) is not None]
    found = {id(value): name for name, value in reversed(rows)}
    names = [name for name in given if name in found.values()]
    return names[place] if place < len(names) else None


def rows_axis(value: Any, length: int | None) -> int | None:
    """The dimension of a float tensor that holds one row a token: 1 of [1, S, W], 0 of [S, 1, W], 2 of [1, W, S].

    Args:
        length: how many rows it must hold; None takes any number, in the first two.

    Returns:
        None for any other tensor.
    """
    if not (isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 3):
        return None
    for axis, single in ((1, 0), (0, 1), (2, 0)):
        if value.shape[single] == 1 and (value.shape[axis] == length or (length is None and axis < 2)):
            return axis
    return None


def measured(
    module: nn.Module, given: Given, length: int, keys: tuple[int, ...], place: int = 0, allowed: float = 0.0
) -> dict[int, frozenset[int]] | None:
    """Run one attention module again with noise in one row of an argument at a time.

    Args:
        allowed: what no row is said to change by, in units of the last place of the largest value.
    """
    given = _without_cache(given)
    name = rows_given(given, length, place)
    if name is None:
        return None
    # Queries, keys and values that are one tensor change together.
    names = [other for other, value in given.items() if value is given[name]]

    def run(rows: Tensor) -> Tensor | None:
        return first_tensor(_called(module, given | dict.fromkeys(names, rows)))

    rows: Tensor = given[name]
    try:
        before = run(rows)
    except Exception:  # it needs what the model around it keeps
        return None
    given_axis = rows_axis(rows, length if place == 0 else None)
    axis = rows_axis(before.flatten(2), length) if before is not None and before.dim() > 2 else None
    if before is None or axis is None or given_axis is None:
        return None
    rounding = allowed * torch.finfo(before.dtype).eps * float(before.abs().max())

    def reached_by(key: int) -> frozenset[int]:
        seen: frozenset[int] = frozenset()
        for noise in _noises(rows, rows.shape[1 if given_axis == 2 else 2]):
            noisy = rows.clone()
            noisy.select(given_axis, key).add_(noise)
            seen |= _changed(before, run(noisy), axis, rounding)
            if len(seen) == length:
                break
        return seen

    return {key: reached_by(key) for key in keys if key < rows.shape[given_axis]}


def _changed(before: Tensor, after: Tensor | None, axis: int, rounding: float) -> frozenset[int]:
    """The places along a dimension at which two outputs differ."""
    assert after is not None, "the module ran before"
    differs = (after - before).abs() > rounding if rounding else after != before
    return frozenset(differs.movedim(axis, 0).flatten(1).any(1).nonzero().flatten().tolist())


class Weights(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps which keys softmaxes give weight to: those over as many keys as there are queries, or those and a sink.

    By the scores: a trained attention can be so sharp that a weight vanishes though nothing hides its key.
    """

    def __init__(self, length: int) -> None:
        """Of texts of that length."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.length, self.found = length, list[Tensor]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, and look at what it made."""
        made = func(*args, **(kwargs or {}))
        if func in SOFTMAX and made.dim() > 2 and made.shape[-2] == self.length <= made.shape[-1] <= self.length + 1:
            self.found.append(args[0] > args[0].amax(-1, keepdim=True) - HIDING)
        return made


def weighed(module: nn.Module, given: Given, length: int, keys: tuple[int, ...]) -> list[dict[int, frozenset[int]]]:
    """For each softmax over keys in a module's code, the rows that give each key any weight."""
    with Weights(length) as seen:
        try:
            _called(module, _without_cache(given))
        except Exception:  # it needs what the model around it keeps
            return []
    any_head = [weighs.flatten(0, -3).any(0) for weighs in seen.found]
    return [{key: frozenset(rows[:, key].nonzero().flatten().tolist()) for key in keys} for rows in any_head]


def _without_cache(given: Given) -> Given:
    """A cache would hold the keys of the run before."""
    return {name: None if hasattr(value, "get_seq_length") else value for name, value in given.items()}


def _called(module: nn.Module, given: Given) -> Any:
    places = [value for name, value in given.items() if isinstance(name, int)]
    return module.forward(*places, **{name: value for name, value in given.items() if isinstance(name, str)})


def _noises(rows: Tensor, width: int) -> Iterator[Tensor]:
    """Changes of one row of that width, each with its opposite.

    A trained attention can be so sharp that a key's weight vanishes even in float64. A score is about linear in the
    key, so of a large change and its opposite one raises it: what a query can see shows in one of them.
    """
    generator = torch.Generator().manual_seed(0)
    spread = rows.double().std()
    for scale in NOISES:
        noise = scale * spread * torch.randn(width, generator=generator, dtype=torch.float64)
        yield noise.to(rows.dtype)
        yield -noise.to(rows.dtype)
