"""Check a bundle on a target of this machine: every node and the answer against the recorded float64 values."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.backends import backend as find_backend
from headrace.backends.interface import Backend
from headrace.errors import InputError, ParityError, TargetError
from headrace.ir import Layout, Program, Task
from headrace.lowering.pipeline import prepare
from headrace.runtime.tools.parity.bundle import MODEL, Bundle, Node, read_bundle
from headrace.runtime.tools.parity.check.findings import Reading, Result, Run
from headrace.runtime.tools.parity.check.narrowing import narrow
from headrace.runtime.tools.parity.environment import Environment, environment
from headrace.runtime.tools.parity.record import generation
from headrace.runtime.tools.parity.record.measure import columns, on_target, together
from headrace.runtime.tools.parity.record.programs import Tracing, described, insert_taps, weights_digest
from headrace.runtime.tools.parity.rule import Array, Noise, by_request, limit, rmse, stacked

# Those that a model's code comes from.
LIBRARIES = ("headrace", "torch", "transformers")


def check(
    folder: str | Path,
    *,
    target: str = "auto",
    precisions: Sequence[str] | None = None,
    model: str | Path | None = None,
    trust_remote_code: bool = False,
) -> Result:
    """Run a bundle's model on a target of this machine and compare every node and the answer.

    Args:
        precisions: which of the bundle's to run; None runs all that the target has.
        model: the model's folder or hub id, where the bundle holds a digest of its weights only.

    Raises:
        ParityError: the bundle is damaged, foreign or newer; the model or its weights are not the recorded ones.
        TargetError: the target cannot run here, or runs none of the precisions.
    """
    if not isinstance(folder, (str, Path)):
        raise ParityError(f"The bundle is {reprlib.repr(folder)}; the path of its folder is accepted.")
    return check_on_backend(read_bundle(Path(folder)), find_backend(target), precisions, model, trust_remote_code)


def check_on_backend(
    bundle: Bundle,
    backend: Backend,
    precisions: Sequence[str] | None = None,
    model: str | Path | None = None,
    trust_remote_code: bool = False,
) -> Result:
    """`check` of a bundle that was read, on a backend."""
    held = [precision.dtype for precision in bundle.recording.precisions]
    if isinstance(precisions, str) or precisions == []:
        raise InputError(f"precisions is {precisions!r}; a list of those that the bundle holds: {', '.join(held)}.")
    if unknown := [str(dtype) for dtype in precisions or () if dtype not in held]:
        raise InputError(f"The bundle was not recorded in {', '.join(unknown)}; it holds {', '.join(held)}.")
    wanted = [dtype for dtype in held if precisions is None or dtype in precisions]
    runnable = [dtype for dtype in wanted if dtype in backend.dtypes]
    if not runnable:
        raise TargetError(f"The target {backend.name} runs {', '.join(backend.dtypes)}, not {', '.join(wanted)}.")
    tracing = Tracing(
        _model(bundle, model), bundle.recording.prefill, bundle.recording.pooling, trust_remote_code
    )  # fmt: skip
    traced = {dtype: tracing(dtype) for dtype in runnable}
    for dtype, one in traced.items():
        if weights_digest(one.behaviour.weights) != bundle.recording.precision(dtype).weights:
            raise ParityError(
                f"The weights of {bundle.recording.model} in {dtype} are not the recorded ones. Give the model that "
                "the bundle was recorded from."
            )
    return measure_bundle(bundle, backend, {dtype: one.analysed for dtype, one in traced.items()})


def _model(bundle: Bundle, model: str | Path | None) -> str | Path:
    if model is not None:
        return model
    if bundle.folder is None or not bundle.recording.carries_weights:
        raise ParityError(
            f"The bundle holds a digest of {bundle.recording.model}'s weights and not the weights: say where the model "
            'is, by model="FOLDER".'
        )
    return bundle.folder / MODEL


def measure_bundle(bundle: Bundle, backend: Backend, analysed: Mapping[str, Program]) -> Result:
    """What the target makes of programs in some of the bundle's precisions."""
    recording = bundle.recording
    notes = tuple(dict.fromkeys(note for program in analysed.values() for note in _notes(bundle, program)))
    runs = tuple(_run(bundle, backend, dtype, one) for dtype, one in analysed.items())
    here = environment(backend.name)
    if any(run.culprit is not None and run.culprit.in_float64 for run in runs):
        notes += _library_notes(here, recording.environment)
    unrun = [one.dtype for one in recording.precisions if one.dtype not in analysed]
    left_out = tuple(
        (dtype, "not asked for" if dtype in backend.dtypes else f"the target {backend.name} lacks it")
        for dtype in unrun
    )
    return Result(
        bundle.digest, recording.model, recording.task, backend.name, tuple(one.length for one in bundle.requests),
        here, runs, left_out, notes,
    )  # fmt: skip


def _notes(bundle: Bundle, analysed: Program) -> list[str]:
    """What this machine's trace says otherwise than the recording machine's.

    Raises:
        ParityError: it has other nodes, so that nothing can be compared.
    """
    recorded = bundle.recording.nodes[:-1]
    if bundle.recording.task is Task.GENERATE:
        nodes = list(generation.nodes_of(generation.defined(analysed), bundle.requests)[:-1])
    else:
        nodes = described(insert_taps(analysed, bundle.recording.task, Layout.PADDED))
    if [(one.name, one.width) for one in nodes] != [(one.name, one.width) for one in recorded]:
        raise ParityError(f"The model traced here has the nodes {_listed(nodes)}; recorded were {_listed(recorded)}.")
    differ = [(one, was) for one, was in zip(nodes, recorded, strict=True) if one.says != was.says]
    return [f"{one.name} is {one.says} here, and was recorded as {was.says}" for one, was in differ]


def _library_notes(here: Environment, there: Environment) -> tuple[str, ...]:
    """The libraries that a model's code is made of, where they are other versions."""
    then = dict(there.libraries)
    differ = [(name, version) for name, version in here.libraries if name in LIBRARIES and then.get(name) != version]
    return tuple(f"{name} is {version} here, and was {then.get(name, 'missing')} there" for name, version in differ)


def _listed(nodes: Sequence[Node]) -> str:
    return ", ".join(f"{node.name} ({node.width})" for node in nodes) or "none"


def _run(bundle: Bundle, backend: Backend, dtype: str, analysed: Program) -> Run:
    recording, requests = bundle.recording, bundle.requests
    if recording.task is Task.GENERATE:
        return Run(dtype, Layout.CACHED, _readings(bundle, dtype, generation.on_target(analysed, backend, requests)))
    inside = insert_taps(analysed, recording.task, backend.layout_of(analysed))
    answer = prepare(analysed, recording.task, backend.layout_of(analysed))
    rows = columns(together(inside, requests, on_target(inside, backend)), inside)
    rows.append(together(answer, requests, on_target(answer, backend)))
    readings = _readings(bundle, dtype, rows)
    run = Run(dtype, inside.form.layout, readings)
    return run if run.passed else Run(dtype, inside.form.layout, readings, narrow(run, analysed, bundle, backend))


def _readings(bundle: Bundle, dtype: str, rows: Sequence[Sequence[Array]]) -> tuple[Reading, ...]:
    recording = bundle.recording
    held = zip(recording.nodes, rows, bundle.exact[dtype], recording.precision(dtype).noise, strict=True)
    return tuple(reading(node, dtype, results, exacts, noise) for node, results, exacts, noise in held)


def reading(node: Node, dtype: str, results: Sequence[Array], exacts: Sequence[Array], noise: Noise) -> Reading:
    """One node's rows against float64."""
    error, most = rmse(stacked(results), stacked(exacts)), limit(dtype, noise)
    finite = error if error < float("inf") else None
    return Reading(node.name, finite, most, noise.floor, by_request(results, exacts, most), node.says)
