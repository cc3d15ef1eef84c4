"""The encoder's part of generation: what every cross attention of the decoder reads, once a text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from headrace import graphs
from headrace.graphs.surgery import call
from headrace.graphs.views import arguments
from headrace.ir import TARGET, AttentionType, Output, OutputKind, Program, Stage
from headrace.ops.attention import ATTENTION

A = torch.ops.aten


def crossing_nodes(program: Program) -> list[fx.Node]:
    """The attentions whose keys come from an encoder, in call order."""
    cross = {spec.node for spec in program.nodes.attention if spec.type is AttentionType.ENCODER_DECODER}
    return [node for node in program.graph.graph.nodes if node.target is ATTENTION and node.name in cross]


@dataclass(frozen=True)
class SplitEncoder:
    """The program returns a row a token of the text: keys and values of each cross attention, side by side.

    In call order, keys before values, each heads times width: what the caches of the group `cross` hold, in their
    order. The decoder is gone.
    """

    name: str = "encoder"

    def __call__(self, program: Program) -> Program:
        """Cut the graph at what the cross attentions are given."""
        cross = [node.name for node in crossing_nodes(program)]

        def rows(graph: fx.Graph) -> fx.Node:
            nodes = {node.name: node for node in graph.nodes}
            read = [arguments(nodes[name])[x] for name in cross for x in "kv"]
            flat = [call(graph, A.flatten.using_ints, (call(graph, A.transpose.int, (x, 1, 2)), 2)) for x in read]
            return call(graph, A.cat.default, (flat, 2))

        exported = graphs.replace_output(program.graph, rows)
        decoded = frozenset(given.name for given in program.signature.inputs if TARGET in given.axes)
        exported = graphs.keep_outputs(exported, (0,), decoded)
        width = int(graphs.outputs_of(exported)[0].meta["val"].shape[2])
        inputs = tuple(given for given in program.signature.inputs if given.name in graphs.inputs_of(exported))
        outputs = (Output("cross", OutputKind.CROSS, width),)
        return program.of_graph(exported, inputs=inputs, outputs=outputs, stage=Stage.LOWERED)
