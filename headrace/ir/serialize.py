"""Facts to JSON and back: dataclasses, enums, named tuples and tuples, by their declared types and nothing else."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

T = typing.TypeVar("T")
# The metadata of a field whose own fields are written beside the others': how facts are grouped is no part of the form.
INLINE = {"inline": True}


def encode(value: Any) -> Any:
    """The JSON form of a fact. Fields that take no part in comparison (the graph) are left out."""
    if dataclasses.is_dataclass(value):
        return _encode_dataclass(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def _encode_dataclass(value: Any) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for f in dataclasses.fields(value):
        if f.compare:
            held = encode(getattr(value, f.name))
            made |= held if f.metadata == INLINE else {f.name: held}
    return made


@typing.overload
def decode(kind: type[T], data: Any) -> T: ...
@typing.overload
def decode(kind: Any, data: Any) -> Any: ...
def decode(kind: Any, data: Any) -> Any:
    """The fact of type `kind` that `encode` turned into `data`.

    Raises:
        ValueError, TypeError, KeyError: `data` is not of that form.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if data is None else decode(next(a for a in arguments if a is not type(None)), data)
    if origin is tuple:
        _require(list | tuple, data)
        kinds = [arguments[0]] * len(data) if arguments[-1] is Ellipsis else arguments
        return tuple(decode(k, item) for k, item in zip(kinds, data, strict=True))
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if isinstance(kind, type) and issubclass(kind, tuple):
        return _decode_named_tuple(kind, data)
    if kind is not bool and isinstance(data, bool):  # which Python takes for a number
        raise TypeError(f"expected {kind.__name__}, met {data!r}")
    if kind is float and isinstance(data, int):
        return float(data)
    _require(kind, data)
    return data


def _require(kind: Any, data: Any) -> None:
    if not isinstance(data, kind):
        raise TypeError(f"expected {getattr(kind, '__name__', kind)}, met {data!r}")


def _decode_named_tuple(kind: Any, data: Any) -> Any:
    """Its fields by their order; those at the end that `data` lacks came later, and have defaults."""
    _require(list | tuple, data)
    hints = typing.get_type_hints(kind)
    later = kind._fields[len(data) :]
    if len(data) > len(kind._fields) or not set(later) <= set(kind._field_defaults):
        raise ValueError(f"{kind.__name__} has the fields {', '.join(kind._fields)}, met {data!r}")
    return kind(*(decode(hints[name], item) for name, item in zip(kind._fields, data, strict=False)))


def _decode_dataclass(kind: Any, data: Any) -> Any:
    # The graph's type is named for readers only: resolving the other annotations must not import torch.
    hints = typing.get_type_hints(kind, localns={"ExportedProgram": object})
    data = _grouped(kind, hints, data)
    stored = {f.name: f for f in dataclasses.fields(kind) if f.compare}
    if unknown := sorted(set(data) - set(stored)):
        raise KeyError(f"{kind.__name__} has no {', '.join(unknown)}; its fields are {', '.join(stored)}")
    # A field that came later has a default, or what makes one: what was written before it reads as it was meant.
    made = dataclasses.MISSING
    needed = {name for name, f in stored.items() if f.default is made and f.default_factory is made}
    if lacking := sorted(needed - set(data)):
        raise KeyError(f"{kind.__name__} lacks {', '.join(lacking)}")
    left_out = {f.name: None for f in dataclasses.fields(kind) if not f.compare}
    return kind(**left_out, **{name: decode(hints[name], value) for name, value in data.items()})


def _grouped(kind: Any, hints: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with what was written inline gathered under the field that holds it."""
    left = dict(data)
    parts = [f.name for f in dataclasses.fields(kind) if f.metadata == INLINE]
    names = {part: [f.name for f in dataclasses.fields(hints[part])] for part in parts}
    return {part: {name: left.pop(name) for name in names[part] if name in left} for part in parts} | left
