"""Which attribute of a configuration is an attention's window: candidates by their number, for the masks to tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from headrace.ir import Window

# Two windows that a probe can measure; the second only shows that the mask follows the attribute.
SHRUNK = (8, 14)
# What an attribute says of a window's reach: itself, counted with the token's own place, or both sides together.
RULES: tuple[Callable[[int], int], ...] = (
    lambda size: size,
    lambda size: size - 1,
    lambda size: size // 2,
    lambda size: (size - 1) // 2,
    lambda size: size // 2 - 1,
)


def candidates(model: nn.Module, window: Window) -> Iterator[tuple[Any, str, Callable[[int], int]]]:
    """Each attribute that may be the window, and the rule by which it is; some have its number by chance."""
    configs = {id(c): c for m in model.modules() if hasattr(c := getattr(m, "config", None), "__dict__")}
    for config in configs.values():
        for name, value in list(vars(config).items()):
            for rule in RULES if type(value) is int else ():
                if rule(value) == max(window):
                    yield config, name, rule


@contextmanager
def set_to(config: Any, name: str, value: int) -> Iterator[None]:
    """Another value of an attribute, until the block ends."""
    before = getattr(config, name)
    setattr(config, name, value)
    try:
        yield
    finally:
        setattr(config, name, before)
