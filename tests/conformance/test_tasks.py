"""Contract D: each task against the oracle, alone and batched, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.conformance import oracle
from tests.conformance.conftest import GPUS
from tests.tiny import VOCABULARY

EMBEDDERS = [
    ("bert", "mean"),
    ("xlm-roberta", "mean"),
    ("distilbert", "mean"),
    ("albert", "mean"),
    ("modernbert", "mean"),
    ("gemma3-bidirectional", "mean"),
    ("qwen2-bidirectional", "mean"),
    ("qwen3", "last"),
    ("llama", "last"),
    ("gpt2", "last"),
    ("mamba", "last"),
    ("mamba2", "last"),
    ("qwen3-next", "last"),
    ("lfm2", "last"),
    ("rwkv", "last"),
]
CLASSIFIERS = [
    "bert",
    "xlm-roberta",
    "distilbert",
    "albert",
    "modernbert",
    "modernbert-mean",
    "llama",
    "gpt2",
    "qwen3",
    "jamba",
]
TAGGERS = [
    ("bert", None),
    ("modernbert", None),
    ("distilbert", None),
    ("qwen3", "single_pass"),
    ("qwen3-next", "single_pass"),
]
# Where nothing bounds the length.
LONGEST = 64
# One architecture of each kind is compiled; the reference runs them all, and the compiled graph is the same IR.
COMPILED = {
    "embed": {
        "xlm-roberta",
        "distilbert",
        "albert",
        "modernbert",
        "gemma3-bidirectional",
        "qwen3",
        "llama",
        "gpt2",
        "mamba",
    },
    "classify": {"xlm-roberta", "modernbert-mean", "llama"},
    "token": {"bert", "qwen3"},
}

# Their graphs are written by another exporter, so some of them run there too; tests/backends has the forms.
WRITTEN = {"embed": {"llama"}, "classify": {"modernbert-mean"}, "token": {"bert"}}


# Their compiled graphs differ from those of others above in weights and shapes alone: a classifier's has the head of
# rxnfp_cls and a tagger's that of rampart_ner, which test_real_weights.py compiles, as it does minilm, of the layers of
# XLM-RoBERTa, whose positions are given to the graph; a decoder's rows are those that its vector is made of, and
# Gemma's windows are ModernBERT's over Qwen's layers.
SLOW = {
    ("embed", "albert"),
    ("embed", "distilbert"),
    ("embed", "gemma3-bidirectional"),
    ("embed", "gpt2"),
    ("embed", "llama"),
    ("embed", "xlm-roberta"),
    ("classify", "llama"),
    ("classify", "modernbert-mean"),
    ("classify", "xlm-roberta"),
    ("token", "qwen3"),
    ("token", "bert"),
}


ALIKE = pytest.mark.slow(reason="compiled as others that are in every run, but for weights and shapes")


def _marks(kind: str, name: str, target: str) -> Any:
    return [ALIKE] if target == "cpu" and (kind, name) in SLOW else GPUS.get(target, [])


def pairs(cases: list[Any], kind: str) -> list[Any]:
    """Cases x targets, without the architectures that a target leaves to the reference."""
    named = [(case if isinstance(case, tuple) else (case,)) for case in cases]
    kept = {"reference": None, "cpu": COMPILED[kind], "onnx": WRITTEN[kind], **dict.fromkeys(GPUS)}
    return [
        pytest.param(*case, target, id=f"{case[0]}-{target}", marks=_marks(kind, case[0], target))
        for case in named
        for target, those in kept.items()
        if those is None or case[0] in those
    ]


def requests_for(model: Any) -> list[list[int]]:
    return oracle.prompts(model.program.facts.limits.length or LONGEST, VOCABULARY)


@pytest.mark.parametrize(("name", "pool", "backend"), pairs(EMBEDDERS, "embed"))
def test_embed(name: str, pool: str, backend: str, tiny: Any, compiled: Any) -> None:
    """Single equals the oracle, batched equals single (D1, D3)."""
    model = compiled(name, "AutoModel", backend)
    assert model.program.facts.pooling.kinds == (pool,)
    requests = requests_for(model)
    wanted = oracle.answers(tiny(name), requests, oracle.pooled(pool), torch.float32)
    batched = model(requests, task="embed")
    alone = [model([ids], task="embed")[0] for ids in requests]
    oracle.require_close(batched, tiny(name), requests, oracle.pooled(pool))
    oracle.require_close(alone, tiny(name), requests, oracle.pooled(pool))
    oracle.require_same_direction(batched, wanted)


@pytest.mark.parametrize(("name", "backend"), pairs(CLASSIFIERS, "classify"))
def test_classify(name: str, backend: str, tiny: Any, compiled: Any) -> None:
    """Logits of a sequence head, alone and batched."""
    model = compiled(name, "AutoModelForSequenceClassification", backend)
    requests = requests_for(model)
    eager = tiny(name, "AutoModelForSequenceClassification")
    assert model.task == "classify"
    oracle.require_close(model(requests), eager, requests, oracle.logits)
    oracle.require_close([model([ids])[0] for ids in requests], eager, requests, oracle.logits)


@pytest.mark.parametrize(("name", "prefill", "backend"), pairs(TAGGERS, "token"))
def test_token_classify(name: str, prefill: str | None, backend: str, tiny: Any, compiled: Any) -> None:
    """Logits of a token head, one row a token, alone and batched; a decoder's once its prefill is one pass."""
    model = compiled(name, "AutoModelForTokenClassification", backend, prefill=prefill)
    requests = requests_for(model)
    eager = tiny(name, "AutoModelForTokenClassification")
    oracle.require_close(model(requests), eager, requests, oracle.logits)
    oracle.require_close([model([ids])[0] for ids in requests], eager, requests, oracle.logits)


def test_call_n_equals_call_one(target: str, compiled: Any) -> None:
    """D3: a call leaves nothing behind that the next one sees."""
    model = compiled("xlm-roberta", "AutoModel", target)
    requests = requests_for(model)
    first = model(requests, task="embed")
    for _ in range(5):
        for one, other in zip(first, model(requests, task="embed"), strict=True):
            np.testing.assert_array_equal(one, other)


def test_order_is_the_callers(target: str, compiled: Any) -> None:
    """Requests run longest first, answers come back as they were asked."""
    model = compiled("xlm-roberta", "AutoModel", target)
    requests = requests_for(model)
    forward, backward = model(requests, task="embed"), model(requests[::-1], task="embed")[::-1]
    assert np.ptp(forward, 0).max() > 0.1, "the requests have answers of their own"
    for one, other in zip(forward, backward, strict=True):
        # On a GPU another number of rows may take another product kernel, which sums in another order.
        np.testing.assert_allclose(one, other, atol=1e-5 if target in GPUS else 1e-6)
