# mypy: disable-error-code="import-not-found, import-untyped"
"""Defects in machine code that the emulator must notice: a mask, a wait, a barrier, an operand."""

from __future__ import annotations

import importlib.util

import pytest

from tests.backends.rocm_emulator.isa import decode

if importlib.util.find_spec("tinygrad") is None:
    pytest.skip(decode.MISSING, allow_module_level=True)
if importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton: pip install triton", allow_module_level=True)

import torch

from headrace.ir import PoolKind
from tests.backends.rocm_emulator import cases, seeded
from tests.backends.rocm_emulator.kernels import Change
from tests.backends.rocm_emulator.machine.faults import MemoryFault, RaceFault, WaitFault


def pooled(change: Change | None) -> cases.Outcome:
    return cases.pooling(PoolKind.MEAN, torch.float16, change)


def attended(change: Change | None) -> cases.Outcome:
    return cases.attention("causal", torch.bfloat16, change)


def test_a_wait_that_is_dropped() -> None:
    with pytest.raises(WaitFault, match="which a load may still fill"):
        pooled(seeded.replaced("s_waitcnt", seeded.nothing))


def test_a_barrier_that_is_dropped() -> None:
    with pytest.raises(RaceFault, match="with no barrier between"):
        pooled(seeded.replaced("s_barrier", seeded.nothing))


def test_a_mask_that_is_lost() -> None:
    """Every lane loads and stores, also those past the end of a row."""
    with pytest.raises(MemoryFault, match="which nobody allocated"):
        pooled(seeded.replaced("s_and_saveexec_b64", seeded.every_lane))


@pytest.mark.slow(reason="the same of a kernel without matrix instructions is in every run")
@pytest.mark.parametrize("defect", ["wait", "barrier", "mask", "operands"])
def test_defects_of_attention(defect: str) -> None:
    if defect == "wait":
        with pytest.raises(WaitFault):
            attended(seeded.replaced("s_waitcnt", seeded.nothing))
    elif defect == "barrier":
        with pytest.raises(RaceFault):
            attended(seeded.replaced("s_barrier", seeded.nothing))
    elif defect == "mask":
        with pytest.raises(MemoryFault):
            attended(seeded.replaced("v_cmp_gt_i32", seeded.one_more))
    else:
        assert not attended(seeded.replaced("v_mfma_f32_32x32x8_bf16", seeded.swapped, which=0)).passes
