"""Embeddings of tokens without a transformer: sentence-transformers' `StaticEmbedding`, Model2Vec's form too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput

from headrace.errors import LoadError
from headrace.frontend.load.modules.build import weights_of
from headrace.frontend.load.pipeline import SPARSE_STATIC, STATIC, Step

FILE = "tokenizer.json"


class StaticRows(nn.Module):
    """A row of a table for each token."""

    def __init__(self, table: Tensor) -> None:
        """Look up in `table` [V, H]."""
        super().__init__()
        self.embedding = nn.Embedding(table.shape[0], table.shape[1], _weight=table)

    def get_input_embeddings(self) -> nn.Module:
        """The table."""
        return self.embedding

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> BaseModelOutput:
        """Rows [B, S, H]."""
        return BaseModelOutput(last_hidden_state=self.embedding(input_ids))


def read_static(step: Step, dtype: torch.dtype) -> nn.Module:
    """The table of a step, from memory or its folder.

    Raises:
        LoadError: no such weights.
    """
    held = dict(weights_of(step))
    if step.kind == SPARSE_STATIC:
        # What is looked up is told by the chain; a row says how much its token weighs.
        return StaticRows(held["weight"][:, None].to(dtype)).eval()
    table = held.get("embedding.weight")
    if table is None:
        table = _folded(held, step.where)
    return StaticRows(table.to(dtype)).eval()


def _folded(held: dict[str, Any], where: str) -> Tensor:
    """Model2Vec's form: a table, the row of it that each token has, and the weight of each token."""
    if "embeddings" not in held:
        raise LoadError(f"{where}: the weights are {', '.join(held)}; embedding.weight or embeddings is accepted.")
    table: Tensor = held["embeddings"]
    if (rows := held.get("mapping")) is not None:
        table = table[rows.long()]
    if (weights := held.get("weights")) is not None:
        table = table.to(torch.promote_types(table.dtype, torch.float32)) * weights[:, None]
    return table


def static_tokenizer(step: Step, folder: Path) -> Any:
    """The step's tokenizer as those of transformers are.

    Raises:
        LoadError: the folder has none.
    """
    made: Any = PreTrainedTokenizerFast
    if step.live is not None:
        return step.live.tokenizer if step.kind == SPARSE_STATIC else made(tokenizer_object=step.live.tokenizer)
    if not (folder / FILE).is_file():
        raise LoadError(f"{folder} holds no {FILE}, by which a {STATIC} reads texts. Add it, or pass tokenizer=.")
    return made(tokenizer_file=str(folder / FILE))


def static_limit(step: Step, tokenizer: Any) -> int | None:
    """The tokens that the tokenizer's own file cuts texts to, None where it does not; a sparse table's does not."""
    cut = tokenizer.backend_tokenizer.truncation if step.kind == STATIC else None
    return None if cut is None else int(cut["max_length"])
