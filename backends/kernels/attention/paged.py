"""Attention over paged caches by our kernels: the launches, and the operators for Inductor."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.backends.kernels import tuning
from headrace.backends.kernels.attention.kernel import list_tiles
from headrace.backends.kernels.attention.op import Form, listed, packed_heads, padded, shared_constants
from headrace.backends.kernels.attention.paged_kernel import attend_paged, join_splits, write_paged
from headrace.backends.kernels.tuning import Blocks
from headrace.ir import MaskKind, Window

# Programs that keep a device busy, and the parts that one sequence's keys are split into at most for there to be so
# many.
PROGRAMS, MOST_SPLITS = 256, 16


class Kernels(NamedTuple):
    """The kernels of one call, as Triton's `jit` made them or as Inductor sees them."""

    write: Any = write_paged
    attend: Any = attend_paged
    join: Any = join_splits

    @classmethod
    def wrapped(cls) -> Kernels:
        """As Inductor sees them."""
        return cls(*map(torch.library.wrap_triton, cls()))


@torch.library.triton_op("headrace::paged_tiles", mutates_args=())
def paged_tiles(cu_seqlens: Tensor, tokens: int, rows: int) -> Tensor:
    """The tiles of a step, each with its sequence's number: made once, shared by the layers."""
    return listed(cu_seqlens, tokens, rows, torch.library.wrap_triton(list_tiles), named=True)


@torch.library.triton_op("headrace::attention_paged_triton", mutates_args=("k_cache", "v_cache"))
def attention_paged_triton(  # noqa: PLR0913, PLR0917 - what the operator takes
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    blocks: Tensor,
    counts: Tensor,
    tiles: Tensor,
    tuned: list[int],
    sinks: Tensor | None,
    bias: Tensor | None,
    scale: float,
    kind: str,
    window: list[int],
    softcap: float,
    bias_kind: str,
) -> Tensor:
    """`headrace::attention_paged` by the kernels, its tiles given.

    Args:
        counts: `context`.
        tuned: the fields of the `Blocks` that the tiles were listed for.
    """
    kernels = Kernels.wrapped()
    if k is not None and v is not None:
        written(k, v, k_cache, v_cache, slots, kernels)
    form = Form(scale, kind, Window(*window), softcap, bias_kind)
    return attended(q, k_cache, v_cache, blocks, counts, tiles, Blocks.of(tuned), form, sinks, bias, kernels)


@torch.library.triton_op("headrace::attention_cross_triton", mutates_args=())
def attention_cross_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    blocks: Tensor,
    counts: Tensor,
    tiles: Tensor,
    tuned: list[int],
    sinks: Tensor | None,
    scale: float,
    softcap: float,
) -> Tensor:
    """`headrace::attention_cross` by the kernels; `counts` are its `lengths`."""
    form = Form(scale, MaskKind.BIDIRECTIONAL, softcap=softcap)
    kernels = Kernels.wrapped()
    return attended(q, k_cache, v_cache, blocks, counts, tiles, Blocks.of(tuned), form, sinks, None, kernels)


def written(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, kernels: Kernels) -> None:
    """A step's keys and values [T, H, D] into the slots of pools [N, size, H, D]."""
    assert k.stride(2) == v.stride(2) == 1, "a head's elements lie side by side"
    kernels.write[(k.shape[0], k.shape[1])](
        k, v, k_cache, v_cache, slots, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        HEADS=k.shape[1], D=k.shape[2], DV=v.shape[2], D_PAD=padded(k.shape[2]), DV_PAD=padded(v.shape[2]),
    )  # fmt: skip


def attended(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    blocks: Tensor,
    counts: Tensor,
    tiles: Tensor,
    tuned: Blocks,
    form: Form,
    sinks: Tensor | None,
    bias: Tensor | None,
    kernels: Kernels,
) -> Tensor:
    """The launches over listed tiles."""
    tokens, heads, width = q.shape[0], q.shape[1], v_cache.shape[3]
    pack = packed_heads(heads // k_cache.shape[2], tuned.pack)
    out = q.new_empty((tokens, heads, width))
    splits = split_count(counts.shape[0], heads // pack)
    there = torch.sym_min(splits - 1, 1)  # type: ignore[no-untyped-call] # no parts where no keys are split
    # And two: whether there is none, or one, would be asked when the graph is compiled, and make another one.
    parts = q.new_empty((tokens * heads * splits * there + 2, width + 2), dtype=torch.float32)
    kernels.attend[(tiles.shape[0] * (heads // pack), splits)](
        q, k_cache, v_cache, out, parts, tiles, blocks, counts, q if sinks is None else sinks,
        q if bias is None else bias, counts.shape[0], splits, q.stride(0), q.stride(1), out.stride(0), out.stride(1),
        blocks.stride(0), 0 if bias is None else bias.stride(0),
        **_constants(q, k_cache, v_cache, form, sinks, bias, tuned),
    )  # fmt: skip
    # Launched whether or not there are splits, then for nothing: asking would make a graph of its own for either.
    kernels.join[(torch.sym_max(1, tokens * heads * there),)](  # type: ignore[no-untyped-call]
        parts, out, splits, out.stride(0), out.stride(1), HEADS=heads, DV=width, DV_PAD=padded(width), MOST=MOST_SPLITS
    )
    return out


def paged_tuning(q: Tensor, v_cache: Tensor, family: str) -> Blocks:
    """Small tiles of many heads, since most sequences of a step have one token."""
    width = max(q.shape[2], v_cache.shape[3])
    if family in tuning.PAGED and q.dtype.itemsize == 2 and width <= tuning.PAGED_WIDTH:
        return tuning.PAGED[family]
    found = tuning.choose(family, q.dtype, width, 1)
    return found._replace(m=min(found.m, 32), pack=8, split=False)


def split_count(sequences: int, programs: int) -> Any:
    """Into how many parts the keys of each sequence are split, where each takes so many programs otherwise."""
    wanted = torch.sym_min(MOST_SPLITS, PROGRAMS // (sequences * programs))  # type: ignore[no-untyped-call]
    return torch.sym_max(1, wanted)  # type: ignore[no-untyped-call]


def _constants(
    q: Tensor, k: Tensor, v: Tensor, form: Form, sinks: Tensor | None, bias: Tensor | None, tuned: Blocks
) -> dict[str, Any]:
    """What the kernel is compiled for; `k` and `v` are the caches."""
    assert form.scale > 0, "the kernel takes the largest score before it scales"
    assert q.stride(2) == 1, "a head's elements lie side by side"
    assert k.is_contiguous(), "a pool's rows lie side by side"
    assert v.is_contiguous(), "a pool's rows lie side by side"
    return shared_constants(q, k.shape[2], v.shape[3], form, sinks, bias, tuned) | {
        "HEADS": k.shape[2],
        "SIZE": k.shape[1],
        "CAUSAL": MaskKind(form.kind).causal,
    }
