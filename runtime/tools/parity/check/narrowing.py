"""Where between two readings a result first parts: every node there returns its values, against float64 here.

The comparison is this machine's own: the target's program against the same program interpreted in float64 and in its
dtype, so it needs nothing from the bundle and works in any layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import fx

from headrace import graphs
from headrace.backends.interface import Backend
from headrace.compat.torch import OpOverload, returns_views
from headrace.graphs.provenance import provenance
from headrace.ir import Layout, Program
from headrace.lowering.optimise.observe import tappable
from headrace.lowering.pipeline import prepare
from headrace.runtime.tools.parity.bundle import Bundle
from headrace.runtime.tools.parity.check.findings import Culprit, Run
from headrace.runtime.tools.parity.record.measure import columns, in_float64, interpreted, on_target, together
from headrace.runtime.tools.parity.record.programs import insert_taps
from headrace.runtime.tools.parity.rule import Array, limit, noise, rmse, stacked

BEGINNING = "the inputs"


def narrow(run: Run, analysed: Program, bundle: Bundle, backend: Backend) -> Culprit:
    """The first node that parts, of those that the first bad reading is computed from and no good one before it is."""
    task = bundle.recording.task
    bad = next(place for place, reading in enumerate(run.readings) if not reading.passed)
    between = (run.readings[bad - 1].node if bad else BEGINNING, run.readings[bad].node)
    # Columns of the tapped program and nodes of the untapped one have the same names.
    places = [tap.node for tap in insert_taps(analysed, task, backend.layout_of(analysed)).nodes.taps]
    program = prepare(analysed, task, backend.layout_of(analysed))
    names = _between(program, places[:bad], places[bad] if bad < len(places) else None)
    unfound = Culprit("", "", "", between, in_float64=_parts_in_float64(run, bad, analysed, bundle))
    if not names or unfound.in_float64:
        return unfound
    inside = insert_taps(analysed, task, backend.layout_of(analysed), names)
    best, own, got = (
        columns(together(inside, bundle.requests, run_), inside)
        for run_ in (in_float64(inside), interpreted(inside), on_target(inside, backend))
    )
    for name, exact, eager, result in zip(names, best, own, got, strict=True):
        most, error = _compared(run.dtype, *(stacked(rows) for rows in (exact, eager, result)))
        if not error <= most:
            return _culprit(program, name, between, error / most if most and np.isfinite(error) else 0.0)
    return unfound


def _parts_in_float64(run: Run, bad: int, analysed: Program, bundle: Bundle) -> bool:
    """Whether the program traced here computes another value than the recorded one before a target has a part in it."""
    task, answers = bundle.recording.task, bad == len(run.readings) - 1
    program = prepare(analysed, task) if answers else insert_taps(analysed, task, Layout.PADDED)
    rows = together(program, bundle.requests, in_float64(program))
    here = rows if answers else columns(rows, program)[bad]
    return not rmse(stacked(here), stacked(bundle.exact[run.dtype][bad])) <= run.readings[bad].limit


def _compared(dtype: str, exact: Array, eager: Array, result: Array) -> tuple[float, float]:
    """The limit and the error, where float64 has numbers: a model may write infinities of its own."""
    numbers = np.isfinite(exact)
    return limit(dtype, noise(exact[numbers], eager[numbers])), rmse(result[numbers], exact[numbers])


def _between(program: Program, good: Sequence[str], bad: str | None) -> tuple[str, ...]:
    """The nodes with a row a token that the bad one, or the answer, is computed from and none of the good ones is."""
    graph = program.graph.graph
    named = {node.name: node for node in graph.nodes}
    end = [named[bad]] if bad is not None else list(graphs.outputs_of(program.graph))
    wanted = graphs.ancestors(end) - graphs.ancestors([named[name] for name in good])
    return tappable(program, [node.name for node in graph.nodes if node in wanted and _computes(node)])


def _computes(node: fx.Node) -> bool:
    """Whether a node has values of its own: a view shows another's."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    return not returns_views(node.target)


def _culprit(program: Program, name: str, between: tuple[str, str], times: float) -> Culprit:
    node = next(node for node in program.graph.graph.nodes if node.name == name)
    return Culprit(name, str(node.target).removesuffix(".default"), provenance(node), between, times)
