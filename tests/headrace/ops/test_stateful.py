"""Recurrences that go on from a state: any pieces of some sequences, mixed, answer as each sequence whole."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from headrace.ops.stateful import RECURRENCES, Recurrence
from tests.recurrences import (
    chunk_operands,
    convolution_operands,
    delta_operands,
    draw,
    linear_operands,
    mlstm_operands,
    scan_operands,
    wkv_operands,
)

LENGTHS = (1, 7, 4)
OPERANDS = {
    "causal_conv1d": convolution_operands,
    "selective_scan": scan_operands,
    "chunk_scan": chunk_operands,
    "gated_delta_rule": delta_operands,
    "token_shift": lambda length: draw(length, (2, length, 3)),
    "linear_recurrence": linear_operands,
    "wkv": wkv_operands,
    "mlstm": mlstm_operands,
}
KINDS = {kind.name: kind for kind in RECURRENCES.values()}


@pytest.fixture(params=list(OPERANDS))
def kind(request: pytest.FixtureRequest) -> Recurrence:
    return KINDS[request.param]


def test_every_recurrence_has_operands() -> None:
    assert set(OPERANDS) == set(KINDS)


class Sequences:
    """Sequences of one recurrence, each whole and alone; operands that hold no tokens are the same in all."""

    def __init__(self, kind: Recurrence, *lengths: int) -> None:
        self.kind = kind
        shared = list(OPERANDS[kind.name](9))
        self.operands = [
            [own if dim is not None and own is not None else one
             for own, one, dim in zip(OPERANDS[kind.name](length), shared, kind.along, strict=True)]
            for length in lengths
        ]  # fmt: skip
        self.operands = [[self._one(x, dim) for x, dim in zip(row, kind.along, strict=True)] for row in self.operands]
        self.whole = [kind.operator(*row) for row in self.operands]
        sizes = kind.state_sizes(tuple(self.operands[0]))
        # What was there before is nobody's.
        self.pool = torch.full((len(lengths) + 2, *sizes), torch.nan, dtype=kind.state_dtype(tuple(self.operands[0])))
        self.held = [0] * len(lengths)

    @staticmethod
    def _one(x: Any, dim: int | None) -> Any:
        return x if dim is None or x is None else x[:1]

    def step(self, pieces: list[tuple[int, int]], rows: list[int]) -> list[torch.Tensor]:
        """Run the next tokens of some sequences: (sequence, how many) each."""
        parts = [
            [x if x is None or dim is None else x.narrow(dim, self.held[order], count)
             for x, dim in zip(self.operands[order], self.kind.along, strict=True)]
            for order, count in pieces
        ]  # fmt: skip
        row = [
            xs[0] if dim is None or xs[0] is None else torch.cat(xs, dim)
            for xs, dim in zip(zip(*parts, strict=True), self.kind.along, strict=True)
        ]
        counts = torch.tensor([0, *(count for _, count in pieces)])
        told = [rows, counts.cumsum(0).tolist(), [self.held[order] for order, _ in pieces]]
        y = self.kind.going_on(*row, self.pool, *(torch.tensor(one, dtype=torch.int32) for one in told))
        for order, count in pieces:
            self.held[order] += count
        return list(y.split([count for _, count in pieces], self.kind.answer))


@pytest.mark.parametrize("seed", range(4))
def test_pieces_answer_as_the_whole(kind: Recurrence, seed: int) -> None:
    sequences, chance = Sequences(kind, *LENGTHS), random.Random(seed)
    got: list[list[torch.Tensor]] = [[] for _ in LENGTHS]
    while any(held < length for held, length in zip(sequences.held, LENGTHS, strict=True)):
        left = [(order, length - sequences.held[order]) for order, length in enumerate(LENGTHS)]
        pieces = [(order, chance.randint(1, count)) for order, count in left if count]
        chance.shuffle(pieces)
        pieces = pieces[: chance.randint(1, len(pieces))]
        for (order, _), y in zip(pieces, sequences.step(pieces, [order + 1 for order, _ in pieces]), strict=True):
            got[order].append(y)
    for parts, whole in zip(got, sequences.whole, strict=True):
        torch.testing.assert_close(torch.cat(parts, kind.answer), whole, rtol=1e-9, atol=1e-9)


def test_a_row_that_another_sequence_left_is_not_read(kind: Recurrence) -> None:
    sequences = Sequences(kind, 5, 5)
    sequences.step([(0, 5)], [1])
    (y,) = sequences.step([(1, 5)], [1])
    torch.testing.assert_close(y, sequences.whole[1], rtol=1e-9, atol=1e-9)


def test_a_sequence_without_tokens_keeps_its_state(kind: Recurrence) -> None:
    sequences = Sequences(kind, 5, 3)
    sequences.step([(0, 2)], [1])
    kept = sequences.pool[1].clone()
    sequences.step([(0, 0), (1, 3)], [1, 2])
    torch.testing.assert_close(sequences.pool[1], kept, rtol=0, atol=0)
    (y,) = sequences.step([(0, 3)], [1])
    expected = sequences.whole[0].narrow(kind.answer, 2, 3)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
