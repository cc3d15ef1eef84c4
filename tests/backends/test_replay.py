"""What is captured of rows, as far as it shows without a GPU."""

from __future__ import annotations

import pytest
import torch

from headrace.backends.replay import SHORT_ROWS, Shape, _staged, shape_of
from headrace.ir import OFFSETS


@pytest.mark.parametrize("tokens", [*SHORT_ROWS, 4096, 16384])
def test_a_shape_holds_its_row_and_there_are_few(tokens: int) -> None:
    shapes = {shape_of(tokens, count) for count in range(1, 2049)}
    assert all(shape_of(tokens, count).sequences >= count for count in range(1, 2049))
    assert all(shape_of(tokens, count).sequences <= max(count * 3 // 2, 12, tokens // 8) for count in range(2, 2049))
    assert len(shapes) <= 18


def test_inputs_are_staged_in_one_piece() -> None:
    """Types before offsets or after: the rows keep the order of the names."""
    inputs = {
        "input_ids": torch.arange(16)[None],
        "position_ids": torch.arange(16)[None] + 100,
        OFFSETS: torch.tensor([0, 5, 9], dtype=torch.int32),
    }
    staged = _staged(inputs, tuple(inputs), Shape(16, 4))
    assert staged.view(torch.int32)[:5].tolist() == [0, 5, 9, 9, 9]
    assert staged[4:].tolist() == [*range(16), *range(100, 116)]
