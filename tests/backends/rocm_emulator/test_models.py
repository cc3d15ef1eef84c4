"""Whole tiny models, every kernel of them executed as gfx942's machine code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.backends.rocm_emulator.isa import decode

if importlib.util.find_spec("tinygrad") is None:
    pytest.skip(decode.MISSING, allow_module_level=True)
if importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton: pip install triton", allow_module_level=True)

from tests.backends.rocm_emulator import models


@pytest.mark.slow(reason="the default run executes two kernels by themselves")
@pytest.mark.parametrize("model", models.MODELS, ids=str)
def test_a_model(model: models.Model, tmp_path: Path) -> None:
    """Of the first, every configuration that Inductor would time on the device; of the others one."""
    outcome = models.executed(model, tmp_path, most=99 if model is models.MODELS[0] else 1)
    print(f"{decode.version()}: {outcome}")
    assert outcome.kernels
    assert all(one.launches and one.retired for one in outcome.kernels), outcome
    assert max(one.apart for one in outcome.kernels) < 1e-6
    assert outcome.passes, outcome
