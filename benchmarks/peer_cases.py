"""What `parity_peers` asks: sentence-transformers' own models, each of one module, pooling, prompt or activation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sentence_transformers as st
import torch
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer import modules as dense
from sentence_transformers.sparse_encoder import modules as sparse
from torch import nn

from headrace import examples
from tests.tiny import build
from tests.words import SPECIAL, WORDS, bert_like

TEXTS = [
    "w5 w6 w7",
    "w9",
    "w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 w30",
    "w50 w51 w50",
    " ".join(f"w{i}" for i in range(5, 35)),
]
PAIRS = [("w5 w6 w7", "w8 w9"), ("w9", "w10 w11 w12 w13"), ("w20 w21", "w22 " * 20), ("w60", "w61")]
REAL = [
    "A cat sat on the mat.",
    "Rain fell in the hills all night",
    "How do I bake bread without an oven?",
    "no",
    "x " * 90,
]
ROLES = (
    "{% for m in messages %}{% if m.role == 'system' %}w90 {{ m.content }} {% else %}"
    "{{ 'w91' if m.role == 'query' else 'w92' }} {{ m.content }} {% endif %}{% endfor %}w93 w89"
)
CAUSAL, MLM = "AutoModelForCausalLM", "AutoModelForMaskedLM"
LABELS, TAGS = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"


@dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
        area: module, pooling, prompt...
        make: from a folder to write in, sentence-transformers' model.
        ours: from our model, the side's prompt or the like and the texts, our answer.
        theirs: their answer for one text or pair.
        asked: the texts or pairs.
        options: of `headrace.compile`.
        bare: whether ours is compiled of the folder that theirs was made of, not of the one that it saved.
    """

    area: str
    what: str
    make: Callable[[Path], Any]
    ours: Callable[[Any, list[Any]], Any]
    theirs: Callable[[Any, Any], Any]
    asked: list[Any] = field(default_factory=lambda: TEXTS)
    options: dict[str, Any] = field(default_factory=dict)
    bare: bool = False


def tokenizer(template: str | None = None, **options: Any) -> Any:
    made = bert_like(model_max_length=48, **options)
    made.chat_template = template
    return made


def folder(
    where: Path, name: str = "bert", head: str = "AutoModel", template: str | None = None, **options: Any
) -> str:
    build(name, head, **options).save_pretrained(where / "model")
    tokenizer(template).save_pretrained(where / "model")
    return str(where / "model")


def drawn(module: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.1, 1.0)
    return module


def embedder(
    *after: Any,
    where: Path,
    made: dict[str, Any] | None = None,
    model: str = "bert",
    template: str | None = None,
    **options: Any,
) -> Any:
    first = dense.Transformer(folder(where, model, template=template), **(made or {}))
    return st.SentenceTransformer(modules=[first, *(step() for step in after)], device="cpu", **options)


def embed(
    area: str,
    what: str,
    *after: Any,
    ask: dict[str, Any] | None = None,
    theirs: str = "encode",
    ours: str = "embed",
    **options: Any,
) -> Case:
    """A row of vectors."""
    said = ask or {}
    return Case(
        area,
        what,
        lambda where: embedder(*after, where=where, **options),
        lambda model, texts: getattr(model, ours)(texts, **said),
        lambda model, text: getattr(model, theirs)(text, **said),
    )


def mean(width: int = 32) -> Callable[[], Any]:
    return partial(dense.Pooling, width, "mean")


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
    for tower in ("query", "document"):
        yield Case(
            "module",
            f"Router, {tower}",
            routed,
            lambda model, texts: model.embed(texts),
            partial(lambda model, text, task: model.encode(text, task=task), task=tower),
            options={"tower": tower},
        )


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


def cases() -> Iterator[Case]:
    for part in (modules, poolings, prompts, scores, sparse_rows, many, backbones, real):
        yield from part()
