"""A part of `make coverage` in every test run."""

from __future__ import annotations

import pytest

from tests.coverage import page
from tests.coverage.configs import text_rows
from tests.coverage.work import row_of

SERVED = (
    ("bert", "AutoModelForMaskedLM"),
    ("roberta", "AutoModelForSequenceClassification"),
    ("xlm-roberta", "AutoModelForTokenClassification"),
    ("modernbert", "AutoModel"),
    ("qwen3", "AutoModelForCausalLM"),
    ("gemma3_text", "AutoModel"),
    ("gpt2", "AutoModelForSequenceClassification"),
    ("deepseek_v3", "AutoModel"),
    ("llama4_text", "AutoModel"),
)
REFUSED = (("gemma-contradiction", "AutoModel", "contradicts"), ("llama-ignored-flag", "AutoModel", "contradicts"))


@pytest.mark.parametrize(("architecture", "head"), SERVED)
def test_a_row_is_served(architecture: str, head: str) -> None:
    record = row_of(architecture, head)
    assert page.status(record) == page.WITHIN, record
    assert record["packed"] is True


@pytest.mark.parametrize("architecture", ["ibert", "squeezebert"])
def test_an_attention_inside_another_module_is_proven(architecture: str) -> None:
    """Rows lie along the last dimension and the product is a module of its own; the answer is a pair of pairs."""
    record = row_of(architecture, "AutoModel")
    assert record["verified"]
    assert page.status(record) == page.WITHIN


@pytest.mark.parametrize(("architecture", "head", "word"), REFUSED)
def test_a_row_is_refused(architecture: str, head: str, word: str) -> None:
    record = row_of(architecture, head)
    assert page.status(record) == page.REFUSED
    assert word in record["refused"]


def test_what_transformers_cannot_run_is_not_counted() -> None:
    record = row_of("lxmert", "AutoModel")  # wants pictures too
    assert page.status(record) == page.UNBUILT
    assert "0 of 0 rows" in page.summary([record])


def test_the_denominator_is_the_installed_transformers_own() -> None:
    rows = list(text_rows())
    assert len({architecture for architecture, _ in rows}) >= 150
    assert {"bert", "t5", "mamba", "deberta-v2", "bart"} <= {architecture for architecture, _ in rows}
    assert not {"vit", "clip", "wav2vec2", "llava"} & {architecture for architecture, _ in rows}
