"""Exported models against the oracle (D1): every profile that applies, six shapes, padding on either side."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
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

# Token ids and types.
Request = tuple[list[int], list[int]]

pytestmark = pytest.mark.slow(reason="every profile of every kind of model: tests/backends/onnx has a part of them")


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
    return oracle.logits if "For" in head else oracle.pooled(lowered.program.facts.pooling.kinds[0].value)


def requests_of(shape: tuple[int, ...], program: Any, generator: Any) -> list[Request]:
    """Token ids of those lengths, each with its types: pairs, where the model tells a second text from a first."""
    longest = program.facts.limits.length or 64
    lengths = [min(length, longest) for length in shape]
    ids = [torch.randint(3, program.signature.vocabulary, (n,), generator=generator).tolist() for n in lengths]
    first = [n if (program.signature.token_types or 1) < 2 else (n + 1) // 2 for n in lengths]
    return [(own, [0] * k + [1] * (len(own) - k)) for own, k in zip(ids, first, strict=True)]


def fed(request: Request, dtype: Any) -> dict[str, Any]:
    """The eager model's inputs for one request alone."""
    ids, types = request
    return oracle.token_inputs(ids, dtype) | ({"token_type_ids": torch.tensor([types])} if any(types) else {})


def answered(session: Session, output: str, requests: list[Request], left: bool) -> list[Any]:
    """The file's answers to a padded batch, without the padding."""
    lengths = [len(ids) for ids, _ in requests]
    width = max(lengths)
    ids, types, mask = (np.zeros((len(lengths), width), np.int64) for _ in range(3))
    for row, (own, kinds) in enumerate(requests):
        place = slice(width - len(own), width) if left else slice(len(own))
        ids[row, place], types[row, place], mask[row, place] = own, kinds, 1
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "sequence_lengths": mask.sum(1)}
    got = list(session.run(feed, output))
    if got[0].ndim == 2:
        return [row[width - n :] if left else row[:n] for row, n in zip(got, lengths, strict=True)]
    return got


def batches(path: Path, profile: str, program: Any, output: str) -> Iterator[tuple[list[Request], list[Any]]]:
    """Every shape on every side that padding can stand, with the file's answers."""
    (file,) = (path / "onnx").glob("*.onnx")
    session, generator = Session(file, (HOST,)), torch.Generator().manual_seed(1)
    for shape in SHAPES:
        requests = requests_of(shape, program, generator)
        for left in (False,) if PROFILES[profile].lengths else (False, True):
            yield requests, answered(session, output, requests, left)


def held_against_the_oracle(path: Path, profile: str, eager: Any, lowered: Any, head: str) -> None:
    output = "logits" if "For" in head else "embedding"
    for requests, got in batches(path, profile, lowered.program, output):
        oracle.require_close(got, eager, requests, reader(head, lowered), fed)


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


@pytest.mark.parametrize("profile", ["std", "fast"])
@pytest.mark.parametrize(("name", "pool"), [("minilm", "mean"), ("smollm2", "last"), ("smollm2", "mean")])
def test_half(name: str, pool: str, profile: str, tmp_path: Path, record_property: Any) -> None:
    """D1 for float16, by the CPU's word: it rounds weights and rows, and what overflows there it may hide."""
    eager, lowered = model_and_lowered(name, "AutoModel", pool)
    path, read = (
        lowered.export_onnx(tmp_path / "m", profile=profile, task="embed", dtype="float16"),
        oracle.pooled(pool),
    )
    worst, allowed = 0.0, 0.0
    for requests, got in batches(path, profile, lowered.program, "embedding"):
        wanted = oracle.answers(eager, requests, read, torch.float32, fed)
        halves = oracle.answers(eager, requests, read, torch.float16, fed)
        own = max(oracle.distance(one, other) for one, other in zip(halves, wanted, strict=True))
        found = max(oracle.distance(one, other) for one, other in zip(got, wanted, strict=True))
        assert found <= 2 * own + 1e-4
        worst, allowed = max(worst, found), max(allowed, own)
    record_property("1 - cosine", worst)
    print(f"{name} {pool} {profile}: 1 - cosine {worst:.1e}, Hugging Face's own in float16 {allowed:.1e}")


@pytest.mark.parametrize("profile", ["std", "fast"])
def test_eight_bits_pass_their_gate(profile: str, tmp_path: Path) -> None:
    """On real weights; what it says of others is refused, which tests/runtime/artifact/test_export_onnx.py shows."""
    _, lowered = model_and_lowered("minilm", "AutoModel", None)
    path = lowered.export_onnx(tmp_path / "m", profile=profile, dtype="int8")
    checks = json.loads((path / "verification.json").read_text())["checks"]
    cosines = [float(found[1]) for check in checks if (found := re.search(r"cosine ([\d.]+)", check["found"]))]
    assert len(cosines) >= 5
    assert 0.97 <= min(cosines) < 0.9999
    print(f"minilm {profile} int8: least cosine {min(cosines)}")
