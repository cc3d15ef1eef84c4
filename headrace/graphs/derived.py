"""Weights that are made of others: once, however many programs hold them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Derived:
    """Makes weights of others. What is made of the same ones is the same, as long as some program holds it."""

    def __init__(self, make: Callable[..., Tensor]) -> None:
        """`make` is given the weights."""
        self._make = make
        self._made: weakref.WeakValueDictionary[Any, torch.nn.Parameter] = weakref.WeakValueDictionary()

    @torch.no_grad()
    def __call__(self, *parts: Tensor) -> torch.nn.Parameter:
        """What is made of `parts`. Where they lie says what to look for, and their numbers whether that is still it."""
        key = tuple((part.data_ptr(), part.device, part.dtype, part.shape, part.stride()) for part in parts)
        made, found = self._make(*parts), self._made.get(key)
        if found is None or not torch.equal(found, made):
            self._made[key] = found = torch.nn.Parameter(made, requires_grad=False)
        return found
