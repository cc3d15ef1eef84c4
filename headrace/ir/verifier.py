"""The rules that a program keeps, checked after every pass. Each belongs to a stage; a breach names pass and node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from headrace import graphs
from headrace.errors import VerifyError
from headrace.graphs.views import attention_nodes, operands
from headrace.ir import Program, Stage
from headrace.ops.attention import ATTENTION, MASK
from headrace.ops.packed import ATTENTION_VARLEN

Breach = tuple[str, str]
Rule = Callable[[Program], Iterator[Breach]]
# Both say the mask's kind and window in the same places.
ATTENDING, KIND, WINDOW = (ATTENTION, ATTENTION_VARLEN), 7, 8


def verify(program: Program, after: str) -> None:
    """Check every rule of the program's stage and those before it.

    Raises:
        VerifyError: with every breach, not the first.
    """
    stages = list(Stage)[: list(Stage).index(program.stage) + 1]
    rules = [rule for stage in stages for rule in RULES[stage]]
    breaches = [f"{rule.__name__}: {node}: {what}" for rule in rules for node, what in rule(program)]
    if breaches:
        raise VerifyError(f"After the pass {after} the program breaks {len(breaches)} rule(s): {'; '.join(breaches)}")


def dynamic_shapes(program: Program) -> Iterator[Breach]:
    """Every axis of an input that a call may choose is still symbolic."""
    placed = {node.name: node for node in program.graph.graph.nodes if node.op == "placeholder"}
    for given in program.signature.inputs:
        shape = placed[given.name].meta["val"].shape
        free = [size for size, axis in zip(shape, given.axes, strict=True) if axis.size is None]
        if not all(isinstance(size, torch.SymInt) for size in free):
            yield given.name, f"shape {tuple(shape)} is frozen"


def outputs_named(program: Program) -> Iterator[Breach]:
    """The graph returns as many values as the program names."""
    returned = len(graphs.outputs_of(program.graph))
    if returned != len(program.signature.outputs):
        yield "output", f"{returned} values, {len(program.signature.outputs)} names"


def specs_match_nodes(program: Program) -> Iterator[Breach]:
    """Each attention node has one spec, in call order, that says what the node's arguments say."""
    nodes = [node for node in program.graph.graph.nodes if node.target in ATTENDING]
    if [node.name for node in nodes] != [spec.node for spec in program.nodes.attention]:
        yield "attention", f"nodes {[n.name for n in nodes]}, specs {[s.node for s in program.nodes.attention]}"
        return
    for node, spec in zip(nodes, program.nodes.attention, strict=True):
        kind, window = node.args[KIND], node.args[WINDOW]
        if (spec.mask, tuple(spec.window)) != (kind, tuple(window)):
            yield node.name, f"the spec says {spec.mask} {spec.window}, the node {kind} {window}"
        if spec.q_heads % spec.kv_heads:
            yield node.name, f"{spec.q_heads} query heads do not divide into {spec.kv_heads}"


def masks_agree(program: Program) -> Iterator[Breach]:
    """The mask node says the same kind and window as the attention that uses it, and no mask is opaque."""
    for node in attention_nodes(program.graph):
        args = operands(node)
        mask = args["mask"]
        if mask is not None and mask.target is not MASK:
            yield node.name, f"its mask {mask.name} is no mask node"
        elif mask is not None and (mask.args[6], list(mask.args[7])) != (args["kind"], list(args["window"])):
            yield node.name, f"it says {args['kind']} {args['window']}, {mask.name} says {mask.args[6]} {mask.args[7]}"


RULES: dict[Stage, tuple[Rule, ...]] = {
    Stage.TRACED: (dynamic_shapes, outputs_named),
    Stage.TYPED: (specs_match_nodes, masks_agree),
    Stage.LOWERED: (),
}
