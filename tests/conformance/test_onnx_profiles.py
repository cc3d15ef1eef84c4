"""Exported models against the oracle (D1): every profile that applies, six shapes, padding on either side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")

import headrace
from headrace.backends.onnx.profiles import PROFILES
from headrace.backends.onnx.session import HOST, Session
from tests.conformance import oracle
from tests.conformance.test_real_weights import folder
from tests.tiny import build

TINY = [
    ("modernbert", "AutoModel"), ("xlm-roberta", "AutoModel"), ("distilbert", "AutoModel"), ("albert", "AutoModel"),
    ("qwen3", "AutoModel"), ("gemma3", "AutoModel"), ("gemma3-bidirectional", "AutoModel"), ("mistral", "AutoModel"),
    ("deberta-v2", "AutoModel"), ("mpnet", "AutoModel"), ("t5", "T5EncoderModel"),
    ("bert", "AutoModelForSequenceClassification"),
]  # fmt: skip
REAL = [
    ("minilm", "AutoModel", None),
    ("rampart_ner", "AutoModelForTokenClassification", None),
    ("rxnfp_cls", "AutoModelForSequenceClassification", None),
    ("splade_tiny", "AutoModelForMaskedLM", None),
    ("smollm2", "AutoModel", "last"),
    ("smollm2", "AutoModel", "mean"),
]
SHAPES = ((1,), (7,), (5, 9, 2), (1, 30), (33, 20, 33, 6), (48, 3))

pytestmark = pytest.mark.slow


def model_and_lowered(name: str, head: str, pool: str | None) -> tuple[Any, Any]:
    import transformers

    options = {"target": "reference"} | ({"pooling": pool} if pool else {})
    if any(name == real for real, _, _ in REAL):
        where = folder(name)
        eager = getattr(transformers, head).from_pretrained(where, attn_implementation="eager", dtype=torch.float32)
        return eager.eval(), headrace.lower(where, **options)
    model = build(name, head)
    return model, headrace.lower(model, **options)


def reader(head: str, lowered: Any) -> Any:
    return oracle.logits if "For" in head else oracle.pooled(lowered.program.pooling.kinds[0].value)


def held_against_the_oracle(path: Path, profile: str, eager: Any, lowered: Any, head: str) -> None:
    (file,) = (path / "onnx").glob("*.onnx")
    session = Session(file, (HOST,))
    output = "logits" if "For" in head else "embedding"
    generator = torch.Generator().manual_seed(1)
    longest = lowered.program.limits.length or 64
    for shape in SHAPES:
        lengths = [min(length, longest) for length in shape]
        requests = [torch.randint(3, lowered.program.vocabulary, (n,), generator=generator).tolist() for n in lengths]
        for left in (False,) if PROFILES[profile].lengths else (False, True):
            width = max(lengths)
            ids, mask = np.zeros((len(lengths), width), np.int64), np.zeros((len(lengths), width), np.int64)
            for row, own in enumerate(requests):
                place = slice(width - len(own), width) if left else slice(len(own))
                ids[row, place], mask[row, place] = own, 1
            feed = {
                "input_ids": ids,
                "attention_mask": mask,
                "token_type_ids": ids * 0,
                "sequence_lengths": mask.sum(1),
            }
            got = list(session.run(feed, output))
            if got[0].ndim == 2:
                got = [row[width - n :] if left else row[:n] for row, n in zip(got, lengths, strict=True)]
            oracle.require_close(got, eager, requests, reader(head, lowered))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("name", "head"), TINY, ids=[f"{name}-{head}" for name, head in TINY])
def test_tiny(name: str, head: str, profile: str, tmp_path: Path) -> None:
    eager, lowered = model_and_lowered(name, head, None)
    held_against_the_oracle(lowered.export_onnx(tmp_path / "m", profile=profile), profile, eager, lowered, head)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("name", "head", "pool"), REAL, ids=[f"{name}-{pool or head}" for name, head, pool in REAL])
def test_real(name: str, head: str, pool: str | None, profile: str, tmp_path: Path) -> None:
    eager, lowered = model_and_lowered(name, head, pool)
    task = "embed" if pool else None
    path = lowered.export_onnx(tmp_path / "m", profile=profile, task=task)
    held_against_the_oracle(path, profile, eager, lowered, head)
