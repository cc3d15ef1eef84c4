"""Rows of one vector a text: modules, poolings, prompts, backbones, real weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import sentence_transformers as st
import torch
from sentence_transformers.sentence_transformer import modules as dense
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

from benchmarks.peers.case import (
    LABELS,
    MLM,
    REAL,
    ROLES,
    TAGS,
    Case,
    drawn,
    embed,
    embedder,
    folder,
    mean,
    tokenizer,
)
from headrace import examples
from tests.words import SPECIAL, WORDS


def modules() -> Iterator[Case]:
    tokens: dict[str, Any] = {"module_input_name": "token_embeddings"}
    layered = {"config_kwargs": {"output_hidden_states": True}}
    yield embed("module", "Dense (tanh)", mean(), partial(dense.Dense, 32, 16))
    yield embed("module", "Dense (residual)", mean(), partial(dense.Dense, 32, 16, use_residual=True))
    yield embed("module", "Dense over tokens", partial(dense.Dense, 32, 24, **tokens), mean(24))
    yield embed("module", "Normalize", mean(), dense.Normalize)
    yield embed("module", "Normalize over tokens", partial(dense.Normalize, **tokens), mean())
    yield embed("module", "LayerNorm", mean(), lambda: drawn(dense.LayerNorm(32)))
    yield embed("module", "Dropout", mean(), dense.Dropout)
    yield embed(
        "module", "WeightedLayerPooling", lambda: drawn(dense.WeightedLayerPooling(32, 2, 1)), mean(), made=layered
    )
    yield embed("module", "CNN", partial(dense.CNN, 32, 8), mean(24))
    yield embed(
        "module", "WordWeights", lambda: dense.WordWeights(list(SPECIAL | WORDS), {"w20": 3.0, "w5": 0.2}), mean()
    )
    table = torch.randn(96, 16, generator=torch.Generator().manual_seed(0))
    yield Case(
        "module",
        "StaticEmbedding",
        lambda _: st.SentenceTransformer(
            modules=[dense.StaticEmbedding(tokenizer().backend_tokenizer, table)], device="cpu"
        ),
        lambda model, texts: model.embed(texts),
        lambda model, text: model.encode(text),
    )
    for what, first in tables().items():
        yield Case(
            "module",
            what,
            partial(lambda _, made: st.SentenceTransformer(modules=made(), device="cpu"), made=first),
            lambda model, texts: model.embed(texts),
            lambda model, text: model.encode(text),
        )
    for tower in ("query", "document"):
        yield Case(
            "module",
            f"Router, {tower}",
            routed,
            lambda model, texts: model.embed(texts),
            partial(lambda model, text, task: model.encode(text, task=task), task=tower),
            options={"tower": tower},
        )


def tables() -> dict[str, Callable[[], list[Any]]]:
    """Words by their own splitter, without a transformer."""
    words, rows = list(SPECIAL | WORDS), torch.randn(96, 16, generator=torch.Generator().manual_seed(0))
    return {
        "WordEmbeddings": lambda: [
            dense.WordEmbeddings(WhitespaceTokenizer(words, stop_words=["w6"]), rows), dense.Pooling(16, "mean"),
        ],
        "WordEmbeddings of a transformer's tokenizer": lambda: [
            dense.WordEmbeddings(tokenizer(), rows), dense.Pooling(16, "mean"),
        ],
        "WordEmbeddings, LSTM": lambda: [
            dense.WordEmbeddings(WhitespaceTokenizer(words, stop_words=["w6"]), rows), dense.LSTM(16, 8, 2),
            dense.Pooling(16, "mean"),
        ],
        "BoW": lambda: [dense.BoW(words, {"w20": 3.0, "w50": 0.2})],
        "BoW, each word once": lambda: [dense.BoW(words, {"w20": 3.0}, cumulative_term_frequency=False)],
    }  # fmt: skip


def routed(where: Path) -> Any:
    torch.manual_seed(4)
    router = dense.Router.for_query_document([dense.Dense(32, 8)], [dense.Dense(32, 8)])
    return embedder(mean(), lambda: router, where=where)


def poolings() -> Iterator[Case]:
    for kind in ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"):
        yield embed("pooling", kind, partial(dense.Pooling, 32, kind))
    yield embed("pooling", "cls + mean + max", partial(dense.Pooling, 32, ("cls", "mean", "max")))
    for name in ("qwen3", "modernbert", "t5", "xlm-roberta"):
        yield embed("pooling", f"lasttoken, {name}", partial(dense.Pooling, 32, "lasttoken"), model=name)
    yield embed("pooling", "mean, truncate_dim 8, normalised", mean(), dense.Normalize, truncate_dim=8)


def prompts() -> Iterator[Case]:
    named = {"query": "w80 ", "document": "w81 ", "other": "w82 w83 "}
    for name in named:
        yield embed("prompt", f"prompt_name={name}", mean(), ask={"prompt_name": name}, prompts=named)
    yield embed("prompt", "text", mean(), ask={"prompt": "w84 w85 "}, prompts=named)
    yield embed("prompt", "default", mean(), prompts=named, default_prompt_name="other")
    for theirs, ours in (("encode_query", "embed_query"), ("encode_document", "embed_document")):
        yield embed("prompt", theirs, mean(), theirs=theirs, ours=ours, prompts=named)
    for template, what in ((ROLES, "flat"), (ROLES.replace("m.content", "m.content[0].text"), "structured")):
        for model in ("bert", "qwen3"):
            yield embed(
                "template",
                f"{what}, {model}",
                partial(dense.Pooling, 32, "lasttoken"),
                model=model,
                template=template,
                prompts={"query": "w80"},
                ask={"prompt_name": "query"},
            )


def backbones() -> Iterator[Case]:
    shared: dict[str, Any] = {
        "ours": lambda model, texts: model.embed(texts),
        "theirs": lambda model, text: model.encode(text),
        "options": {"task": "embed"},
        "bare": True,
    }
    for what, name, head in (
        ("masked-LM", "bert", MLM),
        ("classifier", "modernbert", LABELS),
        ("tagger", "xlm-roberta", TAGS),
    ):
        yield Case(
            "backbone",
            what,
            partial(
                lambda where, name, head: st.SentenceTransformer(folder(where, name, head), device="cpu"),
                name=name,
                head=head,
            ),
            **shared,
        )
    yield Case(
        "backbone",
        "rampart_ner (real tagger)",
        lambda _: st.SentenceTransformer(str(examples.folder("rampart_ner")), device="cpu"),
        asked=REAL,
        **shared,
    )


def real() -> Iterator[Case]:
    minilm: Callable[[Path], Any] = lambda _: st.SentenceTransformer(str(examples.folder("minilm")), device="cpu")  # noqa: E731
    ours, theirs = (lambda model, texts: model.embed(texts)), (lambda model, text: model.encode(text))
    yield Case("real", "minilm", minilm, ours, theirs, REAL)
    yield Case(
        "real",
        "minilm, 64 dimensions",
        minilm,
        lambda model, texts: model.embed(texts, dimensions=64),
        lambda model, text: model.encode(text, truncate_dim=64, normalize_embeddings=True),
        REAL,
    )
