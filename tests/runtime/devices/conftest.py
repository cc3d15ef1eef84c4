"""The model that several devices share."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from tests.tiny import build
from tests.words import bert_like


@pytest.fixture(scope="session")
def one() -> Any:
    """Analysed, for whoever compiles it."""
    return headrace.lower(build("bert"), target="reference", tokenizer=bert_like(), pooling="mean")
