"""docs/pipeline.md is what its script writes, but for what differs between versions of the libraries."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """docs/make_pipeline.py as a module."""
    found = importlib.util.spec_from_file_location("make_pipeline", DOCS / "make_pipeline.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_pipeline_page_is_not_stale(script: ModuleType) -> None:
    def stable(page: str) -> str:
        return re.sub(re.escape(script.VARIES) + r"\n```.*?```", "", page, flags=re.DOTALL)

    written = script.PAGE.read_text()
    assert script.VARIES in written
    assert stable(script.document()) == stable(written), "run `make docs`"
