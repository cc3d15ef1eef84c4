"""Our kernels as gfx942's machine code, executed, against float64. Each prints the emulator that it ran in."""

from __future__ import annotations

import importlib.util

import pytest

from tests.backends.rocm_emulator.isa import decode

if importlib.util.find_spec("tinygrad") is None:
    pytest.skip(decode.MISSING, allow_module_level=True)
if importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton: pip install triton", allow_module_level=True)

from tests.backends.rocm_emulator import cases

# One with matrix instructions, one without; and what they are compiled into, at length.
QUICK = ("attend_tiles causal, bfloat16", "reduce_sequences mean, float16")
EVERY = {str(case): case for case in cases.every()}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=() if name in QUICK else pytest.mark.slow(reason="two kernels are executed by default")
        )
        for name in EVERY
    ],
)
def test_a_kernel(name: str) -> None:
    outcome = EVERY[name].run()
    print(f"{decode.version()}: {outcome.journal.retired}, largest difference {outcome.largest:.1e}")
    assert all(outcome.journal.retired.values())
    assert outcome.passes, f"{outcome.error:.2e} against {outcome.bound:.2e}"


def test_the_quick_ones_are_there() -> None:
    assert set(QUICK) <= set(EVERY)
