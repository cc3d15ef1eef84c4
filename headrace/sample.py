"""Made-up inputs: what models are traced and probed on, and what programs are measured and compiled on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace import feed
from headrace.ir import Input, Program, Role, Signature

# The axes along which an input's parts follow one another; the others hold what one part is made of.
ALONG = ("samples", "frames", "height")


def draw(given: Input, batch: int, rows: int, seed: int = 0) -> Tensor:
    """Normal noise for a float32 input: fixed axes at their size, the others as large as so many rows need."""
    _, *axes = given.axes
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((batch, *(axis.at(rows) for axis in axes)), generator=generator)


def with_new_end(values: Tensor, given: Input, seed: int = 1) -> Tensor:
    """A copy whose last quarter is drawn anew: of an image the lower strip, else the end of the sequence."""
    end = next(place for place, axis in enumerate(given.axes) if axis.name in ALONG)
    size = values.shape[end]
    kept = size - max(1, size // 4)
    drawn = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed))
    changed = values.clone()
    changed.narrow(end, kept, size - kept).copy_(drawn.narrow(end, kept, size - kept))
    return changed


def text(signature: Signature, length: int, seed: int = 0) -> NDArray[np.int64]:
    """Token ids that differ from place to place, and from one seed to the next."""
    return feed.marked(signature, (np.arange(length) + 3 + 5 * seed) % signature.vocabulary)


def batch(program: Program, real: Tensor, target: Tensor | None = None, seed: int = 0) -> dict[str, Tensor]:
    """Sequences whose real tokens are where `real`, bool [B, S], says; padding holds another token, not zero.

    A program that reads arrays gets as many instead, of S rows where their size is free and without padding.

    Args:
        target: the same of what a decoder is given; None takes the text's.
    """
    signature, target = program.signature, real if target is None else target
    values = dict[Role, Tensor]()
    for given in signature.arrays:
        values[given.role] = draw(given, len(real), real.shape[1], seed)
    if len(values) < len(signature.inputs):
        mask = real.long()
        positions = torch.where(real, mask.cumsum(1) - 1, 0) + program.facts.positions.offset
        values |= {
            Role.IDS: _ids(signature, real, seed),
            Role.PADDING: mask,
            Role.POSITIONS: positions,
            Role.TYPES: torch.zeros_like(mask),
            Role.TARGET_IDS: _ids(signature, target, seed),
            Role.TARGET_PADDING: target.long(),
        }
    return signature.named(values)


def one(program: Program, length: int, width: int | None = None, seed: int = 0) -> dict[str, Tensor]:
    """One sequence of `length` tokens in a row of `width`, padded on the right; of `length` without it.

    A decoder's target is two tokens shorter, so that rows of the one can't pass for rows of the other.
    """
    longest = program.facts.target_limits.length if program.facts.target_limits else None
    sizes = (length, width or length)
    targets = (min(max(1, size - 2), longest or size) for size in sizes)
    return batch(program, _real(*sizes), _real(*targets), seed)


def row(program: Program, lengths: Iterable[int]) -> dict[str, Tensor]:
    """Sequences of those lengths after one another, for a program whose inputs are those of a packed one.

    Of sequences that are longer than the model reads the positions begin anew.
    """
    texts = [text(program.signature, length, seed) for seed, length in enumerate(lengths)]
    values, where = feed.packed(program, texts), program.facts.positions.offset
    if Role.POSITIONS in values and (longest := program.facts.limits.length):
        values[Role.POSITIONS] = (values[Role.POSITIONS] - where) % longest + where
    return tensors(program, values)


def even_row(program: Program, tokens: int, count: int) -> dict[str, Tensor]:
    """A row of so many tokens in sequences of like length."""
    return row(program, np.diff(np.arange(count + 1) * tokens // count).tolist())


def tensors(program: Program, values: Mapping[Role, NDArray[Any]]) -> dict[str, Tensor]:
    """A feed as the program's graph takes it: contiguous, since compiled code keeps its example's strides."""
    return program.signature.named(
        {role: torch.from_numpy(np.ascontiguousarray(array)) for role, array in values.items()}
    )


def _real(length: int, width: int) -> Tensor:
    return (torch.arange(width) < length)[None]


def _ids(signature: Signature, real: Tensor, seed: int) -> Tensor:
    """Ids [B, S]: a text of its own in each row, and ones for padding."""
    ids = np.ones(real.shape, np.int64)
    for number, own in enumerate(real.numpy()):
        ids[number, own] = text(signature, int(own.sum()), seed + number)
    return torch.from_numpy(ids)
