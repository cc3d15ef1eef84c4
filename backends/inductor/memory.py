"""The weights of one model in one stretch of memory: the process's own, or pages of a file, which processes share."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from headrace.backends.inductor.weights import Parts, layout

# Bytes at which a weight begins: of a line of the processor's cache, and of its widest register.
ALIGNMENT = 64


@dataclass(frozen=True)
class Place:
    """Where a weight lies in the stretch, and what it looks like there."""

    begin: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        """Its bytes."""
        return prod(self.shape) * _dtype(self.dtype).itemsize


class Memory:
    """Weights by name, for as long as it is held: compiled code that is shown them must hold it.

    Code never gives up tensors that it was shown. So what they show goes when this object does, whoever holds them.
    """

    def __init__(self, pages: mmap.mmap, places: Mapping[str, Place]) -> None:
        """Take pages and where the weights lie in them.

        Raises:
            ValueError: one lies past their end.
        """
        if any(place.begin < 0 or place.begin + place.size > len(pages) for place in places.values()):
            raise ValueError("a weight lies outside of the file")
        self.places = dict(places)
        self.weights = {name: _shown(pages, place) for name, place in places.items()}
        self._pages, self._size = pages, _end(places)
        weakref.finalize(self, pages.close).atexit = False

    def write(self, file: BinaryIO) -> None:
        """Write the stretch; what follows it in the file begins past the last weight."""
        with memoryview(self._pages) as whole:
            file.write(whole[: self._size])

    def index(self) -> dict[str, Any]:
        """The places, as JSON holds them."""
        return {name: asdict(place) for name, place in self.places.items()}


def compose(weights: Mapping[str, Parts]) -> Memory:
    """Weights in the tensors that code takes, copied to memory of their own."""
    places, begin = dict[str, Place](), 0
    for name, parts in weights.items():
        shape, strides = layout(parts)
        places[name] = Place(begin, str(parts[0].dtype).removeprefix("torch."), tuple(shape), tuple(strides))
        begin += -(-places[name].size // ALIGNMENT) * ALIGNMENT
    memory = Memory(mmap.mmap(-1, max(begin, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), places)
    for name, parts in weights.items():
        whole = memory.weights[name]
        for part, place in zip(parts, whole if len(parts) > 1 else (whole,), strict=True):
            place.copy_(part)
    return memory


def map_file(path: Path, index: Mapping[str, Mapping[str, Any]]) -> Memory:
    """The weights at the beginning of a file. A process that writes to them has those pages for itself from then on.

    Raises:
        ValueError, TypeError, KeyError: the index is none of that file.
    """
    places = {
        name: Place(place["begin"], place["dtype"], tuple(place["shape"]), tuple(place["strides"]))
        for name, place in index.items()
    }
    with path.open("rb") as file:
        return Memory(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), places)


def _end(places: Mapping[str, Place]) -> int:
    return max((place.begin + place.size for place in places.values()), default=0)


def _shown(pages: mmap.mmap, place: Place) -> Tensor:
    count = prod(place.shape)
    if not count:
        return torch.empty_strided(place.shape, place.strides, dtype=_dtype(place.dtype))
    flat = torch.frombuffer(pages, dtype=_dtype(place.dtype), count=count, offset=place.begin)
    return flat.as_strided(place.shape, place.strides)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found
