"""A model as the task that is wished for takes it: a tagger's backbone embeds, a language model's yes and no score."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from headrace.errors import warn
from headrace.frontend.capture.attention import evaluating
from headrace.frontend.eager.model import DryRun, EagerModel
from headrace.frontend.eager.run import look, without_target
from headrace.frontend.facts.array_axes import fit_arrays
from headrace.frontend.facts.token_scores import as_reranker
from headrace.frontend.load.checkpoint import Checkpoint
from headrace.frontend.load.sentence_transformers.modules.chain import Chain
from headrace.frontend.load.sentence_transformers.modules.sparse import Splade
from headrace.frontend.load.sentence_transformers.sentence_modules import SentenceModules
from headrace.ir import TASK_RULES, Head, OutputKind, Similarity, Task

# The tasks that hidden rows answer, which every backbone makes.
OF_ROWS = frozenset(task for task, rules in TASK_RULES.items() if OutputKind.HIDDEN in rules.outputs) | {Task.EMBED}


def for_wish(checkpoint: Checkpoint, wish: str | None) -> Checkpoint:
    """The checkpoint, of the backbone alone where `wish` is answered by hidden rows and the head does not offer it.

    A language model's, where scores are wished for, scores by two of its logits; a masked language model's is pooled to
    sparse vectors. Sentence-transformers' folders are left alone: what their modules offer is their authors' choice.
    """
    if checkpoint.sentence is not None or (wish not in OF_ROWS and wish not in (Task.SCORE, Task.SPARSE_EMBED)):
        return checkpoint
    seen, rules = _seen(checkpoint), TASK_RULES[Task(wish)]
    if seen.head in rules.heads:
        return checkpoint
    if wish == Task.SCORE:
        return as_reranker(checkpoint) if seen.head is Head.CAUSAL_LM else checkpoint
    if wish == Task.SPARSE_EMBED:
        return _splade(checkpoint) if seen.head is Head.MASKED_LM else checkpoint
    return _without_head(checkpoint, seen, Task(wish))


def _splade(checkpoint: Checkpoint) -> Checkpoint:
    """As sentence-transformers' SparseEncoder takes a masked language model: the greatest weight of each word."""
    warn(
        "Nothing says how the masked language model's logits are pooled: the greatest over the text is taken. One that "
        "was not trained for that says nothing by its weights."
    )
    chain = Chain([Splade(sums=False, twice=False)])
    sentence = SentenceModules((), chain, normalize=False, headless=False, sparse=True)
    return replace(checkpoint, sentence=sentence, similarity=Similarity.DOT)


def _without_head(checkpoint: Checkpoint, seen: DryRun, wish: Task) -> Checkpoint:
    body = seen.pair or seen.backbone
    if body is checkpoint.module:
        return checkpoint
    warn(
        f"The model's head does not offer {wish} and is left out: its backbone, {_path(checkpoint.module, body)}, "
        "answers. A model that was trained for it answers better."
    )
    return replace(checkpoint, module=body, missing=_missing(checkpoint, body))


def _seen(checkpoint: Checkpoint) -> DryRun:
    with evaluating(checkpoint.module):
        model = without_target(EagerModel.of(checkpoint.module, checkpoint.config))
        return look(fit_arrays(model, checkpoint.processor)).seen


def _path(module: nn.Module, inner: nn.Module) -> str:
    return next(name for name, one in module.named_modules() if one is inner) or "the whole"


def _missing(checkpoint: Checkpoint, body: nn.Module) -> tuple[str, ...]:
    """The parameters that the weights lacked and the backbone has, by its own names."""
    held: dict[str, Any] = dict(checkpoint.module.named_parameters(remove_duplicate=False))
    lacked = [held[name] for name in checkpoint.missing if name in held]
    own = body.named_parameters(remove_duplicate=False)
    return tuple(sorted(name for name, one in own if any(one is other for other in lacked)))
