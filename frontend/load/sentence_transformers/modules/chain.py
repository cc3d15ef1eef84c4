"""Modules one after another, over values by sentence-transformers' names of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from headrace.frontend.load.sentence_transformers.modules.pooling import Pool
from headrace.ir import PoolKind
from headrace.ops.lstm import LSTM

# What sentence-transformers calls the rows [B, S, H], a text's vector [B, d], and the rows of every layer, stacked.
ROWS, VECTOR, LAYERS = "token_embeddings", "sentence_embedding", "all_layer_embeddings"
# Logits over the vocabulary [B, S, V], and a pair's scores [B, n].
LOGITS, SCORES = "causal_logits", "scores"
# A weight of each token [B, S, 1], and a vector of each [B, S, d], that score beside a text's own vector. The names are
# FlagEmbedding's.
LEXICAL, MULTI = "lexical_weights", "colbert_vecs"
# The token ids, what says where padding is (int [B, S], nonzero at real tokens), and the weights of tokens [B, S].
IDS, PADDING, WEIGHTS = "input_ids", "attention_mask", "token_weights"
# How many tokens a text has: said by a table of words alone, and read off the padding.
LENGTHS = "sentence_lengths"
Features = dict[str, Tensor]


class SentenceModule(nn.Module):
    """One module of a chain: what it reads, beside the padding, and the names that it writes."""

    def __init__(self, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
        """Keep the names."""
        super().__init__()
        self.reads, self.writes = reads, writes


class Applied(SentenceModule):
    """One value to another by a module that looks at it alone."""

    def __init__(self, module: nn.Module, reads: str, writes: str) -> None:
        """Apply `module` to what is called `reads`."""
        super().__init__((reads,), (writes,))
        self.module = module

    def forward(self, features: Features) -> Features:
        """What it writes."""
        return {self.writes[0]: self.module(features[self.reads[0]])}


class Pooled(SentenceModule):
    """Rows to a text's vector."""

    def __init__(self, kinds: tuple[PoolKind, ...]) -> None:
        """Pool by each kind and concatenate."""
        super().__init__((ROWS,), (VECTOR,))
        self.pool = Pool(kinds)

    def forward(self, features: Features) -> Features:
        """The vector [B, k * H] of rows [B, S, H]."""
        return {VECTOR: self.pool(features[ROWS], features[PADDING], features.get(WEIGHTS))}


class Chain(nn.Module):
    """Modules one after another."""

    def __init__(self, steps: Iterable[SentenceModule] = ()) -> None:
        """Run `steps` in order."""
        super().__init__()
        self.steps = nn.ModuleList(steps)

    def forward(self, features: Features) -> Features:
        """All that was there, and all that the steps wrote."""
        for step in self.steps:
            features = features | step(features)
        return features

    def writes(self, name: str) -> bool:
        """Whether a step writes the value of that name."""
        return any(name in step.writes for step in self.members)

    def reads(self, name: str) -> bool:
        """Whether a step reads the value of that name."""
        return any(name in step.reads for step in self.members)

    def pooled_by(self, kinds: tuple[PoolKind, ...]) -> Chain:
        """The same with other kinds of pooling; pooled at the end, where nothing pools."""
        if not self.writes(VECTOR):
            return Chain([*self.members, Pooled(kinds)])
        return Chain(Pooled(kinds) if isinstance(step, Pooled) else step for step in self.members)

    def after_pooling(self) -> Chain:
        """What works on a text's vector that comes from elsewhere."""
        return Chain(step for step in self.members if not {ROWS, LAYERS}.intersection((*step.reads, *step.writes)))

    @property
    def scoring(self) -> LogitScore | None:
        """The step that scores by tokens' logits, if there is one."""
        return next((step for step in self.members if isinstance(step, LogitScore)), None)

    @property
    def members(self) -> list[SentenceModule]:
        """The modules, in order."""
        return [step for step in self.steps if isinstance(step, SentenceModule)]


class First(nn.Module):
    """The first numbers of a vector, for models trained so."""

    def __init__(self, dimensions: int) -> None:
        """Keep so many; all, where there are fewer."""
        super().__init__()
        self.dimensions = dimensions

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] to [..., dimensions]."""
        return x[..., : self.dimensions]


class Normalize(nn.Module):
    """To unit length along the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] to [..., d]."""
        return nn.functional.normalize(x, p=2.0, dim=-1)


class Dense(nn.Module):
    """A linear layer and an activation, sentence-transformers' `Dense`; `residual` is added where it has one."""

    def __init__(self, linear: nn.Linear, activation: Callable[[Tensor], Tensor], residual: nn.Module | None) -> None:
        """Apply `linear`, then `activation`."""
        super().__init__()
        self.linear, self.activation, self.residual = linear, activation, residual

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        out: Tensor = self.activation(self.linear(x))
        return out if self.residual is None else out + self.residual(x)


class LogitScore(SentenceModule):
    """How much likelier one token is than another after a text, in logits; of one token alone, its logit."""

    def __init__(self, yes: int, no: int | None) -> None:
        """Compare the tokens `yes` and `no`."""
        super().__init__((LOGITS,), (SCORES,))
        self.yes, self.no = yes, no

    def forward(self, features: Features) -> Features:
        """The scores [B, 1]."""
        last: Tensor = torch.ops.headrace.pool(features[LOGITS].float(), features[PADDING], PoolKind.LAST.value)
        score = last[:, self.yes, None]
        return {SCORES: score if self.no is None else score - last[:, self.no, None]}


class LayerMean(SentenceModule):
    """Rows as a weighted mean of the layers from one on; as they are, where the transformer returns no layers."""

    def __init__(self, first: int, count: int) -> None:
        """Weigh `count` layers, from `first` of all, the embedding's counted, with weights to be loaded."""
        super().__init__((LAYERS,), (ROWS,))
        self.first = first
        self.layer_weights = nn.Parameter(torch.ones(count))

    def forward(self, features: Features) -> Features:
        """The rows [B, S, H]."""
        if LAYERS not in features:
            return {}
        weights = self.layer_weights[:, None, None, None]
        return {ROWS: (weights * features[LAYERS][self.first :]).sum(0) / self.layer_weights.sum()}


class Convolutions(SentenceModule):
    """Rows through convolutions along the text, side by side. Beyond a text's ends lie zeros, padded or not."""

    def __init__(self, width: int, out: int, kernels: tuple[int, ...]) -> None:
        """Convolve rows of `width` to `out` numbers by each kernel."""
        super().__init__((ROWS,), (ROWS,))
        self.convs = nn.ModuleList(nn.Conv1d(width, out, kernel, padding=kernel // 2) for kernel in kernels)

    def forward(self, features: Features) -> Features:
        """The rows [B, S, k * out]."""
        rows = (features[ROWS] * features[PADDING][..., None]).transpose(1, 2)
        return {ROWS: torch.cat([conv(rows) for conv in self.convs], 1).transpose(1, 2)}


class LstmLayers(SentenceModule):
    """Rows through the layers of an LSTM, each in one direction or both; none reads padding."""

    def __init__(self, layers: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Run `layers` in order: the weights `w`, `r` and `bias` of the operator, of each."""
        super().__init__((ROWS, LENGTHS), (ROWS,))
        self.layers = nn.ModuleList(nn.ParameterList(layer) for layer in layers)

    def forward(self, features: Features) -> Features:
        """The rows [B, S, directions * H]."""
        rows = features[ROWS]
        for layer in self.layers:
            rows = LSTM(rows, features[PADDING], *layer.parameters())
        return {ROWS: rows}


class WordWeights(SentenceModule):
    """Rows times the weight of their token, which a mean divides by."""

    def __init__(self, count: int) -> None:
        """Weigh `count` tokens, with weights to be loaded."""
        super().__init__((ROWS, IDS), (ROWS, WEIGHTS))
        self.emb_layer = nn.Embedding(count, 1)

    def forward(self, features: Features) -> Features:
        """The rows [B, S, H], and the weights [B, S]."""
        weights = self.emb_layer(features[IDS]).squeeze(-1)
        return {ROWS: features[ROWS] * weights[..., None], WEIGHTS: weights}
