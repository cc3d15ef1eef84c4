"""Modules that make sparse vectors: a number for each token of the vocabulary, or for each feature of an encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.frontend.load.sentence_transformers.modules.chain import (
    IDS,
    LOGITS,
    PADDING,
    VECTOR,
    Features,
    SentenceModule,
)
from headrace.ir import PoolKind

# A text's length in standard deviations, which sentence-transformers keeps off zero by so much.
EPSILON = 1e-5


class Splade(SentenceModule):
    """Logits of every token to how much the text says of each word (arXiv 2107.05720, 2109.10086)."""

    def __init__(self, sums: bool, twice: bool) -> None:
        """Take the greatest over the text, or the sum; `twice` dampens by a second logarithm (arXiv 2504.14839)."""
        super().__init__((LOGITS,), (VECTOR,))
        self.sums, self.twice = sums, twice

    def forward(self, features: Features) -> Features:
        """The weights [B, V], zero and above."""
        logits, padding = features[LOGITS].float(), features[PADDING]
        if self.sums:
            return {VECTOR: (self._dampened(logits) * padding[..., None]).sum(1)}
        # What dampens keeps the order, so that the greatest is chosen before it.
        return {VECTOR: self._dampened(torch.ops.headrace.pool(logits, padding, PoolKind.MAX.value))}

    def _dampened(self, logits: Tensor) -> Tensor:
        weights = logits.relu().log1p()
        return weights.log1p() if self.twice else weights


class TokenWeights(SentenceModule):
    """The weight of each token that is there: a query without a model's inference, or a text as a bag of words."""

    def __init__(self, count: int, sums: bool = False) -> None:
        """Weigh `count` tokens, with weights to be loaded: each once, or with `sums` as often as it is there."""
        super().__init__((IDS,), (VECTOR,))
        self.sums, self.weight = sums, nn.Parameter(torch.ones(count))

    def forward(self, features: Features) -> Features:
        """The weights [B, V]."""
        ids, real = features[IDS], features[PADDING].to(self.weight.dtype)
        none = real.new_zeros((ids.shape[0], self.weight.shape[0]))
        there = none.scatter_reduce(1, ids, real, "sum" if self.sums else "amax")
        return {VECTOR: there * self.weight}


class AutoEncoder(SentenceModule):
    """A vector as its strongest features (arXiv 2503.01776)."""

    def __init__(self, width: int, features: int, kept: int, normalize: bool) -> None:
        """Keep so many of the features, with weights to be loaded; `normalize` first takes off mean and deviation."""
        super().__init__((VECTOR,), (VECTOR,))
        self.kept, self.normalize = kept, normalize
        self.pre_bias, self.latent_bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(features))
        self.encoder = nn.Linear(width, features, bias=False)

    def forward(self, features: Features) -> Features:
        """The features [B, F], zero but for those that are kept."""
        x = features[VECTOR]
        if self.normalize:
            x = x - x.mean(-1, keepdim=True)
            x = x / (x.std(-1, keepdim=True) + EPSILON)
        found = nn.functional.linear(x - self.pre_bias, self.encoder.weight, self.latent_bias)
        values, places = found.topk(self.kept, -1)
        return {VECTOR: torch.zeros_like(found).scatter(-1, places, values).relu()}
