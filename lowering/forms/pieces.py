"""Texts that a cached program runs in pieces, to try it: caches for them, and the steps in which they run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace import feed, sample
from headrace.ir import CacheKind, Program
from headrace.ir.cache import cross_parts

LONGEST_PIECE = 4
NO_NUMBER = 0x7F  # the code of float8_e4m3fn for it
Texts = list[NDArray[np.int64]]


class Pieces:
    """Caches for some texts that are run in pieces, each text with blocks of its own."""

    def __init__(self, program: Program, texts: Texts, cross: Sequence[Tensor] = (), wide: bool = True) -> None:
        """`cross` are an encoder's rows [S, W] for each text; `wide` computes in float32 at least."""
        self.cross = cross or [torch.zeros(1, 0)] * len(texts)
        self.program, self.texts, self.held = program, texts, [0] * len(texts)
        longest = max(*(len(text) for text in texts), *(len(rows) for rows in self.cross))
        self.most = max(2, -(-longest // program.form.block))
        counts = {CacheKind.PAGED: (len(texts) * self.most, program.form.block), CacheKind.ROW: (len(texts),)}
        # What is not written yet is not read.
        self.caches = {
            cache.name: _unwritten((*counts[cache.kind], *cache.sizes), _dtype(cache.dtype, wide))
            for cache in program.form.caches
        }

        if cross:
            for order, rows in enumerate(cross):
                self._write(order, rows)

    def _write(self, order: int, rows: Tensor) -> None:
        """Put an encoder's rows into a text's blocks: the columns of each cache in their order."""
        begin = order * self.most * self.program.form.block
        for cache, part in cross_parts(self.program.form.caches, rows):
            self.caches[cache].flatten(0, 1)[begin : begin + len(part)] = part

    def begin(self, tokens: int) -> list[feed.Piece]:
        """The first tokens of every text, and an answer to each of them."""
        return [self.piece(order, tokens) for order in range(len(self.texts))]

    def piece(self, order: int, tokens: int) -> feed.Piece:
        """The next tokens of a text."""
        held = self.held[order]
        ids = self.texts[order][held : held + tokens]
        self.held[order] += len(ids)
        table = list(range(order * self.most, (order + 1) * self.most))
        return feed.Piece(
            ids, held, [table] * len(self.program.form.groups), order, len(ids), length=len(self.cross[order])
        )

    def inputs(self, pieces: list[feed.Piece]) -> dict[str, Tensor]:
        """A step of the program."""
        return sample.tensors(self.program, feed.cached(self.program, pieces)) | self.caches


def _dtype(name: str, wide: bool) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return torch.promote_types(dtype, torch.float32) if wide and dtype.is_floating_point else dtype


def _unwritten(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.full(shape, torch.nan if dtype.is_floating_point else NO_NUMBER, dtype=dtype)


def random_steps(texts: Texts) -> Iterator[list[tuple[int, int]]]:
    """Random pieces of each text until all are run, some texts resting in a step: (text, tokens) each."""
    chance, left = random.Random(0), [len(text) for text in texts]
    while any(left):
        step = [(order, min(count, chance.randint(1, LONGEST_PIECE))) for order, count in enumerate(left) if count]
        step = [one for one in step if chance.random() < 0.7] or step[:1]
        chance.shuffle(step)
        for order, count in step:
            left[order] -= count
        yield step
