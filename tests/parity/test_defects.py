"""Seeded defects are caught in at least one precision and named at their node."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from headrace.backends.reference import Reference
from headrace.runtime.parity.bundle import read_bundle
from headrace.runtime.parity.checking import measured
from tests.parity import defects
from tests.parity.conftest import named

DTYPES = ("float32", "float16", "bfloat16")


class Seeded(NamedTuple):
    """A defect: the bundle, the precisions that catch it, the reading that parts first, and the graph's node."""

    defect: Any
    bundle: str
    caught: tuple[str, ...]
    reading: str
    operator: str


SEEDED = [
    Seeded(defects.padding_leak, "bert-embed", DTYPES, "attention 0", "headrace.attention"),
    Seeded(defects.window_off_by_one, "modernbert-embed", DTYPES, "attention 1", "headrace.attention"),
    Seeded(defects.causal_for_bidirectional, "bert-embed", DTYPES, "attention 0", "headrace.attention"),
    Seeded(defects.scale_off, "bert-embed", ("float32", "float16"), "attention 1", "headrace.attention"),
    Seeded(defects.rope_in_half, "modernbert-embed", ("float32",), "attention 0", "aten.cos"),
    Seeded(defects.softmax_in_half, "bert-embed", ("float32", "float16"), "attention 0", "headrace.attention"),
    Seeded(defects.token_types_zeroed, "bert-embed", DTYPES, "attention 0", "aten.embedding"),
    Seeded(defects.tanh_for_erf, "bert-embed", ("float32",), "attention 1", "aten.gelu"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seeded", SEEDED, ids=lambda seeded: seeded.defect.__name__)
def test_caught(seeded: Seeded, dtype: str, traces: Any) -> None:
    case = named(seeded.bundle)
    result = measured(
        read_bundle(case.folder), defects.Broken(Reference(), seeded.defect), {dtype: traces(case, dtype)}
    )
    (run,) = result.runs
    assert run.passed == (dtype not in seeded.caught)
    if not run.passed:
        assert run.first.node == seeded.reading
        assert run.culprit.operator == seeded.operator
