"""Sizes of the attention kernel's blocks, by architecture, head dimension, dtype and length: data, no code but `choose`.

Local memory bounds them: 227 KiB a block on sm90 (99 on sm86, sm89, sm120; 163 on sm80), 64 KiB on gfx90a, gfx942,
gfx11 and gfx12, 160 KiB on gfx950; Triton checks it on NVIDIA and not when it compiles for AMD.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Blocks(NamedTuple):
    """One tuning.

    Attributes:
        m: rows of a tile, times the query heads packed in it.
        n: keys of a step.
        warps: of a program.
        stages: of the loop over the keys, 1 without prefetching.
        split: whether blocks that need no mask have a loop of their own: pays on long sequences.
        pack: the most query heads of one key head in a tile.
    """

    m: int
    n: int
    warps: int
    stages: int
    split: bool = True
    pack: int = 2


def family(device: torch.device) -> str:
    return "sm90"


def choose(family: str, head_dim: int, dtype: torch.dtype, max_length: int) -> Blocks:
    if dtype == torch.float32:
        return Blocks(32, 32, 4, 1, True, 1)
    return Blocks(64, 32, 4, 3, True, 1)
