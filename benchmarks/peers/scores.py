"""Rows of scores: activations, problem types, rerankers, and taggers' aggregations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers as st
import torch
import transformers
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer import modules as dense
from torch import nn

from benchmarks.peers.case import (
    CAUSAL,
    LABELS,
    PAIRS,
    ROLES,
    TAGS,
    Case,
    folder,
)


def scorer(where: Path, activation: Any = None, **options: Any) -> Any:
    return st.CrossEncoder(folder(where, head=LABELS, **options), device="cpu", activation_fn=activation)


def scores() -> Iterator[Case]:
    all_scores: dict[str, Any] = {
        "ours": lambda model, pairs: [list(found.scores.values()) for found in model.classify(pairs)],
        "theirs": lambda model, pair: np.atleast_1d(model.predict([pair])[0]),
        "asked": PAIRS,
    }
    for activation in (nn.Sigmoid(), nn.Identity(), nn.Softmax(-1)):
        for labels in (1, 3):
            yield Case(
                "activation",
                f"{activation.__class__.__name__}, {labels} labels",
                partial(scorer, activation=activation, num_labels=labels),
                **all_scores,
            )
    for problem in ("regression", "multi_label_classification", "single_label_classification"):
        yield Case(
            "problem type",
            problem,
            partial(scorer, num_labels=1 if problem == "regression" else 3, problem_type=problem),
            **all_scores,
        )
    one: dict[str, Any] = {"theirs": lambda model, pair: model.predict([pair])[0], "asked": PAIRS}
    raw: dict[str, Any] = {
        "theirs": lambda model, pair: model.predict([pair], activation_fn=nn.Identity())[0],
        "asked": PAIRS,
    }
    score, logits = (lambda model, pairs: model.score(pairs)), (lambda model, pairs: model.score(pairs, raw=True))
    yield Case("score", "raw", partial(scorer, num_labels=1), logits, **raw)
    yield Case("score", "Pooling, Dense", pooled_scorer, score, **one)
    for name in ("qwen3", "gemma2"):
        for template in (None, ROLES):
            what = f"LogitScore, {name}, {'template' if template else 'bare texts'}"
            yield Case("score", what, partial(generative, name=name, template=template), score, **one)
    best: dict[str, Any] = {"theirs": lambda model, pair: model.predict([pair])[0], "asked": PAIRS}
    yield Case(
        "score", "a bare language model's yes and no", yes_no, score, options={"task": "score"}, bare=True, **best
    )
    yield Case(
        "score",
        "rank, one document",
        partial(scorer, num_labels=1),
        lambda model, pairs: [model.rank(*pair)[0].score for pair in pairs],
        **one,
    )


def pooled_scorer(where: Path) -> Any:
    torch.manual_seed(5)
    last = dense.Dense(32, 1, activation_function=nn.Identity(), module_output_name="scores")
    return st.CrossEncoder(modules=[dense.Transformer(folder(where)), dense.Pooling(32, "mean"), last], device="cpu")


def generative(where: Path, name: str, template: str | None) -> Any:
    first = dense.Transformer(folder(where, name, CAUSAL, template), transformer_task="text-generation")
    return st.CrossEncoder(modules=[first, LogitScore(7, 9)], device="cpu")


def yes_no(where: Path) -> Any:
    path = Path(folder(where, "qwen3", CAUSAL, ROLES)) / "tokenizer.json"
    path.write_text(path.read_text().replace('"w94"', '"yes"').replace('"w95"', '"no"'))
    return st.CrossEncoder(str(path.parent), device="cpu")


TAG_NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def aggregations() -> Iterator[Case]:
    """What stands at each character, by each strategy of transformers' pipeline: the score, and a hundredth a label."""
    for strategy in ("none", "simple", "first", "average", "max"):
        yield Case(
            "aggregation",
            strategy,
            partial(tagger, strategy=strategy),
            partial(lambda model, texts, by: [spread(found) for found in model.token_classify(texts, by)], by=strategy),
            lambda model, text: spread(model(text)),
        )


def tagger(where: Path, strategy: str) -> Any:
    named = dict(enumerate(TAG_NAMES))
    names: dict[str, Any] = {"id2label": named, "label2id": {name: place for place, name in named.items()}}
    made = folder(where, head=TAGS, num_labels=len(TAG_NAMES), **names)
    return transformers.pipeline("token-classification", made, aggregation_strategy=strategy)


def spread(entities: list[Any]) -> Any:
    """Entities over the characters of a text."""
    codes = {name: place for place, name in enumerate((*TAG_NAMES, "PER", "LOC"))}
    made = np.zeros(160)
    for one in entities:
        told: dict[str, Any] = one if isinstance(one, dict) else asdict(one)
        label = next(told[key] for key in ("entity_group", "entity", "label") if key in told)
        made[told["start"] : told["end"]] += told["score"] + codes[label] / 100
    return made
