"""The tiles of queries that a kernel over packed sequences works through.

A tile is four int32: its rows `[row_begin, row_end)` and the keys that those may see, `[key_begin, key_end)`. It lies
in one sequence. Sequences are best given longest first: the tiles keep their order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TileList(NamedTuple):
    """Tiles of at most `rows` rows.

    Attributes:
        tiles: int32 [count, 4]; those with no rows are skipped.
        rows: the most rows that a tile has.
    """

    tiles: Tensor
    rows: int


def spread(cu_seqlens: Tensor, tokens: int, rows: int) -> Tensor:
    """Tiles of one sequence each, made where `cu_seqlens` lies; as many as there could be, so nothing is waited for.

    Tokens past the last sequence (a bucket's filling) get tiles without keys, which makes their rows zeros.
    """
    begin, stop = cu_seqlens, torch.cat([cu_seqlens[1:], cu_seqlens[-1:]])
    end = torch.cat([cu_seqlens[1:], cu_seqlens.new_full((1,), tokens)])
    counts = (end - begin + rows - 1) // rows
    past = counts.cumsum(0)
    index = torch.arange(tokens // rows + begin.shape[0], device=cu_seqlens.device)
    sequence = torch.searchsorted(past, index, right=True).clamp(max=begin.shape[0] - 1)
    row = begin[sequence] + (index - (past - counts)[sequence]) * rows
    row_end = torch.minimum(row + rows, end[sequence])
    return torch.stack([row, row_end, begin[sequence], stop[sequence]], 1).to(torch.int32)
