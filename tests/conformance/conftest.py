"""Every backend present is a parameter."""

from __future__ import annotations

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
