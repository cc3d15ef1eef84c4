"""Things that callers hand over, most of them wrong, each drawn by a seed."""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

ATOMS: list[Callable[[random.Random], Any]] = [
    lambda draw: draw.choice(["", "w5 w6", "w5 [MASK]", "[MASK]", " ", "\0", "\ud800", "é", "w5 " * 99, "🙂" * 3]),
    lambda draw: draw.choice([None, True, False, ..., NotImplemented, type, int]),
    lambda draw: draw.choice([0, 1, 5, -1, 96, 2**31, 2**63, 2**64, 10**30, 10**400]),
    lambda draw: draw.choice([0.0, 0.5, -1.5, float("nan"), float("inf"), 1e300, 1j]),
    lambda draw: draw.choice([b"", b"w5", bytearray(b"w5"), memoryview(b"w5")]),
    lambda draw: draw.choice([np.int64(5), np.float32(0.5), np.bool_(True), np.str_("w5"), np.bytes_(b"w5")]),
    lambda draw: draw.choice(
        [np.zeros((0,)), np.zeros(()), np.zeros((2, 3)), np.arange(5), np.arange(6).reshape(2, 3)]
    ),
    lambda draw: draw.choice(
        [np.array(["w5", "w6"]), np.array([None, "w5"], object), np.array([[1, 2], None], object)]
    ),
    lambda draw: draw.choice(
        [np.ma.masked_array([1, 2], [0, 1]), np.datetime64("2026-01-01"), np.array([1, 2], ">u2")]
    ),
    lambda draw: draw.choice([Path("w5"), datetime.date(2026, 1, 1), decimal.Decimal(5), Fraction(1, 2)]),
    lambda draw: draw.choice([object(), Exception("x"), len, range(3), range(0), slice(1), Odd(), Endless()]),
    lambda draw: _tensor(draw),
]


class Odd:
    """Answers every question about itself with an error."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __getitem__(self, place: int) -> Any:
        raise RuntimeError("no item")

    def __repr__(self) -> str:
        return "Odd()"


class Endless:
    """Says that it has items, and has none."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        return iter(())


def _tensor(draw: random.Random) -> Any:
    import torch

    made: list[Callable[[], Any]] = [
        lambda: torch.tensor([1, 2, 5]), lambda: torch.tensor([[1, 2], [3, 4]]), lambda: torch.tensor(5),
        lambda: torch.zeros(0), lambda: torch.ones(2, requires_grad=True), lambda: torch.tensor([True, False]),
        lambda: torch.ones(3, dtype=torch.bfloat16), lambda: torch.ones(3, dtype=torch.complex64),
        lambda: torch.eye(3).to_sparse(), lambda: torch.empty(3, device="meta"),
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    ]  # fmt: skip
    return draw.choice(made)()


def thing(draw: random.Random, depth: int = 0) -> Any:
    """Something, perhaps of more things."""
    if depth > 3 or draw.random() < 0.35:
        return draw.choice(ATOMS)(draw)
    held = [thing(draw, depth + 1) for _ in range(draw.choice((0, 1, 1, 2, 2, 3)))]
    how = draw.choice(("list", "list", "list", "tuple", "iterator", "generator", "set", "dict", "array", "raising"))
    if how == "tuple":
        return tuple(held)
    if how == "iterator":
        return iter(held)
    if how == "generator":
        return (item for item in held)
    if how in ("set", "dict"):
        keys = [item for item in held if isinstance(item, (str, int, float, bytes, type(None)))]
        return set(keys) if how == "set" else dict.fromkeys(keys, held)
    if how == "array":
        made = np.empty(len(held), object)
        for place, item in enumerate(held):
            made[place] = item
        return made
    return held


OPTIONS: dict[str, tuple[str, ...]] = {
    "embed": ("normalize", "dimensions", "prompt", "truncate", "batch_size", "progress"),
    "embed_iter": ("normalize", "dimensions", "prompt", "truncate", "batch_size", "progress"),
    "token_embed": ("prompt", "truncate", "batch_size", "progress"),
    "classify": ("truncate", "batch_size", "progress"),
    "score": ("truncate", "batch_size", "progress"),
    "token_classify": ("aggregation", "truncate", "batch_size", "progress"),
    "fill_mask": ("top", "truncate", "batch_size", "progress"),
    "counting_from": (),
    "__call__": ("task", "token_type_ids"),
    "explain": (),
}


def call(model: Any, draw: random.Random) -> tuple[str, Callable[[], Any]]:
    """One call of a method with things: what it is, and what makes it."""
    name = draw.choice([*OPTIONS, "rank", "similarity"])
    given: list[Any] = [thing(draw)]
    options = {option: thing(draw) for option in OPTIONS.get(name, ()) if draw.random() < 0.15}
    if name in ("rank", "similarity"):
        given.append(thing(draw))

    def made() -> Any:
        found = getattr(model, name)(*given, **options)
        return list(found) if name == "embed_iter" else found

    return f"{name}({given!r:.300}, {options!r:.200})", made
