"""Rows of sparse vectors, of many vectors a text, and of several answers of one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sentence_transformers as st
import torch
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer import modules as dense
from sentence_transformers.sparse_encoder import modules as sparse
from torch import nn

from benchmarks.peers.case import (
    MLM,
    REAL,
    TEXTS,
    Case,
    folder,
    tokenizer,
)
from headrace import examples
from tests.flag_embedding import FlagEmbedding, write_folder


def sparse_rows() -> Iterator[Case]:
    shared: dict[str, Any] = {
        "ours": lambda model, texts: np.asarray(model.sparse_embed(texts)),
        "theirs": lambda model, text: model.encode([text], convert_to_sparse_tensor=False)[0].numpy(),
    }
    for pooling in ("max", "sum"):
        for activation in ("relu", "log1p_relu"):
            yield Case(
                "sparse",
                f"SpladePooling, {pooling}, {activation}",
                partial(splade, pooling=pooling, activation=activation),
                **shared,
            )
    yield Case(
        "sparse",
        "SparseStaticEmbedding",
        lambda _: st.SparseEncoder(modules=[sparse.SparseStaticEmbedding(tokenizer(), torch.rand(96))], device="cpu"),
        **shared,
    )
    yield Case("sparse", "SparseAutoEncoder", auto_encoder, **shared)
    yield Case(
        "sparse",
        "splade_tiny (real)",
        lambda _: st.SparseEncoder(str(examples.folder("splade_tiny")), device="cpu"),
        asked=REAL,
        options={"task": "sparse_embed"},
        bare=True,
        **shared,
    )


def splade(where: Path, pooling: Literal["max", "sum"], activation: Literal["relu", "log1p_relu"]) -> Any:
    first = sparse.Transformer(folder(where, head=MLM), transformer_task="fill-mask")
    return st.SparseEncoder(modules=[first, sparse.SpladePooling(pooling, activation)], device="cpu")


def auto_encoder(where: Path) -> Any:
    last = sparse.SparseAutoEncoder(32, 64, k=8, normalize=True)
    torch.manual_seed(6)
    for parameter in last.parameters():
        nn.init.normal_(parameter, std=0.3)
    modules = [dense.Transformer(folder(where)), dense.Pooling(32, "mean"), last]
    return st.SparseEncoder(modules=modules, device="cpu")


def many() -> Iterator[Case]:
    """Vectors of every token that scores, one after another; a query's MaxSim with each document."""
    skips = {"skiplist_words": ["w5", "w21"]}
    made: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "skip list": (skips, {}),
        "skip list, both sides": (skips | {"skiplist_tasks": ["query", "document"]}, {}),
        "expansion, attended": ({}, {"query_expansion": {"strategy": "fixed", "length": 16, "attend": True}}),
        "expansion, not attended": ({}, {"query_expansion": {"strategy": "fixed", "length": 16}}),
        "expansion, at least": ({}, {"query_expansion": {"strategy": "min", "length": 8}}),
        "lengths of the sides": ({}, {"query_length": 6, "document_length": 9}),
    }
    for what, (mask, said) in made.items():
        for side in ("query", "document"):
            yield Case(
                "many vectors",
                f"{what}, {side}",
                partial(multi_vector, mask=mask, said=said),
                partial(lambda model, texts, side: [one.sum(0) for one in model.multi_embed(texts, side)], side=side),
                partial(lambda model, text, side: getattr(model, f"encode_{side}")(text).sum(0), side=side),
            )
    yield Case("many vectors", "MaxSim", partial(multi_vector, mask=skips, said={}), maxsims, their_maxsims)


def one_pass() -> Iterator[Case]:
    """BGE-M3's three answers of one pass, beside FlagEmbedding's of each text alone."""
    asked = ("embed", "sparse_embed", "multi_embed")
    shared: dict[str, Callable[[Any], Any]] = {
        "dense": lambda answer: answer.dense,
        "lexical weights": lambda answer: np.array([answer.lexical.get(index, 0.0) for index in range(96)]),
        "vectors": lambda answer: answer.vectors.sum(0),
    }
    ours: dict[str, Callable[[dict[str, Any]], Any]] = {
        "dense": lambda found: found["embed"],
        "lexical weights": lambda found: np.asarray(found["sparse_embed"]),
        "vectors": lambda found: [one.sum(0) for one in found["multi_embed"]],
    }
    for modules_json in (True, False):
        for what, of in shared.items():
            yield Case(
                "one pass",
                f"BGE-M3's {what}, {'with' if modules_json else 'without'} modules.json",
                partial(lambda where, kept: FlagEmbedding(write_folder(where / "model", kept)), kept=modules_json),
                partial(lambda model, texts, taken: taken(model.run(texts, asked)), taken=ours[what]),
                partial(lambda model, text, taken: taken(model.encode(text)), taken=of),
            )


def maxsims(model: Any, texts: list[str]) -> Any:
    return model.similarity(model.multi_embed(texts, "query"), model.multi_embed(TEXTS))


def their_maxsims(model: Any, text: str) -> Any:
    documents = [model.encode_document(one) for one in TEXTS]
    return np.asarray(model.similarity([model.encode_query(text)], documents))[0]


def multi_vector(where: Path, mask: dict[str, Any], said: dict[str, Any]) -> Any:
    torch.manual_seed(7)
    tokens: dict[str, Any] = {"module_input_name": "token_embeddings"}
    after = [dense.Dense(32, 16, activation_function=nn.Identity(), **tokens), dense.Normalize(**tokens)]
    modules = [dense.Transformer(folder(where), **said), *after, MultiVectorMask(**mask)]
    return st.MultiVectorEncoder(modules=modules, device="cpu", prompts={"query": "w80 ", "document": "w81 "})
