"""Sentence-transformers' pipelines of tiny models, made, saved and changed: what the tests of loading them share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import LoadError
from headrace.frontend.load.checkpoint import load
from headrace.runtime.text.texts import Texts
from tests.trained import limited

F32 = torch.float32
NAMES = ["input_ids", "token_type_ids", "attention_mask"]
SEQUENCE = "AutoModelForSequenceClassification"
TEXTS = ["w5 w6 w7", "w9", "w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 w30", ""]
PAIRS = [("w5 w6 w7", "w8 w9"), ("w9", "w10 w11 w12 w13"), ("w20 w21", "w22 " * 20)]
LONG = " ".join(f"w{5 + i % 90}" for i in range(200))
FLAT = (
    "{% for m in messages %}{% if m.role == 'system' %}w90 {{ m.content }} {% else %}"
    "{{ 'w91' if m.role == 'query' else 'w92' }} {{ m.content }} {% endif %}{% endfor %}w93 w94"
    "{% if add_generation_prompt %} w95{% endif %}"
)
STRUCTURED = FLAT.replace("m.content", "m.content[0].text")


def transformer(folder: Path, **options: Any) -> Any:
    from sentence_transformers.base.modules import Transformer

    return Transformer(str(folder), **options)


def embedder(folder: Path, *after: Any, made: dict[str, Any] | None = None, **options: Any) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    modules = [transformer(folder, **(made or {})), Pooling(32, "mean"), *(after or [Normalize()])]
    return SentenceTransformer(modules=modules, device="cpu", **options)


def compiled(model: Any, **options: Any) -> Any:
    return headrace.compile(model, target="reference", **options)


def both(model: Any, folder: Path) -> list[Any]:
    """The object, and the folder that it saves."""
    model.save_pretrained(str(folder))
    return [model, folder]


def reading(source: Any) -> Texts:
    """How texts are read by what was loaded, without a trace."""
    loaded = load(source, dtype=F32)
    return Texts(loaded.tokenizer, limited(64, text=loaded.text))


def require_same_tokens(source: Any, theirs: Any, texts: list[Any], prompt: str | None = None) -> None:
    """Ids and types of each text alone, as sentence-transformers makes them."""
    text = theirs.prompts.get(theirs.default_prompt_name) if prompt is None else theirs.prompts.get(prompt, prompt)
    pairs = isinstance(texts[0], tuple)
    for one, given in zip(reading(source).encode(texts, truncate=None, pairs=pairs, prompt=prompt), texts, strict=True):
        wanted = theirs.preprocess([given], prompt=text)
        kept = wanted["attention_mask"][0].bool()
        assert one.ids.tolist() == wanted["input_ids"][0][kept].tolist()
        assert one.types is not None
        assert one.types.tolist() == wanted["token_type_ids"][0][kept].tolist()


def write(folder: Path, name: str, **keys: Any) -> None:
    """Change keys of one of a folder's files; None takes one out."""
    path = folder / name
    kept = (json.loads(path.read_text()) if path.is_file() else {}) | keys
    path.write_text(json.dumps({key: value for key, value in kept.items() if value is not None}))


def refusal(folder: Any) -> str:
    with pytest.raises(LoadError) as refused:
        load(folder, dtype=F32)
    return str(refused.value)


def require_same(model: Any, theirs: Any, texts: list[str] = TEXTS, **options: Any) -> None:
    np.testing.assert_allclose(model.embed(texts), theirs.encode(texts, **options), atol=1e-5)
