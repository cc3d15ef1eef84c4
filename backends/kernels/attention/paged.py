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


class Kept(NamedTuple):
    """What an attention keeps of tokens, its keys and values as `headrace.ops.cached` has them.

    Attributes:
        v: None where the first numbers of a key are its value.
        width: of the values.
        native: whether the architecture converts codes of eight bits itself.
    """

    k: Tensor
    v: Tensor | None
    width: int
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    native: bool = False

    @property
    def scales(self) -> tuple[Tensor, Tensor]:
        """Of keys and values; what is left unused still needs a tensor."""
        k_scale = self.k if self.k_scale is None else self.k_scale
        return k_scale, k_scale if self.v_scale is None else self.v_scale


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


@torch.library.triton_op("headrace::attention_paged_triton", mutates_args=("k_cache", "v_cache", "k_scale", "v_scale"))
def attention_paged_triton(  # noqa: PLR0913, PLR0917 - what the operator takes
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
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
    v_width: int,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    native: bool,
) -> Tensor:
    """`headrace::attention_paged` by the kernels, its tiles given.

    Args:
        counts: `context`.
        tuned: the fields of the `Blocks` that the tiles were listed for.
        native: as of `Kept`; decided with the graph, as the tuning is.
    """
    kernels = Kernels.wrapped()
    kept = kept_of(k_cache, v_cache, v_width, k_scale, v_scale, native)
    if k is not None:
        written(k, v, kept, slots, kernels)
    form = Form(scale, kind, Window(*window), softcap, bias_kind)
    return attended(q, kept, blocks, counts, tiles, Blocks.of(tuned), form, sinks, bias, kernels)


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
    kernels, kept = Kernels.wrapped(), kept_of(k_cache, v_cache)
    return attended(q, kept, blocks, counts, tiles, Blocks.of(tuned), form, sinks, None, kernels)


def kept_of(
    k: Tensor, v: Tensor | None, v_width: int = 0, k_scale: Tensor | None = None, v_scale: Tensor | None = None,
    native: bool = False,
) -> Kept:  # fmt: skip
    """By the arguments of `headrace::attention_paged`."""
    return Kept(k, v, (v_width or k.shape[3]) if v is None else v.shape[3], k_scale, v_scale, native)


def written(k: Tensor, v: Tensor | None, kept: Kept, slots: Tensor, kernels: Kernels) -> None:
    """A step's keys and values [T, H, D] into the slots of pools [N, size, H, D]; of rows that are both `v` is None."""
    assert (v is None) == (kept.v is None), "what is kept is keys and values, or rows"
    values, cache = (k, kept.k) if v is None or kept.v is None else (v, kept.v)
    assert k.stride(2) == values.stride(2) == 1, "a head's elements lie side by side"
    kernels.write[(k.shape[0], k.shape[1])](
        k, values, kept.k, cache, *kept.scales, slots, k.stride(0), k.stride(1), values.stride(0), values.stride(1),
        HEADS=k.shape[1], D=k.shape[2], DV=values.shape[2], D_PAD=padded(k.shape[2]), DV_PAD=padded(values.shape[2]),
        ROW=v is None, CODED=kept.k_scale is not None,
    )  # fmt: skip


def attended(
    q: Tensor,
    kept: Kept,
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
    tokens, heads, width = q.shape[0], q.shape[1], kept.width
    pack = packed_heads(heads // kept.k.shape[2], tuned.pack)
    out = q.new_empty((tokens, heads, width))
    splits = split_count(counts.shape[0], heads // pack)
    there = torch.sym_min(splits - 1, 1)  # type: ignore[no-untyped-call] # no parts where no keys are split
    # And two: whether there is none, or one, would be asked when the graph is compiled, and make another one.
    parts = q.new_empty((tokens * heads * splits * there + 2, width + 2), dtype=torch.float32)
    kernels.attend[(tiles.shape[0] * (heads // pack), splits)](
        q, kept.k, kept.k if kept.v is None else kept.v, *kept.scales, out, parts, tiles, blocks, counts,
        q if sinks is None else sinks, q if bias is None else bias, counts.shape[0], splits, q.stride(0),
        q.stride(1), out.stride(0), out.stride(1), blocks.stride(0), 0 if bias is None else bias.stride(0),
        **_constants(q, kept, form, sinks, bias, tuned),
    )  # fmt: skip
    # Launched whether or not there are splits, then for nothing: asking would make a graph of its own for either.
    kernels.join[(torch.sym_max(1, tokens * heads * there),)](  # type: ignore[no-untyped-call]
        parts, out, splits, out.stride(0), out.stride(1), HEADS=heads, DV=width, DV_PAD=padded(width), MOST=MOST_SPLITS
    )
    return out


def paged_tuning(q: Tensor, v_cache: Tensor | None, family: str, coded: bool = False) -> Blocks:
    """Small tiles of many heads, since most sequences of a step have one token.

    Args:
        v_cache: None of rows that are keys and values.
        coded: whether what is kept are codes. What they become takes registers where no instruction converts them, and
            on RDNA, which has few.
    """
    found = _tuning(q, v_cache, family)
    roomy = tuning.converts_float8(family) and not family.startswith("gfx1")
    return found._replace(n=max(16, found.n // 2)) if coded and not roomy else found


def _tuning(q: Tensor, v_cache: Tensor | None, family: str) -> Blocks:
    if v_cache is None:
        return tuning.row_blocks(family, q.dtype, q.shape[2])
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
    q: Tensor, kept: Kept, form: Form, sinks: Tensor | None, bias: Tensor | None, tuned: Blocks
) -> dict[str, Any]:
    """What the kernel is compiled for."""
    assert form.scale > 0, "the kernel takes the largest score before it scales"
    assert q.stride(2) == 1, "a head's elements lie side by side"
    assert all(one is None or one.is_contiguous() for one in kept[:2]), "a pool's rows lie side by side"
    constants = shared_constants(q, kept.k.shape[2], kept.width, form, sinks, bias, tuned)
    row, rest = kept.v is None, q.shape[2] - kept.width
    return constants | {
        "D_PAD": constants["DV_PAD"] if row else constants["D_PAD"],
        "REST_PAD": padded(rest) if row and rest else 0,
        "ROW": row,
        "CODED": kept.k_scale is not None,
        "NATIVE": kept.native,
        "HEADS": kept.k.shape[2],
        "SIZE": kept.k.shape[1],
        "CAUSAL": MaskKind(form.kind).causal,
    }
