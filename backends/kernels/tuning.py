"""Sizes of our kernels' blocks by architecture: tables.

That of attention is by dtype, head dimension and length too, and read top down.

What bounds them is local memory a program (`backends/gpu/architecture.py`), and 99 KiB on sm86, sm89 and sm120.
Keys and values take `2 * stages * n * head_dim` elements of it, queries another `m * head_dim` on sm90.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch


class Blocks(NamedTuple):
    """One tuning.

    Attributes:
        m: rows of a tile, times the query heads packed in it.
        n: keys of a step.
        warps: of a program.
        stages: of the loop over the keys; 1 fetches nothing ahead.
        split: whether the blocks that need no mask have a loop of their own, which pays on long sequences.
        pack: the most query heads of one key head that share a tile.
    """

    m: int
    n: int
    warps: int
    stages: int
    split: bool = False
    pack: int = 2

    @property
    def numbers(self) -> list[int]:
        """As an operator's argument."""
        return list(map(int, self))

    @classmethod
    def of(cls, numbers: list[int]) -> Blocks:
        """The inverse of `numbers`."""
        m, n, warps, stages, split, pack = numbers
        return cls(m, n, warps, stages, bool(split), pack)


class Entry(NamedTuple):
    """One row: it fits a problem whose family starts so, whose dtype is as wide, and that is no larger."""

    family: str
    bits: int
    head_dim: int
    length: int
    blocks: Blocks


ANY = 1 << 31

TABLE = (
    # NVIDIA H200, torch 2.11, Triton 3.6, by benchmarks/kernel_gpu.py.
    Entry("sm90", 16, 64, 256, Blocks(64, 32, 4, 3)),
    Entry("sm90", 16, 64, 1024, Blocks(64, 64, 4, 3, split=True)),
    Entry("sm90", 16, 64, ANY, Blocks(128, 64, 8, 3, split=True)),
    Entry("sm90", 16, 128, 768, Blocks(64, 32, 4, 3)),
    Entry("sm90", 16, 128, 4096, Blocks(128, 64, 8, 3, split=True)),
    Entry("sm90", 16, 128, ANY, Blocks(128, 128, 8, 3, split=True, pack=1)),
    Entry("sm90", 32, 128, ANY, Blocks(32, 32, 4, 2)),
    # Not tuned, only compiled (Triton 3.6 and 3.9): the largest blocks that spill no register in any form of attention.
    # RDNA, where a thread has 256 registers. What still spills is float32 past 128, and every other shape spills more.
    Entry("gfx1", 16, 64, ANY, Blocks(64, 32, 4, 1)),
    Entry("gfx1", 16, ANY, ANY, Blocks(32, 32, 8, 1)),
    Entry("gfx1", 32, 64, ANY, Blocks(16, 16, 8, 1)),
    Entry("gfx1", 32, ANY, ANY, Blocks(16, 16, 16, 1)),
    Entry("sm8", 16, 128, ANY, Blocks(64, 32, 4, 2)),
    Entry("sm8", 16, ANY, ANY, Blocks(64, 32, 8, 1)),
    Entry("sm1", 32, 128, ANY, Blocks(16, 16, 4, 1)),
    # Not tuned: gfx90a, gfx942, gfx950 (compiled: no spills, at most 32 KiB) and every other NVIDIA card.
    Entry("", 16, 128, ANY, Blocks(64, 32, 4, 2)),
    Entry("", 16, ANY, ANY, Blocks(64, 32, 4, 1)),
    # float32 runs without matrix units (IEEE arithmetic), so that registers bound the tile.
    Entry("", 32, 64, ANY, Blocks(32, 32, 4, 2)),
    Entry("", 32, 128, ANY, Blocks(32, 32, 4, 1)),
    Entry("", 32, ANY, ANY, Blocks(16, 16, 4, 1)),
)


# Attention over caches in half precision, of heads up to so wide; any other takes the table's, in smaller tiles.
# NVIDIA H200, torch 2.11, Triton 3.6, Qwen3-0.6B's heads: 140 sequences of 100 to 2,000 keys take 140 microseconds (217
# by the table's tiles, 115 to read them), 256 of 192 keys 62 (80, 42), one of 2,000 keys 12 (17).
PAGED, PAGED_WIDTH = {"sm90": Blocks(16, 128, 4, 2, pack=8)}, 128


class RowEntry(NamedTuple):
    """One row: it fits rows of no more numbers, kept in place of keys and values, of a dtype as wide."""

    family: str
    bits: int
    width: int
    blocks: Blocks


# Of attention over such rows, DeepSeek's of 512 and 64 the widest. Not tuned on a device, only compiled (Triton 3.9):
# a tile's sums are as wide as a row.
ROWS = (
    RowEntry("sm", 16, 576, Blocks(16, 32, 4, 2, pack=16)),
    RowEntry("gfx9", 16, 576, Blocks(16, 32, 4, 1, pack=16)),
    RowEntry("gfx12", 16, 288, Blocks(16, 16, 8, 1, pack=16)),
    RowEntry("sm", 32, 576, Blocks(16, 16, 8, 1, pack=16)),
    RowEntry("gfx9", 32, 576, Blocks(16, 16, 8, 1, pack=16)),
    RowEntry("", 16, 64, Blocks(16, 16, 4, 1, pack=16)),
    RowEntry("", 32, 64, Blocks(16, 16, 4, 1, pack=16)),
)


def row_blocks(family: str, dtype: torch.dtype, width: int) -> Blocks:
    """The first row of the table that fits; `widest_row` says whether one does."""
    return next(row.blocks for row in _rows(family, dtype) if width <= row.width)


def widest_row(family: str, dtype: torch.dtype) -> int:
    """The most numbers of a row that is held."""
    return max((row.width for row in _rows(family, dtype)), default=0)


def _rows(family: str, dtype: torch.dtype) -> list[RowEntry]:
    return [row for row in ROWS if family.startswith(row.family) and row.bits == dtype.itemsize * 8]


def converts_float8(family: str) -> bool:
    """Whether an architecture has instructions that convert float8_e4m3fn: NVIDIA's from Ada on, CDNA 4, RDNA 4."""
    known = family.startswith(("gfx950", "gfx12"))
    return known or (family.startswith("sm") and family not in {"sm80", "sm86", "sm87"})


class Product(NamedTuple):
    """Blocks of a product with an activation in its epilogue.

    Attributes:
        m: rows of a tile of the output.
        n: columns of the product that make one, of both halves where it is gated.
        k: summed in a step.
        warps: of a program.
        stages: of the loop over `k`.
        band: tiles of rows that are taken before the next columns.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    band: int


# By architecture; what is not here leaves products to a library and activations to Inductor.
PRODUCTS = {
    # NVIDIA H200, torch 2.11, Triton 3.6: small tiles, so that one's epilogue runs while another multiplies. 16,384
    # rows of bert-base's up projection take 142 microseconds (cuBLAS 113, and 49 for GELU at the speed of a copy), of
    # ModernBERT's gated one 99 (89 and 31), of Qwen3's 330 (278 and 71).
    "sm90": Product(128, 128, 64, warps=4, stages=2, band=8),
}


class Scan(NamedTuple):
    """Blocks of a recurrence that goes in chunks.

    Attributes:
        chunk: tokens of a step, which are multiplied with one another; 16 or more.
        columns: of the values, whose state a program keeps.
        warps: of a program.
        stages: of the loop over the chunks; 1 fetches nothing ahead.
    """

    chunk: int
    columns: int
    warps: int
    stages: int


class ScanEntry(NamedTuple):
    """One row: it fits an operator of that name whose dtype is as wide and whose state has no more rows."""

    operator: str
    family: str
    bits: int
    state: int
    blocks: Scan


# The state stays in registers throughout. But for the first, not tuned on a device, only compiled (Triton 3.9): what
# spills least. NVIDIA H200, Triton 3.6, 24 heads of 64 and a state of 128, 16,384 tokens of the benchmark's lengths:
# 227 microseconds; in chunks of 16 tokens 279. Chunks of 64 are wrong there, see `use_kernels.py`.
SCANS = (
    ScanEntry("chunk_scan", "sm90", 16, 128, Scan(32, 64, 4, 3)),
    ScanEntry("chunk_scan", "gfx9", 16, 128, Scan(32, 64, 4, 2)),
    ScanEntry("chunk_scan", "gfx9", 16, ANY, Scan(32, 32, 4, 2)),
    ScanEntry("chunk_scan", "gfx1", 16, 128, Scan(16, 32, 8, 1)),
    ScanEntry("chunk_scan", "gfx1", 16, ANY, Scan(16, 16, 4, 1)),
    ScanEntry("chunk_scan", "sm8", 16, 128, Scan(32, 32, 8, 3)),
    ScanEntry("chunk_scan", "", 16, 128, Scan(32, 64, 8, 3)),
    ScanEntry("chunk_scan", "", 16, ANY, Scan(16, 32, 8, 3)),
    ScanEntry("gated_delta_rule", "gfx9", 16, ANY, Scan(32, 32, 4, 2)),
    ScanEntry("gated_delta_rule", "gfx1", 16, ANY, Scan(16, 16, 8, 1)),
    ScanEntry("gated_delta_rule", "", 16, ANY, Scan(32, 32, 8, 3)),
    ScanEntry("", "gfx1", 32, ANY, Scan(16, 16, 16, 1)),
    ScanEntry("", "gfx9", 32, ANY, Scan(16, 16, 8, 2)),
    ScanEntry("", "", 32, ANY, Scan(16, 16, 8, 3)),
)


def scan_blocks(family: str, operator: str, dtype: torch.dtype, state: int) -> Scan:
    """The first row of the table that fits."""
    return next(
        row.blocks
        for row in SCANS
        if operator.startswith(row.operator)
        and family.startswith(row.family)
        and row.bits == dtype.itemsize * 8
        and state <= row.state
    )


@functools.cache
def family(device: torch.device) -> str:
    """`sm90`, `gfx942`, ...; empty where there is no GPU."""
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm{properties.major}{properties.minor}"


def choose(family: str, dtype: torch.dtype, head_dim: int, length: int) -> Blocks:
    """The first row of the table that fits.

    Args:
        head_dim: the larger of the keys' and the values'.
        length: of a typical sequence, or the keys that a window shows, if fewer.
    """
    bits = dtype.itemsize * 8
    return next(
        row.blocks
        for row in TABLE
        if family.startswith(row.family) and row.bits == bits and head_dim <= row.head_dim and length <= row.length
    )
