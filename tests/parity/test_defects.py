"""Seeded defects are caught in at least one precision and named at their node."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from torch import fx

from headrace.backends.reference import Reference
from headrace.ir import Layout, Task
from headrace.runtime.tools.parity.bundle import read_bundle
from headrace.runtime.tools.parity.check.checking import measure_bundle
from headrace.runtime.tools.parity.record.programs import insert_taps
from headrace.runtime.tools.parity.report.text import culprit_words
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


HALVES = [
    pytest.param(dtype, marks=pytest.mark.slow(reason="each defect in half precision too")) for dtype in DTYPES[1:]
]


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize("seeded", SEEDED, ids=lambda seeded: seeded.defect.__name__)
def test_caught(seeded: Seeded, dtype: str, traces: Any) -> None:
    case = named(seeded.bundle)
    result = measure_bundle(
        read_bundle(case.folder), defects.Broken(Reference(), seeded.defect), {dtype: traces(case, dtype).analysed}
    )
    (run,) = result.runs
    assert run.passed == (dtype not in seeded.caught)
    if not run.passed:
        assert run.first.node == seeded.reading
        assert run.culprit.operator == seeded.operator


def test_packed_rows(traces: Any) -> None:
    """The layout of GPUs is checked alike: its honest run passes, and a defect is named in its own graph."""
    case = named("modernbert-embed")
    bundle, programs = read_bundle(case.folder), {"float32": traces(case, "float32").analysed}
    packed = Reference(Layout.PACKED)
    (honest,) = measure_bundle(bundle, packed, programs).runs
    assert (honest.passed, honest.layout) == (True, Layout.PACKED)
    (broken,) = measure_bundle(bundle, defects.Broken(packed, defects.window_off_by_one), programs).runs
    assert broken.first.node == "attention 1"
    assert broken.culprit.operator == "headrace.attention_varlen"


def test_what_parts_only_when_compiled_together(traces: Any) -> None:
    """A fault that is gone once every node returns its values is not pinned on a node."""

    def scale_in_the_deployed(graph: fx.Graph) -> None:
        if len(list(graph.nodes)) < large:
            defects.scale_off(graph)

    case = named("bert-embed")
    program = traces(case, "float32").analysed
    large = len(list(insert_taps(program, Task.EMBED, Layout.PADDED).graph.graph.nodes)) + 1
    (run,) = measure_bundle(
        read_bundle(case.folder), defects.Broken(Reference(), scale_in_the_deployed), {"float32": program}
    ).runs
    assert run.first.node == "attention 1"
    assert run.culprit.node == ""
    assert "no node parts once each returns its values" in culprit_words(run.culprit)


def test_another_model_code(traces: Any) -> None:
    """Where the graph itself computes something else here, the target is not blamed, and the versions are told."""
    case = named("bert-embed")
    bundle, program = read_bundle(case.folder), traces(case, "float32").analysed
    other = program.with_(exported=copy.deepcopy(program.graph))
    defects.tanh_for_erf(other.graph.graph)
    old = replace(bundle.recording.environment, libraries=(("transformers", "5.0.0"),))
    bundle = replace(bundle, recording=replace(bundle.recording, environment=old))
    result = measure_bundle(bundle, Reference(), {"float32": other})
    (run,) = result.runs
    assert (run.first.node, run.culprit.in_float64) == ("attention 1", True)
    assert "attention 1 parts in float64 too on this machine" in culprit_words(run.culprit)
    assert any(note.startswith("transformers is") and note.endswith("and was 5.0.0 there") for note in result.notes)
