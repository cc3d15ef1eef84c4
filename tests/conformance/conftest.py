"""One compiled model a (tiny model, task, target) and session; every backend present is a parameter."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from headrace.backends import TARGETS

GPUS = {"cuda": [pytest.mark.gpu, pytest.mark.nvidia], "rocm": [pytest.mark.gpu, pytest.mark.rocm]}
# Every backend that is in the table.
PARAMETERS = tuple(pytest.param(name, marks=GPUS.get(name, [])) for name in TARGETS)


@pytest.fixture(params=PARAMETERS)
def target(request: pytest.FixtureRequest) -> str:
    """Each backend in turn; one that can't run here is skipped with its own word for what is missing."""
    from headrace.backends import backend
    from headrace.errors import TargetError

    try:
        backend(request.param)
    except TargetError as error:
        pytest.skip(str(error))
    return str(request.param)


class Compiled:
    """Compiles on first use and keeps the model for the session."""

    def __init__(self, tiny: Any) -> None:
        self._tiny, self._made = tiny, dict[str, Any]()

    def __call__(
        self, name: str, head: str, target: str, *, config: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        import headrace

        key = repr((name, head, target, config, sorted(options.items())))
        if key not in self._made:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", headrace.HeadraceWarning)
                model = self._tiny(name, head, **(config or {}))
                self._made[key] = headrace.compile(model, target=target, **options)
        return self._made[key]


@pytest.fixture(scope="session")
def compiled(tiny: Any) -> Compiled:
    """`compiled(name, head, target, **options)`."""
    return Compiled(tiny)
