"""Embeddings of tokens without a transformer: sentence-transformers' `StaticEmbedding`, Model2Vec's form too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput

from headrace.errors import LoadError
from headrace.frontend.load.sentence_transformers.modules.build import weights_of
from headrace.frontend.load.sentence_transformers.modules.words import keeps_special, word_limit, word_tokenizer
from headrace.frontend.load.sentence_transformers.pipeline import BAG, SPARSE_STATIC, STATIC, WORDS, Step
from headrace.ir import TextRules

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
    return StaticRows(_table(step).to(dtype)).eval()


def _table(step: Step) -> Tensor:
    if step.kind == BAG:
        # What is looked up is told by the chain; a row says how much its token weighs.
        return torch.ones(len(dict.fromkeys(step.config["vocab"])), 1)
    held = dict(weights_of(step))
    if step.kind == SPARSE_STATIC:
        return held["weight"][:, None]
    table = held.get("emb_layer.weight" if step.kind == WORDS else "embedding.weight")
    return _folded(held, step.where) if table is None else table


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
    """The step's tokenizer as those of transformers are; None where its folder holds one of transformers' own.

    Raises:
        LoadError: the folder has none, or one that is not served.
    """
    if step.kind in (WORDS, BAG):
        return word_tokenizer(step, folder)
    if step.kind == SPARSE_STATIC:
        return None if step.live is None else step.live.tokenizer
    made: Any = PreTrainedTokenizerFast
    if step.live is not None:
        return made(tokenizer_object=step.live.tokenizer)
    if not (folder / FILE).is_file():
        raise LoadError(f"{folder} holds no {FILE}, by which a {STATIC} reads texts. Add it, or pass tokenizer=.")
    return made(tokenizer_file=str(folder / FILE))


def static_rules(step: Step, tokenizer: Any, text: TextRules) -> TextRules:
    """How texts are read for a table of tokens: without special tokens, cut where its own files say.

    A sparse table's tokenizer cuts nothing.
    """
    length, why = None, text.why
    if step.kind == STATIC and (cut := tokenizer.backend_tokenizer.truncation) is not None:
        length, why = int(cut["max_length"]), "the tokenizer's own truncation"
    elif step.kind == WORDS and (most := word_limit(step)) is not None:
        length, why = most, f"{WORDS}' max_seq_length"
    return replace(text, special_tokens=keeps_special(step), max_length=length, why=why)
