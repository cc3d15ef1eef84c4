"""A part of `make coverage` in every test run, and what its page and file say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.coverage import page
from tests.coverage.configs import text_rows
from tests.coverage.work import row_of

DOCS = Path(__file__).parents[2] / "docs"
FIELDS = {"architecture", "head", "types", "verified", "refused", "worst_difference", "packed", "cached"}
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


@pytest.fixture(scope="module")
def written() -> list[dict[str, Any]]:
    """The rows that were written last."""
    rows: list[dict[str, Any]] = json.loads((DOCS / "coverage.json").read_text())
    return rows


def test_the_file_has_the_fields_that_readers_ask_for(written: list[dict[str, Any]]) -> None:
    assert all(set(row) >= FIELDS for row in written)
    assert all(row["refused"] is None or len(row["refused"]) > 40 for row in written)


def test_the_written_rows_bear_out_the_promise(written: list[dict[str, Any]]) -> None:
    """At least 150 architectures, 85% of the rows served, nothing broken, nothing silently wrong."""
    by_status = [page.status(row | {"unbuilt": None}) for row in written]
    assert len({row["architecture"] for row in written}) >= 150
    assert by_status.count(page.WITHIN) >= 0.85 * len(written)
    assert not {page.BROKEN, page.WRONG} & set(by_status)


def test_the_page_says_what_the_file_says(written: list[dict[str, Any]]) -> None:
    served = sum(page.status(row | {"unbuilt": None}) == page.WITHIN for row in written)
    assert f"{served} of {len(written)} rows" in (DOCS / "coverage.md").read_text()
