"""Record a bundle: float64 values of every node and of the answer, and how far each precision's eager run lies off."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from headrace import graphs
from headrace.backends import backend as find_backend
from headrace.backends.interface import Backend
from headrace.errors import InputError, ParityError
from headrace.frontend.load.checkpoint import find_folder
from headrace.ir import PER_TOKEN_OUTPUTS, TASK_RULES, Layout, Needs, Program, Role, Task
from headrace.lowering.pipeline import prepare
from headrace.runtime.api import Traced
from headrace.runtime.artifact.export_onnx import without_places
from headrace.runtime.artifact.places import new_folder, require_place
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.tools.parity.bundle import (
    MANIFEST,
    MODEL,
    RECORDED,
    Bundle,
    Node,
    Precision,
    Recording,
    write_bundle,
)
from headrace.runtime.tools.parity.check.checking import measure_bundle
from headrace.runtime.tools.parity.check.findings import Result
from headrace.runtime.tools.parity.environment import Environment, environment
from headrace.runtime.tools.parity.record.exact import exact_output
from headrace.runtime.tools.parity.record.generation import by_definition, defined, grown, nodes_of, pieces_of
from headrace.runtime.tools.parity.record.measure import alone, columns
from headrace.runtime.tools.parity.record.programs import Tracing, described, insert_taps, round_weights, weights_digest
from headrace.runtime.tools.parity.record.requests import draw
from headrace.runtime.tools.parity.rule import SLACK, Array, Noise, noise, stacked
from headrace.tasks import answering, select
from headrace.utils.home import expanded

# Weights up to this size travel in the bundle.
CARRIED_BYTES = 8 << 20
# How far the IR in float64 may lie from the eager model in float64, relative to the answer: the latter's own casts to
# float32 are its noise.
AGREEMENT = 1e-5
SIDE_FILES = ("config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")


# What a decoder whose answer is not read may be given.
TARGETS = {Role.TARGET_IDS: Role.IDS, Role.TARGET_PADDING: Role.PADDING}


def record(
    source: str | Path,
    out: str | Path,
    *,
    task: str | None = None,
    target: str = "auto",
    precisions: Sequence[str] = tuple(SLACK),
    prefill: str | None = None,
    pooling: str | tuple[str, ...] | None = None,
    seed: int = 0,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Result:
    """Write a bundle of a model, and check it on this machine's target.

    Args:
        source: a folder or a hub id. Small weights travel in the bundle, of others their digest.
        task: whose answer is compared; None takes the model's default.
        precisions: the dtypes to record.
        seed: of the requests, which are random token ids.

    Returns:
        What this machine's target made of it; the bundle holds that too.

    Raises:
        ParityError: the model cannot be compared node by node, or its traced graph does not answer as it does.
        HeadraceError: it cannot be loaded, traced, typed or run here.
    """
    _require(precisions, seed)
    require_place(out, MANIFEST)
    backend, folder = find_backend(target), find_folder(source, revision, trust_remote_code)
    with new_folder(out, MANIFEST) as (work, _):
        tracing = Tracing(folder, prefill, (pooling,) if isinstance(pooling, str) else pooling, trust_remote_code)
        traced = {dtype: tracing(dtype) for dtype in precisions}
        bundle = recorded(tracing("float64"), traced, _task(next(iter(traced.values())).analysed, task), seed)
        recording = replace(
            bundle.recording, model=_name(source), prefill=prefill, pooling=tracing.pooling,
            carries_weights=_carried(folder, work),
        )  # fmt: skip
        return _checked(replace(bundle, recording=recording), backend, traced, work)


def _checked(bundle: Bundle, backend: Backend, traced: Mapping[str, Traced], work: Path) -> Result:
    """What this machine's target makes of the bundle, which is written with that."""
    bundle = replace(bundle, recording=replace(bundle.recording, environment=environment(backend.name)))
    result = measure_bundle(bundle, backend, {dtype: one.analysed for dtype, one in traced.items()})
    result.write(work / RECORDED)
    return replace(result, bundle=write_bundle(bundle, work))


def _require(precisions: object, seed: object) -> None:
    """Refuse dtypes and seeds that nothing is recorded in."""
    if isinstance(precisions, str) or not isinstance(precisions, Sequence) or not precisions:
        raise InputError(f"precisions is {precisions!r}; a list of these is accepted: {', '.join(SLACK)}.")
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed is {seed!r}; an int of 0 and above is accepted.")
    if wrong := [dtype for dtype in precisions if dtype not in SLACK]:
        raise InputError(f"precisions has {', '.join(map(str, wrong))}; choose from {', '.join(SLACK)}.")


def _task(analysed: Program, wish: str | None) -> Task:
    """The wish, else the default; in place of a generation, which answers a token at a time, what is one pass."""
    chosen, _ = select(analysed, wish)
    if chosen is not None and not _in_one_pass(chosen) and wish is None:
        chosen, _ = select(analysed, Task.EMBED)
    if chosen is None:
        raise ParityError("No answer can be compared: the model answers no task.")
    return chosen


def _in_one_pass(task: Task) -> bool:
    return TASK_RULES[task].needs is not Needs.DECODING


def _name(source: str | Path) -> str:
    """The model's name, of a folder the last part of its path."""
    path = expanded(source, InputError)
    return path.resolve().name if path.is_dir() else str(source)


def _carried(folder: Path, work: Path) -> bool:
    """Copy a small model into the bundle, without what its config says of where it lay."""
    weights = list(folder.rglob("*.safetensors"))
    if not weights or sum(path.stat().st_size for path in weights) > CARRIED_BYTES:
        return False
    side = [folder / name for name in SIDE_FILES] + list(folder.glob("[0-9]_*/config.json"))
    for path in [*weights, *filter(Path.is_file, side)]:
        place = work / MODEL / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        if path.name == "config.json":
            held = without_places(str(path.relative_to(folder)), path.read_bytes())
            place.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    return True


def recorded(exact: Traced, traced: Mapping[str, Traced], task: Task, seed: int = 0) -> Bundle:
    """The bundle of a model that was traced in float64 and in each precision, still without a name or a machine."""
    if not _in_one_pass(task):
        return _generated(exact, traced, seed)
    program, answer = insert_taps(exact.analysed, task, Layout.PADDED), prepare(exact.analysed, task)
    requests, output = draw(answer, seed), answer.signature.outputs[0]
    nodes = (*described(program), Node(task.value, f"the answer, {output.kind}", "", output.width))
    held, precisions = dict[str, list[list[Array]]](), []
    for dtype, one in traced.items():
        held[dtype] = _exact(program, answer, requests, round_weights(one.analysed))
        if dtype == "float32":
            _require_agreement(_answers(exact, answer, task, requests), held[dtype][-1])
        eager = _eager(one, task, requests)
        noises = tuple(noise(stacked(best), stacked(own)) for best, own in zip(held[dtype], eager, strict=True))
        require_numbers(dtype, nodes, noises)
        precisions.append(Precision(dtype, weights_digest(one.behaviour.weights), noises))
    recording = Recording(
        "", task, None, None, nodes, tuple(precisions), Environment("", (), ()), output.kind in PER_TOKEN_OUTPUTS, False
    )
    return Bundle(recording, tuple(requests), held)


def _generated(exact: Traced, traced: Mapping[str, Traced], seed: int) -> Bundle:
    """The bundle of a generation: of each text the float64 model's own tokens, in every precision."""
    program = defined(exact.analysed)
    requests = tuple(grown(draw(exact.analysed, seed), partial(_logits, exact)))
    nodes = nodes_of(program, requests)
    held, precisions = dict[str, list[list[Array]]](), []
    for dtype, one in traced.items():
        held[dtype] = by_definition(program, requests, round_weights(one.analysed))
        eager = _stepped(_logits(one, requests), requests)
        if dtype == "float32":
            _require_agreement(_stepped(_logits(exact, requests), requests), held[dtype][-1])
        own = [*by_definition(defined(one.analysed), requests)[:-1], eager]
        noises = tuple(noise(stacked(best), stacked(mine)) for best, mine in zip(held[dtype], own, strict=True))
        require_numbers(dtype, nodes, noises)
        precisions.append(Precision(dtype, weights_digest(one.behaviour.weights), noises))
    recording = Recording(
        "", Task.GENERATE, None, None, nodes, tuple(precisions), Environment("", (), ()), True, False
    )  # fmt: skip
    return Bundle(recording, requests, held)


def _logits(traced: Traced, requests: Sequence[Encoded]) -> list[Array]:
    """The eager model's, of each request alone and whole."""
    return _answers(traced, traced.analysed, Task.GENERATE, requests)


def _stepped(logits: Sequence[Array], requests: Sequence[Encoded]) -> list[Array]:
    """Of the logits of whole texts those that the steps return."""
    return [rows[np.cumsum(pieces_of(one)) - 1] for rows, one in zip(logits, requests, strict=True)]


def _exact(
    program: Program, answer: Program, requests: Sequence[Encoded], weights: Mapping[str, Tensor]
) -> list[list[Array]]:  # fmt: skip
    """The float64 values of every node and of the answer, each request alone."""
    rows = alone(program, requests, lambda inputs: exact_output(program, inputs, weights))
    return [*columns(rows, program), alone(answer, requests, lambda inputs: exact_output(answer, inputs, weights))]


def _eager(traced: Traced, task: Task, requests: Sequence[Encoded]) -> list[list[Array]]:
    """The same of the eager run in a precision; the answer is the eager model's own."""
    program = insert_taps(traced.analysed, task, Layout.PADDED)
    rows = alone(program, requests, lambda inputs: graphs.run(program.graph, inputs)[0][0])
    return [*columns(rows, program), _answers(traced, prepare(traced.analysed, task), task, requests)]


def _answers(traced: Traced, answer: Program, task: Task, requests: Sequence[Encoded]) -> list[Array]:
    """What the eager model itself answers to each request alone."""
    place = traced.program.signature.outputs.index(answering(traced.program, task))

    def eager(inputs: dict[str, Tensor]) -> Tensor:
        # An encoder-decoder's decoder, where the task reads the encoder alone, may be given any target.
        values = {one.role: inputs[one.name] for one in answer.signature.inputs}
        values |= {role: values[text] for role, text in TARGETS.items()}
        return traced.behaviour.outputs(traced.program.signature.named(values))[place]

    return alone(answer, requests, eager)


def require_numbers(dtype: str, nodes: Sequence[Node], noises: Sequence[Noise]) -> None:
    """Refuse a precision in which the eager model itself overflows: nothing could be compared with it."""
    lost = [node.name for node, at in zip(nodes, noises, strict=True) if not np.isfinite([at.floor, at.rms]).all()]
    if lost:
        others = ", ".join(other for other in SLACK if other != dtype)
        raise ParityError(
            f"In {dtype} the eager model computes NaN or infinite values, at {lost[0]} first: there is nothing to "
            f"compare with. Record other precisions ({others}); nothing was recorded."
        )


def _require_agreement(eager: Sequence[Array], found: Sequence[Array]) -> None:
    """Hold the graph in float64 against the eager model in float64: the reference is the model's, not the trace's."""
    between = noise(stacked(eager), stacked(found))
    if not between.floor <= AGREEMENT * between.rms:
        raise ParityError(
            f"The traced graph in float64 answers otherwise than the eager model in float64: rmse {between.floor:.2e} "
            f"where the answers' size is {between.rms:.2e}. That is a fault of Headrace's trace of this model; nothing "
            "was recorded."
        )
