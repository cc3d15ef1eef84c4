"""docs/coverage.md and docs/coverage.json: what was measured last bears out what the README says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.coverage import page

DOCS = Path(__file__).parents[1] / "docs"
FIELDS = {"architecture", "head", "types", "verified", "refused", "worst_difference", "packed", "cached", "generates"}
# How torch and SymPy write sizes that an export leaves open, and what they say of them.
SYMBOL = re.compile(r"\b(?:s|u|zuf|zf)\d+\b|\b(?:Eq|Ne|Mod|Max|Min|FloorDiv|CleanDiv)\(|\bsym_\w+|L\['")


@pytest.fixture(scope="module")
def written() -> list[dict[str, Any]]:
    """The rows that were written last."""
    rows: list[dict[str, Any]] = json.loads((DOCS / "coverage.json").read_text())
    return rows


def test_the_file_has_the_fields_that_readers_ask_for(written: list[dict[str, Any]]) -> None:
    assert all(set(row) >= FIELDS for row in written)
    assert all(row["refused"] is None or len(row["refused"]) > 40 for row in written)


def test_the_written_rows_bear_out_the_promise(written: list[dict[str, Any]]) -> None:
    """At least 150 architectures, 93% of the rows served, nine tenths of what continues texts does, nothing broken."""
    by_status = [page.status(row) for row in written]
    assert len({row["architecture"] for row in written}) >= 150
    assert by_status.count(page.WITHIN) >= 0.93 * len(written)
    asked = [row for row in written if page.status(row) == page.WITHIN and row["generates"] is not None]
    assert len(asked) >= 75
    assert sum(row["generates"] is True for row in asked) >= 0.9 * len(asked)
    assert page.BROKEN not in by_status
    # Both are Lara mini's at 64 tokens, twice what D1 allows there; what amplifies the rounding is not known yet.
    assert by_status.count(page.WRONG) <= 2


def test_no_reason_names_a_symbol(written: list[dict[str, Any]]) -> None:
    reasons = {row[name] for row in written for name in ("refused", "packed", "cached", "generates")}
    assert not [reason for reason in reasons if isinstance(reason, str) and SYMBOL.search(reason)]


def test_the_page_says_what_the_file_says(written: list[dict[str, Any]]) -> None:
    served = sum(page.status(row) == page.WITHIN for row in written)
    assert f"{served} of {len(written)} rows" in (DOCS / "coverage.md").read_text()
