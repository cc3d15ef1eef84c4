"""A user's module is only borrowed: what its own forward changes in it is seen, and put back.

Some models turn to another way on the first short text for good, count their calls or grow a cache. Each look at one
begins from what the user gave, so that no look decides what the next one sees.
"""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from headrace.compat.torch import own_buffers

# Attributes that every module has. Hooks and the mode are those of whoever sets them; these hold what is the model's.
STANDARD = frozenset(vars(nn.Module()))
HELD = ("_buffers", "_parameters", "_modules")
# Never looked into: weights would be copied, and modules are looked at one by one.
CLOSED = (nn.Module, nn.Parameter, FunctionType, MethodType, ModuleType, type)
# Most of what a module holds: told by one look at the type.
PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, nn.Parameter})


class Borrowed:
    """What the submodules of a module hold beside weights: attributes and buffers, and all that lies in those."""

    def __init__(self, module: nn.Module) -> None:
        """Take it down; weights themselves are not copied."""
        # By id, with the thing itself, lest another be made in its place under the same id.
        self.kept: dict[int, tuple[Any, Any]] = {}
        self._modules = dict(module.named_modules())
        self._owned = {path: _owned(inner) for path, inner in self._modules.items()}
        for path, inner in self._modules.items():
            for value in (*self._owned[path].values(), *(vars(inner)[name] for name in HELD)):
                self._keep(value)

    def _keep(self, value: Any) -> None:
        if type(value) in PLAIN or id(value) in self.kept or (content := _content(value)) is None:
            return
        self.kept[id(value)] = value, content
        for item in _items(content):
            self._keep(item)

    def changes(self) -> tuple[str, ...]:
        """Each attribute or buffer that is not what it was, as `path (from this to that)`."""
        found = []
        for path, inner in self._modules.items():
            before, after = self._named(path), _owned(inner) | own_buffers(inner)
            for name in dict.fromkeys((*before, *after)):
                was, now = (held.get(name, "nothing") for held in (before, after))
                if not _alike(was, now) or self._stale(now, set()):
                    found.append(f"{path}.{name}".strip(".") + f" (from {self._shown(was)} to {_short(now)})")
        return tuple(found)

    def _named(self, path: str) -> dict[str, Any]:
        buffers: dict[str, Any] = self.kept[id(own_buffers(self._modules[path]))][1]
        return self._owned[path] | buffers

    def _shown(self, value: Any) -> str:
        return _short(self.kept[id(value)][1] if id(value) in self.kept else value)

    def _stale(self, value: Any, seen: set[int]) -> bool:
        """Whether something that was there before holds other things now."""
        if id(value) not in self.kept or id(value) in seen:
            return False
        seen.add(id(value))
        _, before = self.kept[id(value)]
        if isinstance(value, Tensor):
            return not _equal(value, before)
        now = _content(value)
        return not _alike_within(before, now) or any(self._stale(item, seen) for item in _items(before))

    def restore(self) -> None:
        """Put back what is another now."""
        for path, inner in self._modules.items():
            held = inner.__dict__
            for name in [name for name in held if name not in STANDARD and name not in self._owned[path]]:
                del held[name]
            held.update(self._owned[path])
        for value, before in self.kept.values():
            _fill(value, before)


@contextmanager
def borrowed(module: nn.Module) -> Iterator[Borrowed]:
    """The module as it was, once the block ends; meanwhile what is given tells what has changed."""
    held = Borrowed(module)
    try:
        yield held
    finally:
        held.restore()


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Every tensor beside weights that the submodules hold, wherever it lies in their attributes."""
    return [value for value, _ in Borrowed(module).kept.values() if isinstance(value, Tensor)]


def _owned(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in STANDARD}


def _content(value: Any) -> Any:
    """A copy of what the value holds, one level deep; None where it can hold nothing that changes."""
    if type(value) in PLAIN or isinstance(value, CLOSED):
        return None
    if isinstance(value, Tensor):
        return value.detach().clone() if value.layout is torch.strided and not value.is_meta else None
    if isinstance(value, (dict, list, set, tuple, deque)):
        return dict(value) if isinstance(value, dict) else set(value) if isinstance(value, set) else list(value)
    return dict(held) if isinstance(held := getattr(value, "__dict__", None), dict) else None


def _items(content: Any) -> list[Any]:
    if isinstance(content, Tensor):
        return []
    return list(content.values() if isinstance(content, dict) else content)


def _fill(value: Any, before: Any) -> None:
    """Give a value the content that it had."""
    if isinstance(value, Tensor):
        if value.shape != before.shape or value.dtype != before.dtype or value.device != before.device:
            value.data = before
        elif not _equal(value, before):
            value.data.copy_(before)
    elif not isinstance(value, tuple) and not _alike_within(before, _content(value)):
        held = value if isinstance(value, (dict, list, set, deque)) else vars(value)
        held.clear()
        held.extend(before) if isinstance(held, (list, deque)) else held.update(before)


def _alike(one: Any, other: Any) -> bool:
    """Whether it is the same thing, or a plain value that equals it."""
    plain = (int, float, complex, str, bytes)
    return one is other or (type(one) is type(other) and isinstance(one, plain) and one == other)


def _alike_within(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        same = list(one) == list(other)
        return same and (all(map(is_, one.values(), other.values())) or all(map(_alike, one.values(), other.values())))
    if isinstance(one, set):
        return bool(one == other)
    return len(one) == len(other) and all(map(_alike, one, other))


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.item():g}" if value.numel() == 1 and type(value) is Tensor else f"a tensor {list(value.shape)}"
    return reprlib.repr(value)
