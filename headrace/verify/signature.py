"""What holds of a program's inputs, outputs and the facts about them. Each rule yields where it is broken, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import fx

from headrace.ir.signature import PER_TOKEN_OUTPUTS, Input, OutputKind, Role
from headrace.verify.view import View, dtype, shape

Breach = tuple[str, str]
LABELLED = frozenset({OutputKind.SEQUENCE_LOGITS, OutputKind.TOKEN_LOGITS})


def node_names(view: View) -> Iterator[Breach]:
    """No two nodes share a name, by which specs, taps and inputs find theirs."""
    if len(view.named) < len(view.nodes):
        counts = Counter(node.name for node in view.nodes)
        yield from ((name, f"{count} nodes have this name") for name, count in counts.items() if count > 1)


def inputs_placed(view: View) -> Iterator[Breach]:
    """The program names what a caller gives, all of it, in the graph's order and in its dtypes and ranks."""
    names = [given.name for given in view.program.signature.inputs]
    for given in view.program.signature.inputs:
        yield from _misplaced(view, given)
    for name in view.given:
        if name not in names:
            yield name, f"the graph takes it, and the program names {', '.join(names) or 'no inputs'}"
    if set(names) == set(view.given) and names != list(view.given):
        yield names[0], f"the program names {', '.join(names)}, the graph takes {', '.join(view.given)}"


def _misplaced(view: View, given: Input) -> Iterator[Breach]:
    node = view.placeholder(given.name)
    sizes = shape(node)
    if node is None or sizes is None:
        yield given.name, f"the graph has no such input; it takes {', '.join(view.given) or 'none'}"
    elif dtype(node) != given.dtype:
        yield given.name, f"the program says {given.dtype}, the graph {dtype(node)}"
    elif len(sizes) != len(given.axes):
        yield given.name, f"the program says {len(given.axes)} axes, the graph {len(sizes)}"
    else:
        for size, axis in zip(sizes, given.axes, strict=True):
            if axis.size is not None and (isinstance(size, torch.SymInt) or size != axis.size):
                yield given.name, f"the program says {axis.size} for {axis.name}, the graph {size}"


def input_roles(view: View) -> Iterator[Breach]:
    """No two inputs have one role, by which steps are fed; arrays and caches alone hold numbers that are not whole."""
    counts = Counter(given.role for given in view.program.signature.inputs)
    for given in view.program.signature.inputs:
        if given.role is Role.CACHE:  # fed by name
            continue
        if counts[given.role] > 1:
            yield given.name, f"{counts[given.role]} inputs hold {given.role}"
        if given.is_array == given.dtype.startswith("int"):
            yield given.name, f"it holds {given.role} in {given.dtype}"


def dynamic_shapes(view: View) -> Iterator[Breach]:
    """Every axis of an input that a call may choose is still symbolic."""
    for given in view.program.signature.inputs:
        sizes = shape(view.placeholder(given.name)) or ()
        free = [size for size, axis in zip(sizes, given.axes, strict=False) if axis.size is None]
        if not all(isinstance(size, torch.SymInt) for size in free):
            yield given.name, f"shape {sizes} is frozen"


def outputs_named(view: View) -> Iterator[Breach]:
    """The graph returns as many values as the program names, and a node makes each."""
    outputs = view.program.signature.outputs
    if len(view.returned) != len(outputs):
        yield "output", f"{len(view.returned)} values, {len(outputs)} names"
    for output, node in zip(outputs, view.returned, strict=False):
        if not isinstance(node, fx.Node) or shape(node) is None:
            yield output.name, f"no node makes it: the graph returns {node} in its place"


def output_widths(view: View) -> Iterator[Breach]:
    """An output is as wide as the program says, and has a dimension for tokens where its kind has rows a token."""
    for output, node in zip(view.program.signature.outputs, view.returned, strict=False):
        sizes = shape(node)
        if sizes is None:
            continue
        if not sizes or isinstance(sizes[-1], torch.SymInt) or sizes[-1] != output.width:
            yield str(node), f"{output.name} is {output.width} wide, its node's shape is {sizes}"
        if output.kind in PER_TOKEN_OUTPUTS and len(sizes) != 3:
            yield str(node), f"{output.name} has rows a token, its node's shape is {sizes}"


def pooling_output(view: View) -> Iterator[Breach]:
    """Where rows are pooled, an output holds the vector."""
    pooling = view.program.facts.pooling
    if pooling is not None and view.program.signature.output(OutputKind.EMBEDDING) is None:
        yield "pooling", f"{' + '.join(pooling.kinds) or 'own'} without an output that holds the vector"


def labels_width(view: View) -> Iterator[Breach]:
    """A head's output has a column a label."""
    labels = view.program.facts.labels
    for output in view.program.signature.outputs:
        if labels is not None and output.kind in LABELLED and len(labels.names) != output.width:
            yield output.name, f"{len(labels.names)} labels for {output.width} columns"


def taps_side_by_side(view: View) -> Iterator[Breach]:
    """Where the program returns what nodes computed, it says of which, and how many columns each has."""
    output, taps = view.program.signature.output(OutputKind.TAPS), view.program.nodes.taps
    if (output is not None) != bool(taps):
        yield "taps", f"{len(taps)} nodes are tapped, and the output is {output.name if output else 'another'}"
    elif output is not None and output.width != sum(tap.width for tap in taps):
        yield output.name, f"{output.width} columns for nodes of {', '.join(str(tap.width) for tap in taps)}"
    for tap in taps:
        if tap.node not in view.named:
            yield tap.node, "it is tapped, and no node has this name"
