"""What a packed or a cached program launches of our kernels, read off its graph: no GPU needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from headrace.backends.kernels.attention import paged
from headrace.backends.kernels.attention.kernel import attend_tiles, list_tiles
from headrace.backends.kernels.attention.op import Form, launched, listed
from headrace.backends.kernels.attention.paged_kernel import attend_paged, join_splits, write_paged
from headrace.backends.kernels.early import Early, EarlyLaunch
from headrace.backends.kernels.linear_activation.kernel import multiply_activate
from headrace.backends.kernels.linear_activation.match import LINEAR_ACTIVATED
from headrace.backends.kernels.linear_activation.op import multiplied
from headrace.backends.kernels.linear_few.kernel import multiply_few
from headrace.backends.kernels.linear_few.match import LINEAR_ANY
from headrace.backends.kernels.linear_few.op import FEW, few_multiplied
from headrace.backends.kernels.linear_few.rows import (
    SHORT,
    embedding,
    gathered_rows,
    layer,
    multiplied_rows,
    norm,
    normed_rows,
)
from headrace.backends.kernels.linear_few.rows_kernel import gather_rows, multiply_rows, norm_rows
from headrace.backends.kernels.pipeline import short_rows, with_kernels
from headrace.backends.kernels.pooling import reduce_sequences, reduced
from headrace.backends.kernels.recurrent.channels import linearly_recurred, recur_linearly, weigh_values, weighed
from headrace.backends.kernels.recurrent.chunk_scan import chunk_scanned, scan_chunks
from headrace.backends.kernels.recurrent.convolution import convolve_rows, convolved, shift_rows, shifted
from headrace.backends.kernels.recurrent.delta_rule import delta_ruled, scan_delta, solve_chunks, step_delta
from headrace.backends.kernels.recurrent.matrix_memory import remember_tokens, remembered
from headrace.backends.kernels.recurrent.selective_scan import scan_tokens, selectively_scanned
from headrace.backends.kernels.rotary import into_cache
from headrace.backends.kernels.rotary.into_cache import rotate_into_cache
from headrace.backends.kernels.rotary.match import ROTATE, ROTATE_INTO
from headrace.backends.kernels.rotary.op import rotate_rows, rotated
from headrace.backends.kernels.tuning import PRODUCTS, Blocks
from headrace.backends.kernels.use_kernels import (
    ATTENTION_TRITON,
    PAGED,
    PAGED_TILES,
    POOL_TRITON,
    TILES,
)
from headrace.ir import AttentionSpec, MaskKind, Program, Window


@dataclass(frozen=True)
class Launch:
    """One specialisation of one kernel.

    Attributes:
        kernel: as Triton's `jit` made it.
        arguments: by position: tensors without data, numbers, and symbols where each call brings its own number.
        constants: those of the kernel, and its `num_warps` and `num_stages` where they are chosen.
        uses: the nodes of the graph that launch it.
        attention: what those compute, where they are attentions.
    """

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    uses: tuple[str, ...]
    attention: tuple[AttentionSpec, ...] = ()

    @property
    def multiplies(self) -> bool:
        """Whether the kernel multiplies matrices."""
        return self.kernel in MULTIPLYING

    @property
    def name(self) -> str:
        """The kernel's own."""
        return str(self.kernel.fn.__name__)


class Recorder:
    """Stands for a kernel: keeps what it would be launched with."""

    def __init__(self) -> None:
        self.launched: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **constants: self.launched.append((arguments, constants))


def launches(program: Program, family: str) -> list[Launch]:
    """Every specialisation that the program launches on an architecture, in the order of the first use.

    Args:
        program: packed, or cached.
        family: the architecture, as `tuning.family` names it.
    """
    lowered = with_kernels(program, family)
    left = iter(program.nodes.attention)
    found: dict[Any, Launch] = {}
    short = short_rows(program, family)
    of_short = () if short is None else (node for node in short.graph.nodes if _of_short(node.target))
    for node in (*lowered.graph.nodes, *of_short):
        if node.target not in LAUNCHERS and not isinstance(node.target, EarlyLaunch):
            continue
        attention = (next(left),) if node.target in ATTENTIONS else ()
        for made in launches_of(node, attention):
            key = specialisation(made)
            before = found.get(key)
            found[key] = made if before is None else replace(
                made, uses=before.uses + made.uses, attention=before.attention + made.attention
            )  # fmt: skip
    return list(found.values())


def launches_of(node: fx.Node, attention: tuple[AttentionSpec, ...] = ()) -> list[Launch]:
    """What one node of a lowered graph launches."""
    values = fx.map_arg(node.args, lambda given: given.meta["val"])
    tensors = [value for value in values if isinstance(value, Tensor)]
    target: Any = node.target
    early = isinstance(target, EarlyLaunch)
    kernels, launcher = (target.kernels, target.launch) if early else LAUNCHERS[target]
    recorders = [Recorder() for _ in kernels]
    with tensors[0].fake_mode:  # type: ignore[attr-defined]
        launcher(*values, *(Early(one) if early else one for one in recorders))
    return [
        Launch(kernel, arguments, constants, (node.name,), attention if kernel in ATTENDING else ())
        for kernel, recorder in zip(kernels, recorders, strict=True)
        for arguments, constants in recorder.launched
    ]


def _of_short(target: Any) -> bool:
    return target in ROWS or isinstance(target, EarlyLaunch)


def specialisation(launch: Launch) -> tuple[Any, ...]:
    """What Triton compiles anew for: types, what is known of numbers, constants."""
    types = tuple(
        value if isinstance(value, int) else str(getattr(getattr(value, "base", value), "dtype", "symbol"))
        for value in launch.arguments
    )
    return launch.name, types, tuple(sorted(launch.constants.items()))


def _attend_paged(*values: Any) -> None:
    q, k, v, k_cache, v_cache, slots, blocks, counts, tiles, tuned, sinks, bias, *said, write, attend, join = values
    scale, kind, window, softcap, bias_kind, v_width, k_scale, v_scale, native = said
    kept = paged.kept_of(k_cache, v_cache, v_width, k_scale, v_scale, native)
    kernels, form = paged.Kernels(write, attend, join), Form(scale, kind, Window(*window), softcap, bias_kind)
    if k is not None:
        paged.written(k, v, kept, slots, kernels)
    paged.attended(q, kept, blocks, counts, tiles, Blocks.of(tuned), form, sinks, bias, kernels)


def _attend_cross(*values: Any) -> None:
    q, k_cache, v_cache, blocks, counts, tiles, tuned, sinks, scale, softcap, attend, join = values
    kernels, form = paged.Kernels(attend=attend, join=join), Form(scale, MaskKind.BIDIRECTIONAL, softcap=softcap)
    kept = paged.kept_of(k_cache, v_cache)
    paged.attended(q, kept, blocks, counts, tiles, Blocks.of(tuned), form, sinks, None, kernels)


def _list_paged(*values: Any) -> None:
    listed(*values, named=True)


def _multiply(*values: Any) -> None:
    """As for rows that are many; with few of them a library multiplies."""
    x, weight, bias, kind, gated, late, family, kernel = values
    multiplied(x.reshape(-1, x.shape[-1]), weight, bias, kind, gated, late, PRODUCTS[family], kernel)


def _multiply_few(*values: Any) -> None:
    """As for as many rows as the kernel takes; a library multiplies more."""
    x, weight, bias, kernel = values
    few_multiplied(x.reshape(-1, x.shape[-1])[:FEW], weight, bias, kernel=kernel)


def _layer(*values: Any) -> None:
    """As for a few rows, and for as many as a short one has."""
    x, weight, bias, kind, gated, late, residual, few, more = values
    for most, launch, kernel in ((FEW, few_multiplied, few), (SHORT, multiplied_rows, more)):
        rows, added = (one if one is None else one.reshape(-1, one.shape[-1])[:most] for one in (x, residual))
        launch(rows, weight, bias, kind, gated, late, added, kernel)  # type: ignore[arg-type]


def _normed(*values: Any) -> None:
    x, *said = values
    normed_rows(x.reshape(-1, x.shape[-1]), *said)


def _gathered(*values: Any) -> None:
    *given, kernel = values
    ids, tables = given[: len(given) // 2], given[len(given) // 2 :]
    gathered_rows([one.reshape(-1) for one in ids], tables, kernel)


PAGED_TRITON, CROSS_TRITON = (target for target, _ in PAGED.values())
ATTENTIONS = (ATTENTION_TRITON, PAGED_TRITON, CROSS_TRITON)
ATTENDING = (attend_tiles, attend_paged)
MULTIPLYING = (attend_tiles, attend_paged, multiply_activate, multiply_rows, scan_chunks, solve_chunks, scan_delta)
OURS = torch.ops.headrace
# The functions that short rows are launched by.
ROWS: dict[Any, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    layer: ((multiply_few, multiply_rows), _layer),
    norm: ((norm_rows,), _normed),
    embedding: ((gather_rows,), _gathered),
}
# Each operator's kernels, and what launches them.
LAUNCHERS: dict[Any, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    ATTENTION_TRITON: ((attend_tiles,), launched),
    PAGED_TRITON: ((write_paged, attend_paged, join_splits), _attend_paged),
    ROTATE_INTO: ((rotate_into_cache,), into_cache.written),
    LINEAR_ANY: ((multiply_few,), _multiply_few),
    CROSS_TRITON: ((attend_paged, join_splits), _attend_cross),
    TILES: ((list_tiles,), listed),
    PAGED_TILES: ((list_tiles,), _list_paged),
    POOL_TRITON: ((reduce_sequences,), reduced),
    OURS.causal_conv1d_triton.default: ((convolve_rows,), convolved),
    OURS.token_shift_triton.default: ((shift_rows,), shifted),
    OURS.selective_scan_triton.default: ((scan_tokens,), selectively_scanned),
    OURS.chunk_scan_triton.default: ((scan_chunks,), chunk_scanned),
    OURS.gated_delta_rule_triton.default: ((solve_chunks, scan_delta, step_delta), delta_ruled),
    OURS.linear_recurrence_triton.default: ((recur_linearly,), linearly_recurred),
    OURS.wkv_triton.default: ((weigh_values,), weighed),
    OURS.mlstm_triton.default: ((remember_tokens,), remembered),
    ROTATE: ((rotate_rows,), rotated),
    LINEAR_ACTIVATED: ((multiply_activate,), _multiply),
    **ROWS,
}
