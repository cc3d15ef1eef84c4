"""Finished answers at the end of a graph: what callers without Headrace would otherwise compute themselves."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir import tape

from headrace.backends.onnx import names
from headrace.ir import Activation, OutputKind, Program

LEAST = 1e-12


def finish(model: ir.Model, program: Program) -> None:
    """Add `sentence_embedding` beside an embedding, `probabilities` beside labelled logits.

    The vector is at unit length where the model's folder normalises; the scores follow the labels' activation.
    """
    for value, output in list(zip(model.graph.outputs, program.signature.outputs, strict=True)):
        made = tape.Tape()
        if output.kind is OutputKind.EMBEDDING:
            normalize = program.facts.pooling is not None and program.facts.pooling.normalize
            found = _unit(made, value) if normalize else made.op("Identity", [value])
            _add(model, made, found, value, names.FINISHED_VECTOR)
        elif program.facts.labels is not None and output.kind in (OutputKind.SEQUENCE_LOGITS, OutputKind.TOKEN_LOGITS):
            _add(model, made, _scores(made, value, program.facts.labels.activation), value, names.FINISHED_SCORES)


def _unit(made: tape.Tape, vectors: ir.Value) -> ir.Value:
    """`headrace.runtime.tasks.answers.vectors.normalise`: a zero vector stays zero."""
    axes = made.op("Constant", [], {"value": ir.tensor(np.array([-1], np.int64))})
    least = made.op("Constant", [], {"value": ir.tensor(np.array(LEAST, np.float32))})
    length = made.op("ReduceL2", [vectors, axes], {"keepdims": 1})
    return made.op("Div", [vectors, made.op("Max", [length, least])])


def _scores(made: tape.Tape, logits: ir.Value, activation: Activation) -> ir.Value:
    if activation is Activation.SOFTMAX:
        return made.op("Softmax", [logits], {"axis": -1})
    return made.op("Sigmoid" if activation is Activation.SIGMOID else "Identity", [logits])


def _add(model: ir.Model, made: tape.Tape, found: ir.Value, like: ir.Value, name: str) -> None:
    for place, node in enumerate(made.nodes):
        node.name = f"node_{name}_{place}"
        node.outputs[0].name = f"{name}_{place}"
    found.name, found.shape, found.type = name, like.shape, like.type
    model.graph.extend(made.nodes)
    model.graph.outputs.append(found)
