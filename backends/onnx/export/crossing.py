"""An encoder and its decoder as two files: what the decoder crosses to is made of the encoder's rows in its first step.

The encoder's file returns its rows, which deployment tools hand to the decoder, and what our own steps keep of them in
caches. The decoder's has one graph for the first step and those after it: what it crosses to is computed, or is what an
earlier step returned, as its input `use_cache_branch` says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from headrace.backends.onnx import names
from headrace.backends.onnx.export.inputs import Tape, give, put_first
from headrace.errors import TargetError
from headrace.ir import OutputKind, Program, Role

ROWS = names.OUTPUTS[OutputKind.HIDDEN]
# Lengths that differ from the text's where a step is given nothing for one of the two.
ROWS_LENGTH, KEPT_LENGTH = "encoder_rows_length", "encoder_past_length"
# The last place of an axis, however long.
END = np.iinfo(np.int64).max


def return_rows(encoder: ir.Model) -> None:
    """Have an encoder's file return its rows before what a decoder crosses to, which is made of them alone.

    Raises:
        TargetError: that is made of more than one value.
    """
    (cross,) = encoder.graph.outputs
    rows = _narrowest(encoder, cross)
    rows.name, rows.type = ROWS, ir.TensorType(ir.DataType.FLOAT)
    rows.shape = ir.Shape([names.BATCH, names.ENCODED, None])
    encoder.graph.outputs.insert(0, rows)


def _narrowest(encoder: ir.Model, cross: ir.Value) -> ir.Value:
    """The last value on every way from the inputs to what a decoder crosses to, sizes aside."""
    made = _made_of(cross)
    for node in reversed([node for node in encoder.graph if node.outputs[0] in made and node.outputs[0] is not cross]):
        if not any(value.is_graph_input() for value in _made_of(cross, node.outputs[0])):
            return node.outputs[0]
    raise TargetError(
        "What the decoder crosses to is made of several values of its encoder, and an ONNX folder has a place for one, "
        'the encoder\'s rows. Compile it with target="onnx" in place of exporting it.'
    )


def _made_of(end: ir.Value, begin: ir.Value | None = None) -> set[ir.Value]:
    """All values that one is computed from, as far back as another; not those of which a size alone is read."""
    seen, todo = set[ir.Value](), [end]
    while todo:
        value = todo.pop()
        if value is begin or value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is not None and node.op_type != "Shape":
            todo += [given for given in node.inputs if given is not None]
    return seen


def cross_once(decoder: ir.Model, encoder: ir.Model, program: Program) -> None:
    """Have a decoder's file make what it crosses to of the encoder's rows, where no earlier step has.

    Args:
        encoder: of `return_rows`; its weights from there on are the decoder's too.
        program: the cached program of the decoder.
    """
    given = {value.name: value for value in decoder.graph.inputs}
    pasts = [given[one.before] for name, one in names.pasts(program).items() if not one.after]
    sizes = ir.Shape([names.BATCH, ROWS_LENGTH, None])
    rows = ir.Value(name=names.ENCODED_ROWS, shape=sizes, type=ir.TensorType(ir.DataType.FLOAT))
    cached = ir.Value(name=names.CACHED, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.BOOL))
    made = _computed(decoder, encoder, rows, pasts)
    kept = ir.Graph([], [], nodes=[], name="kept")
    for past in pasts:
        node = ir.node("Identity", [past])
        node.outputs[0].name, node.outputs[0].type = f"{past.name}_kept", past.type
        kept.append(node)
        kept.outputs.append(node.outputs[0])
    attributes = {"then_branch": kept, "else_branch": made}
    chosen = ir.node("If", [cached], attributes, num_outputs=len(pasts), name="node_crossed")
    uses = {past: [(use.node, use.idx) for use in past.uses() if use.node.graph is decoder.graph] for past in pasts}
    for past, value in zip(pasts, chosen.outputs, strict=True):
        for node, place in uses[past]:
            node.replace_input_with(place, value)
        value.name = str(past.name).replace("past_key_values", "present")
        assert past.shape is not None
        value.type, value.shape = past.type, past.shape
        past.shape = ir.Shape([KEPT_LENGTH if axis == 2 else size for axis, size in enumerate(past.shape)])
        decoder.graph.outputs.append(value)
    decoder.graph.insert_before(next(iter(decoder.graph)), [chosen])
    decoder.graph.inputs.extend([rows, cached])
    _fill_masks(decoder, program, padded=any(value.name == names.PADDING for value in encoder.graph.inputs))


def _fill_masks(decoder: ir.Model, program: Program, padded: bool) -> None:
    """Masks that may be left out, all tokens being real then, and positions by them: a caller of a decoder gives none.

    Args:
        padded: whether the encoder's texts may be, so that their own mask may not be left out.
    """
    given, tape = {str(value.name): value for value in decoder.graph.inputs}, Tape("filled")
    known = names.pasts(program)
    own = next(given[one.before] for one in known.values() if one.after)
    batch = tape.op("Shape", [given[names.IDS]], {"start": 0, "end": 1})
    length = tape.op("Shape", [given[names.IDS]], {"start": 1, "end": 2})
    past = tape.op("Shape", [own], {"start": 2, "end": 3})
    mask = _filled(decoder, given[names.DECODED_PADDING], tape, batch, tape.op("Add", [past, length]))
    if program.signature.has(Role.POSITIONS):
        counted = tape.op("Sub", [tape.op("CumSum", [mask, tape.constant(1)]), tape.constant(1)])
        bounds = [tape.op("Neg", [length]), tape.constant([END]), tape.constant([1])]
        places = tape.op("Slice", [tape.op("Max", [counted, tape.constant(0)]), *bounds])
        give(given[names.POSITIONS], places)
        decoder.graph.inputs.remove(given[names.POSITIONS])
    if not padded:
        rows = tape.op("Shape", [given[names.ENCODED_ROWS]], {"start": 1, "end": 2})
        kept = next(given[one.before] for one in known.values() if not one.after)
        rows = tape.op("Max", [rows, tape.op("Shape", [kept], {"start": 2, "end": 3})])
        _filled(decoder, given[names.ENCODED_PADDING], tape, batch, rows)
    put_first(decoder, tape)


def _filled(decoder: ir.Model, mask: ir.Value, tape: Tape, *sizes: ir.Value) -> ir.Value:
    """A mask that need not be given, at its whole size."""
    readers = [(use.node, use.idx) for use in mask.uses()]
    whole = tape.op("Expand", [mask, tape.op("Concat", list(sizes), {"axis": 0})])
    for node, place in readers:
        node.replace_input_with(place, whole)
    mask.const_value = ir.tensor(np.ones((1, 1), np.int64), name=str(mask.name))
    mask.shape = ir.Shape([None, None])
    decoder.graph.register_initializer(mask)
    return whole


def _computed(decoder: ir.Model, encoder: ir.Model, rows: ir.Value, pasts: Sequence[ir.Value]) -> ir.Graph:
    """What is crossed to of the encoder's rows: its own nodes from there on, and a past's shape for each part."""
    begin, cross = encoder.graph.outputs
    known: dict[ir.Value, ir.Value] = {begin: rows}
    made = ir.Graph([], [], nodes=[], name="computed")
    needed = _made_of(cross, begin)
    for node in encoder.graph:
        if not needed.isdisjoint(node.outputs):
            made.append(_copied(decoder, node, known, rows))
    tape, place = Tape("crossed"), 0
    for past in pasts:
        assert past.shape is not None
        heads, width = (int(past.shape[axis]) for axis in (1, 3))  # type: ignore[arg-type]
        ends = [tape.constant([bound]) for bound in (place, place + heads * width, 2)]
        part = tape.op("Slice", [known[cross], *ends])
        shaped = tape.op("Reshape", [part, tape.constant([0, 0, heads, width])])
        value = tape.op("Transpose", [shaped], {"perm": [0, 2, 1, 3]})
        value.type, place = past.type, place + heads * width
        made.outputs.append(value)
    made.extend(tape.nodes)
    return made


def _copied(decoder: ir.Model, node: ir.Node, known: dict[ir.Value, ir.Value], rows: ir.Value) -> ir.Node:
    """A node of the encoder that reads the decoder's values: weights come over, and sizes are those of the rows."""
    inputs = []
    for value in node.inputs:
        if value is not None and value not in known:
            known[value] = _brought(decoder, value) if value.is_initializer() else rows
        inputs.append(None if value is None else known[value])
    copy = ir.Node(
        node.domain, node.op_type, inputs, list(node.attributes.values()), num_outputs=len(node.outputs),
        name=f"{node.name}_crossed",
    )  # fmt: skip
    for mine, own in zip(copy.outputs, node.outputs, strict=True):
        mine.name = f"{own.name}_crossed"
        known[own] = mine
    return copy


def _brought(decoder: ir.Model, value: ir.Value) -> ir.Value:
    made = ir.Value(
        name=f"{value.name}_crossed", const_value=value.const_value, shape=value.shape, type=value.type
    )  # fmt: skip
    decoder.graph.register_initializer(made)
    return made
