"""Attention over paged caches on a host, in C++: of few new tokens as the cache lies, of many by products.

It means what `headrace::attention_paged` does, which runs what this does not: biases of the distance, operands of
several dtypes, and keys in eight bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from headrace.compat.torch_code import define
from headrace.graphs.views import arguments
from headrace.ir import MaskKind
from headrace.ops import cached

DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
SCHEMA = (
    "attention_paged_host(Tensor q, Tensor? k, Tensor? v, Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor slots, "
    "Tensor blocks, Tensor cu_seqlens, Tensor context, Tensor? sinks, float scale, bool chunked, int left, "
    "float softcap, int v_width) -> Tensor"
)


def attention_paged_host(  # noqa: PLR0913, PLR0917 - what the operator takes
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    slots: Tensor,
    blocks: Tensor,
    cu_seqlens: Tensor,
    context: Tensor,
    sinks: Tensor | None,
    scale: float,
    chunked: bool,
    left: int,
    softcap: float,
    v_width: int,
) -> Tensor:
    """As `attention_paged` without a bias or eight bits; compiled code runs `attention.h` in its place.

    Args:
        q, k, v, k_cache, v_cache: of one dtype, float32, bfloat16 or float16.
        chunked: whether keys are seen in chunks of `left + 1`.
        left: keys that a query sees before itself, -1 for all.
    """
    kind = MaskKind.CHUNKED if chunked else MaskKind.CAUSAL
    given = (q, k, v, k_cache, v_cache, slots, blocks, cu_seqlens, context, sinks)
    return cached.attention_paged(*given, None, scale, kind, [left, 0], softcap, "none", v_width)


def _shape(
    q: Tensor, k: Tensor | None, v: Tensor | None, k_cache: Tensor, v_cache: Tensor | None, *rest: Any
) -> Tensor:
    return cached.paged_rows(q, k_cache, v_cache, rest[-1])


ATTENTION_PAGED_HOST = define(SCHEMA, attention_paged_host, _shape)


def use_host_attention(graph: fx.Graph) -> None:
    """Have a graph call this module's operator where it calls the IR's with what this one takes."""
    for node in graph.nodes:
        if node.target is cached.ATTENTION_PAGED and _suits(given := arguments(node)):
            left, _ = given["window"]
            chunked = given["kind"] == MaskKind.CHUNKED
            node.args = (*node.args[:10], given["scale"], chunked, left, given["softcap"], given.get("v_width", 0))
            node.target, node.kwargs = ATTENTION_PAGED_HOST, {}


def _suits(given: dict[str, Any]) -> bool:
    if given["bias"] is not None or given.get("k_scale") is not None:
        return False
    operands = (given[name] for name in ("q", "k", "v", "k_cache", "v_cache"))
    dtypes = {one.meta["val"].dtype for one in operands if one is not None}
    sinks = given["sinks"]
    return len(dtypes) == 1 and dtypes <= DTYPES and (sinks is None or sinks.meta["val"].dtype is torch.float32)
