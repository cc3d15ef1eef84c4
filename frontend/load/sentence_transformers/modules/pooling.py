"""Rows to a text's vector: the kinds by sentence-transformers' names, and the module that is traced."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import LoadError
from headrace.frontend.load.keys import require_known
from headrace.ir import PoolKind

POOL_NAMES = {"lasttoken": PoolKind.LAST} | {kind.value: kind for kind in PoolKind if kind is not PoolKind.LAST}
# The older form of 1_Pooling/config.json: one boolean a kind.
POOL_FLAGS = {
    "pooling_mode_cls_token": PoolKind.CLS,
    "pooling_mode_max_tokens": PoolKind.MAX,
    "pooling_mode_mean_tokens": PoolKind.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": PoolKind.MEAN_SQRT_LEN,
    "pooling_mode_weightedmean_tokens": PoolKind.WEIGHTED_MEAN,
    "pooling_mode_lasttoken": PoolKind.LAST,
}
POOLING = (*POOL_FLAGS, "pooling_mode", "include_prompt", "embedding_dimension", "word_embedding_dimension")
# What a mean of weighted rows is divided by: the mean of the weights, or its root.
SCALED = {PoolKind.MEAN: 1.0, PoolKind.MEAN_SQRT_LEN: 0.5}


class Pool(nn.Module):
    """Rows [B, S, H] to one vector [B, k * H] a sequence, in float32."""

    def __init__(self, kinds: tuple[PoolKind, ...]) -> None:
        """Pool by each kind and concatenate."""
        super().__init__()
        self.kinds = kinds

    def forward(self, rows: Tensor, padding: Tensor, weights: Tensor | None = None) -> Tensor:
        """`padding` is [B, S], nonzero at real tokens; `weights` [B, S], by which the rows have been multiplied."""
        pooled = [self._pool(rows.float(), padding, kind, weights) for kind in self.kinds]
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)

    def _pool(self, rows: Tensor, padding: Tensor, kind: PoolKind, weights: Tensor | None) -> Tensor:
        pooled: Tensor = torch.ops.headrace.pool(rows, padding, kind.value)
        if weights is None or kind not in SCALED:
            return pooled
        mean: Tensor = torch.ops.headrace.pool(weights.float()[..., None], padding, PoolKind.MEAN.value)
        return pooled / mean.clamp(min=1e-9) ** SCALED[kind]


def read_pools(config: Mapping[str, Any], where: Path) -> tuple[PoolKind, ...]:
    """The kinds that a Pooling config names: one, a list of them, or the older booleans."""
    named = require_known(config, f"{where}/config.json", POOLING).get("pooling_mode")
    if named is None:
        kinds = tuple(kind for flag, kind in POOL_FLAGS.items() if config.get(flag))
        if not kinds:
            raise LoadError(f"{where}: the Pooling config names no kind: {config}")
        return kinds
    return tuple(pool_kind(name) for name in ([named] if isinstance(named, str) else named))


def pool_kind(name: str) -> PoolKind:
    """A pooling kind by sentence-transformers' name, or ours.

    Raises:
        LoadError: no such kind; the message lists them.
    """
    if (kind := POOL_NAMES.get(name) or next((k for k in PoolKind if k.value == name), None)) is None:
        raise LoadError(f"There is no pooling {name!r}. Choose from {', '.join(sorted({*POOL_NAMES, *PoolKind}))}.")
    return kind
