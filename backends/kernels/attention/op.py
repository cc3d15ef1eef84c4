"""Attention over packed sequences by our kernel: the choice of tuning, the launch, and the operator for Inductor."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.backends.kernels import tuning
from headrace.backends.kernels.attention.kernel import attend_tiles, list_tiles
from headrace.backends.kernels.attention.tiles import TileList
from headrace.backends.kernels.tuning import Blocks
from headrace.ir import BiasKind, MaskKind, Window

LISTED = 16  # tiles that one program lists


class Form(NamedTuple):
    """What an attention is beside its tensors; each is an argument of `ops.attention_varlen`."""

    scale: float
    kind: str = MaskKind.BIDIRECTIONAL
    window: Window = Window()
    softcap: float = 0.0
    bias_kind: str = BiasKind.NONE


def listed(
    cu_seqlens: Tensor, tokens: int, rows: int, kernel: Any = list_tiles, *, named: bool = False
) -> Tensor:  # fmt: skip
    """What `tiles.spread` says, made on the device in one launch.

    Args:
        named: the last number of a tile is its sequence's, that of tokens past the last one their count.
    """
    count = tokens // rows + cu_seqlens.shape[0]
    made = cu_seqlens.new_empty((count, 4))
    programs = (count + LISTED - 1) // LISTED
    kernel[(programs,)](
        cu_seqlens, made, cu_seqlens.shape[0] - 1, tokens, ROWS=rows, BLOCK=LISTED, CHUNK=256, NAMED=named
    )
    return made


@torch.library.triton_op("headrace::varlen_tiles", mutates_args=())
def varlen_tiles(cu_seqlens: Tensor, tokens: int, rows: int) -> Tensor:
    """The tiles of a batch, for `attention_varlen_triton`: made once, shared by the layers."""
    return listed(cu_seqlens, tokens, rows, torch.library.wrap_triton(list_tiles))


@torch.library.triton_op("headrace::attention_varlen_triton", mutates_args=())
def attention_varlen_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: Tensor,
    blocks: list[int],
    sinks: Tensor | None,
    bias: Tensor | None,
    scale: float,
    kind: str,
    window: list[int],
    softcap: float,
    bias_kind: str,
) -> Tensor:
    """The kernel as Inductor sees it, its tiles given: compiled and packaged with the graph, no Python between.

    Args:
        blocks: the tuning that the tiles were listed for, the fields of a `Blocks`: decided with the graph, so that it
            can be decided for an architecture that is not here.
    """
    kernel = torch.library.wrap_triton(attend_tiles)
    return launched(q, k, v, tiles, blocks, sinks, bias, scale, kind, window, softcap, bias_kind, kernel)


def launched(*given: Any) -> Tensor:
    """The operator's arguments, and the kernel that is to be launched for it."""
    q, k, v, tiles, blocks, sinks, bias, scale, kind, window, softcap, bias_kind, kernel = given
    form = Form(scale, kind, Window(*window), softcap, bias_kind)
    return attended(q, k, v, tiles, Blocks.of(blocks), form, sinks, bias, kernel)


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: Tensor,
    blocks: Blocks,
    form: Form,
    sinks: Tensor | None,
    bias: Tensor | None,
    kernel: Any,
) -> Tensor:
    """The launch over listed tiles."""
    out = q.new_empty((q.shape[0], q.shape[1], v.shape[2]), dtype=v.dtype)
    work = TileList(tiles, tile_rows(q, k, blocks))
    arguments, constants = launch(q, k, v, out, work, form, sinks, bias, blocks)
    kernel[programs(work, constants)](*arguments, **constants)
    return out


def tuning_for(q: Tensor, v: Tensor, length: int, form: Form, family: str | None = None) -> Blocks:
    """The table's tuning. A window that is short on both sides makes short sequences of long ones.

    Args:
        family: the architecture; None asks the tensors' device.
    """
    right = 0 if MaskKind(form.kind).causal else form.window.right
    seen = form.window.left + right + 1 if form.window.left >= 0 and right >= 0 else length
    found = tuning.family(q.device) if family is None else family
    return tuning.choose(found, q.dtype, max(q.shape[2], v.shape[2]), min(length, seen))


def tile_rows(q: Tensor, k: Tensor, blocks: Blocks) -> int:
    """The rows of a tile, for the makers of a `TileList`."""
    return blocks.m // packed_heads(q.shape[1] // k.shape[1], blocks.pack)


def packed_heads(group: int, wanted: int) -> int:
    """How many query heads of one key head share a tile: a power of two that divides the group."""
    return min(group & -group, wanted)


def programs(work: TileList, constants: dict[str, Any]) -> tuple[int]:
    """The grid: a program for each tile and each pack of heads."""
    return (work.tiles.shape[0] * constants["PROGRAMS"],)


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    work: TileList,
    form: Form,
    sinks: Tensor | None,
    bias: Tensor | None,
    blocks: Blocks,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The kernel's arguments and its constants."""
    assert form.scale > 0, "the kernel takes the largest score before it scales"
    assert q.stride(2) == k.stride(2) == v.stride(2) == 1, "a head's elements lie side by side"
    assert (bias is None) == (form.bias_kind == BiasKind.NONE), "a bias and its kind come together"
    pack = packed_heads(q.shape[1] // k.shape[1], blocks.pack)
    assert work.rows * pack <= blocks.m, f"tiles of {work.rows} rows of {pack} heads do not fit in {blocks.m}"
    # What a constant leaves unused still needs a tensor.
    arguments = (
        q, k, v, out, work.tiles, q if sinks is None else sinks, q if bias is None else bias,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), out.stride(0), out.stride(1),
        0 if bias is None else bias.stride(0),
    )  # fmt: skip
    return arguments, _constants(q, k, v, form, sinks, bias, blocks)


def _constants(
    q: Tensor, k: Tensor, v: Tensor, form: Form, sinks: Tensor | None, bias: Tensor | None, blocks: Blocks
) -> dict[str, Any]:
    """What the kernel is compiled for."""
    return shared_constants(q, k.shape[1], v.shape[2], form, sinks, bias, blocks) | {
        "RIGHT": 0 if MaskKind(form.kind).causal else max(form.window.right, -1),
        "SPLIT": blocks.split,
        "EARLY": False,
    }


def shared_constants(
    q: Tensor, kv_heads: int, width: int, form: Form, sinks: Tensor | None, bias: Tensor | None, blocks: Blocks
) -> dict[str, Any]:
    """What every kernel of attention is compiled for, wherever its keys lie; `width` is of the values."""
    heads, group = q.shape[1], q.shape[1] // kv_heads
    pack = packed_heads(group, blocks.pack)
    chunked = form.kind == MaskKind.CHUNKED
    return {
        "SCALE": form.scale,
        "SOFTCAP": form.softcap,
        "PROGRAMS": heads // pack,
        "GROUP": group,
        "PACK": pack,
        "D": q.shape[2],
        "DV": width,
        "D_PAD": padded(q.shape[2]),
        "DV_PAD": padded(width),
        "BLOCK_M": blocks.m,
        "BLOCK_N": blocks.n,
        "LEFT": -1 if chunked else max(form.window.left, -1),
        "CHUNK": form.window.left + 1 if chunked else 0,
        "BIAS": str(form.bias_kind),
        "REACH": 0 if bias is None or form.bias_kind != BiasKind.RELATIVE else (bias.shape[1] - 1) // 2,
        "SINK": sinks is not None,
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }


def padded(head_dim: int) -> int:
    """The power of two that a block's head dimension is, 16 at least."""
    return max(16, 1 << (head_dim - 1).bit_length())
