"""Bundles and the programs that they are checked with, read and traced once a session."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.runtime.parity.plugin import parity  # noqa: F401 - the fixture that users have
from tests.parity.models import CASES, Case


class Traces:
    """`traces(case, dtype)` is the analysed program of a bundle's model."""

    def __init__(self) -> None:
        self._made = dict[tuple[str, str], Any]()

    def __call__(self, case: Case, dtype: str) -> Any:
        from headrace.runtime.parity.bundle import MODEL
        from headrace.runtime.parity.programs import Tracing

        if (case.name, dtype) not in self._made:
            options = {"prefill": case.options.get("prefill"), "pooling": None}
            self._made[case.name, dtype] = Tracing(case.folder / MODEL, **options)(dtype).analysed
        return self._made[case.name, dtype]


@pytest.fixture(scope="session")
def traces() -> Traces:
    return Traces()


def named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)
