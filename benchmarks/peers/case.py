"""A row of `parity_peers`, and the tiny models that rows are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import sentence_transformers as st
import torch
from sentence_transformers.sentence_transformer import modules as dense
from torch import nn

from tests.tiny import build
from tests.words import bert_like

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
