"""Bundles and the programs that they are checked with, read and traced once a session."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.runtime.tools.parity.plugin import parity  # noqa: F401 - the fixture that users have
from tests.parity.models import CASES, Case


class Traces:
    """`traces(case, dtype)` is the traced model of a bundle."""

    def __init__(self) -> None:
        self._made = dict[tuple[str, str], Any]()

    def __call__(self, case: Case, dtype: str) -> Any:
        from headrace.runtime.tools.parity.bundle import MODEL
        from headrace.runtime.tools.parity.record.programs import Tracing

        if (case.name, dtype) not in self._made:
            options = {"prefill": case.options.get("prefill"), "pooling": None}
            self._made[case.name, dtype] = Tracing(case.folder / MODEL, **options)(dtype)
        return self._made[case.name, dtype]


@pytest.fixture(scope="session")
def traces() -> Traces:
    return Traces()


class Remembered:
    """A backend that compiles a program once, whichever bundle it is for."""

    def __init__(self, backend: Any) -> None:
        self._backend, self._made = backend, dict[Any, Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def compile(self, program: Any) -> Any:
        key = (program.source, program.dtype, program.signature.outputs, program.nodes.taps)
        if key not in self._made:
            self._made[key] = self._backend.compile(program)
        return self._made[key]


@pytest.fixture(scope="session")
def remembered() -> Any:
    """`remembered(target)` is a backend that lasts for the session; a target that is missing skips the test."""
    made = dict[str, Remembered]()

    def find(target: str) -> Remembered:
        from headrace.backends import backend
        from headrace.errors import TargetError

        if target not in made:
            try:
                made[target] = Remembered(backend(target))
            except TargetError as error:
                pytest.skip(str(error))
        return made[target]

    return find


def named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)
