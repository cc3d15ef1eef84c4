"""A program to an ONNX graph: exported by torch, then given the names, inputs and facts that its users look for."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes import common
from torch.export import ExportedProgram

from headrace import debug, graphs
from headrace.backends.onnx import names
from headrace.backends.onnx.export.finish import finish
from headrace.backends.onnx.export.inputs import compute_positions, take_lengths
from headrace.backends.onnx.export.layout import lie_flat
from headrace.backends.onnx.export.past import give_past, translatable
from headrace.backends.onnx.export.recurrence import FUNCTIONAL, StateTranslation
from headrace.backends.onnx.export.simplify import simplify
from headrace.backends.onnx.export.translate import Translation, as_function, table
from headrace.backends.onnx.profiles import Form, Profile
from headrace.compat.torch import GROUPED, operator_name
from headrace.compat.torch_onnx import translate
from headrace.errors import TargetError
from headrace.ir import AttentionSpec, Layout, OutputKind, Program
from headrace.ir.serialize import encode

# What torch.onnx says of an operator that it does not know, of a node at which it fails, and of how.
UNTRANSLATED = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")
EXECUTED = re.compile(r"(?:While executing|Error when translating node) %(\w+)")
RAISED = re.compile(r"<class '[\w.]+'>: ([^\n]+)")
TORCH_OPERATOR = re.compile(r"%(\S+) :")


def build(
    program: Program,
    profile: Profile,
    finished: bool = False,
    facts: Mapping[str, Any] | None = None,
    last: bool = False,
) -> ir.Model:
    """The program as an ONNX model in memory; the weights are the program's own, not copied.

    Args:
        finished: whether the graph also returns finished answers: a vector normalised as the model's folder says,
            scores by its labels' rule.
        facts: what the model's own metadata says beside the profile and the program.
        last: of a cached program, whether logits are of the last token of each sequence alone.

    Raises:
        TargetError: the program holds an operator that has no translation, or reads something else than token ids.
    """
    if program.form.layout is Layout.CACHED:
        model, specs = _with_past(program, profile, last)
    else:
        model, specs = _without_past(program, profile)
        if finished:
            finish(model, program)
    common.RemoveUnusedNodesPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    model.opset_imports[""], model.ir_version = profile.opset, profile.ir_version
    _describe(model, program, profile, specs, facts or {})
    return model


Specs = dict[ir.Node, AttentionSpec]


def _without_past(program: Program, profile: Profile) -> tuple[ir.Model, Specs]:
    translations = table(profile)
    _refuse_unknown(program.graph, translations)
    _refuse_inputs(program)
    model = _exported(program, program.graph, profile, translations)
    simplified(model)
    _name(model, program)
    specs = _attentions(model, program)
    _forget(model)
    if profile.attention is Form.LENGTHS:
        _move_lengths(model)
    compute_positions(model, program.facts.positions.offset)
    if profile.lengths:
        take_lengths(model)
    return model, specs


def _with_past(program: Program, profile: Profile, last: bool) -> tuple[ir.Model, Specs]:
    made = StateTranslation(profile)
    translations = made.table()
    exported = translatable(program, FUNCTIONAL)
    _refuse_unknown(exported, translations)
    model = _exported(program, exported, profile, translations)
    outputs = give_past(model, program, made, last)
    simplified(model)
    lie_flat(model)
    _name_outputs(model, outputs)
    specs = _attentions(model, program)
    _forget(model)
    return model, specs


def _exported(
    program: Program, exported: ExportedProgram, profile: Profile, translations: dict[Any, Any]
) -> ir.Model:  # fmt: skip
    experts = {
        node.target: as_function(Translation(profile).grouped)
        for node in exported.graph.nodes
        if operator_name(node.target) in GROUPED
    }
    with _quiet():
        try:
            return translate(graphs.sparing(exported), profile.written, translations | experts)
        except torch.onnx.errors.OnnxExporterError as error:
            debug.say(debug.CODE, f"torch.onnx: {error}")
            raise TargetError(
                f"The program cannot be written as ONNX: {_reason(program, str(error))}. Use another target. "
                "(HEADRACE_DEBUG=4 shows the whole message.)"
            ) from error


def simplified(model: ir.Model) -> None:
    """`simplify`, without what it tells on its way."""
    with _quiet():
        simplify(model)


def _reason(program: Program, message: str) -> str:
    """The operator that has no translation, else the node at which torch's exporter fails, and how."""
    if missing := UNTRANSLATED.search(message):
        held = [node.name for node in program.graph.graph.nodes if str(node.target).startswith(missing[1])]
        return f"torch has no translation of {', '.join(held[:1])} ({missing[1]})"
    executed, said = EXECUTED.search(message), RAISED.search(message)
    node = next((n for n in program.graph.graph.nodes if executed and n.name == executed[1]), None)
    where = f"at {node.name} ({node.target})" if node is not None else "at no node that it names"
    return f"torch's exporter fails {where}{f': {said[1].strip()}' if said else ''}"


def _refuse_unknown(exported: ExportedProgram, translations: dict[Any, Any]) -> None:
    ours = [node for node in exported.graph.nodes if getattr(node.target, "namespace", "") == "headrace"]
    if unknown := [f"{node.name} ({node.target})" for node in ours if node.target not in translations]:
        raise TargetError(
            f"The program holds {', '.join(unknown[:5])}{' ...' * (len(unknown) > 5)}, which the target onnx cannot "
            "write. Use another target."
        )


def _refuse_inputs(program: Program) -> None:
    if program.signature.outputs[0].kind is OutputKind.CROSS:
        return  # an encoder may read arrays: its decoder is given their rows
    if others := [name for name in program.signature.input_names if name not in names.INPUTS.values()]:
        raise TargetError(
            f"The program reads {', '.join(others)}; the target onnx serves models that read one sequence of token ids "
            f"({', '.join(names.INPUTS.values())}). Use another target."
        )


def _name(model: ir.Model, program: Program) -> None:
    """The dimensions of inputs and outputs, and the outputs, by the names that users know."""
    known = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        for size, name in zip(value.shape, (names.BATCH, names.SEQUENCE), strict=False):
            known[str(size)] = name
    for value in (*model.graph.inputs, *model.graph.outputs):
        assert value.shape is not None
        value.shape = ir.Shape([known.get(str(size), size if isinstance(size, int) else None) for size in value.shape])
    _name_outputs(model, [names.OUTPUTS[output.kind] for output in program.signature.outputs])


def _name_outputs(model: ir.Model, known: Sequence[str]) -> None:
    for value in (value for node in model.graph for value in node.outputs):
        if value.name in names.RESERVED or value.name in known:
            value.name = f"{value.name}_inside"
    for value, name in zip(model.graph.outputs, known, strict=True):
        value.name = name


def _attentions(model: ir.Model, program: Program) -> dict[ir.Node, AttentionSpec]:
    """Which node computes which attention: the operator, or the softmax of a plain one."""
    specs = {spec.node: spec for spec in program.nodes.attention}
    found: dict[ir.Node, AttentionSpec] = {}
    for node in model.graph:
        traced = TORCH_OPERATOR.match(node.metadata_props.get("pkg.torch.onnx.fx_node", ""))
        if traced and traced[1] in specs and node.op_type in ("Attention", "Softmax"):
            found[node] = specs[traced[1]]
    return found


def _forget(model: ir.Model) -> None:
    """Leave out where the code lay, and the shapes between nodes: the inputs have lost torch's names of sizes."""
    common.ClearMetadataAndDocStringPass()(model)
    forget_shapes(model)
    for value in (value for node in model.graph for value in node.outputs):
        value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.metadata_props.clear()


def forget_shapes(model: ir.Model) -> None:
    """Leave out what is known of values inside the graph: whoever reads it infers that anew."""
    for value in (value for node in model.graph for value in node.outputs):
        if not value.is_graph_output():
            value.shape = value.type = None
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.shape, value.type = ir.Shape(value.const_value.shape.numpy()), ir.TensorType(value.const_value.dtype)


def _move_lengths(model: ir.Model) -> None:
    """Attention 24 takes the lengths of the keys apart from a mask, which is where the translation has put them."""
    for node in model.graph:
        mask = node.inputs[3] if node.op_type == "Attention" and len(node.inputs) > 3 else None
        producer = mask.producer() if mask is not None else None
        if producer is not None and producer.op_type == "ReduceSum":
            node.resize_inputs(7)
            node.replace_input_with(3, None)
            node.replace_input_with(6, mask)


def _describe(
    model: ir.Model, program: Program, profile: Profile, specs: dict[ir.Node, AttentionSpec], facts: Mapping[str, Any]
) -> None:
    """Say in the file what it is: onnxruntime keeps a model's metadata, and not its nodes'."""
    model.producer_name, model.producer_version = "headrace", str(facts.get("headrace", ""))
    model.graph.name, model.graph.doc_string = "headrace", None
    here = [(node, specs[node]) for node in model.graph if node in specs]
    for node, spec in here:
        node.metadata_props["headrace.attention_type"] = spec.type.value
        node.metadata_props["headrace.call_order"] = str(spec.call_order)
    held = {
        **facts,
        "profile": profile.name,
        "attention": {str(node.name): spec.type.value for node, spec in here},
        "program": encode(program),
    }
    model.metadata_props[names.METADATA] = json.dumps(held)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of its progress, of passes that it skips and of its own deprecations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
