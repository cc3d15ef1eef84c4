"""Rewrite a padded program to a packed one: no padding is ever computed.

The sequences of a batch follow one another in a single row of T tokens, and `cu_seqlens` says where each begins.
Every attention becomes `attention_varlen`, every recurrence the operator of its name for such rows, the mask nodes die,
and pooling gathers by `cu_seqlens`. Nothing else in the graph changes: what works on tokens one by one does not see
where a sequence ends.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import Dim, ExportedProgram

from headrace import debug, feed, graphs, sample
from headrace.compat.torch import brief_traces, without_fake_cache, without_stacks
from headrace.errors import TraceError
from headrace.graphs.views import arguments, attention_nodes
from headrace.ir import OFFSETS, PER_TOKEN_OUTPUTS, Axis, BiasKind, Input, Layout, Program, RecurrentSpec, Role, Verdict
from headrace.lowering.decide.padding import same, shared_value, wide_outputs
from headrace.lowering.recover.shifts import recover_shifts
from headrace.lowering.types.relative_bias import Distance, read_biases
from headrace.ops.attention import ATTENTION, POOL
from headrace.ops.lstm import LSTM
from headrace.ops.packed import ATTENTION_VARLEN, POOL_VARLEN
from headrace.ops.stateful import RECURRENCES, VARLEN, Recurrence

ROW, TOKENS, BOUNDS = Axis("row", 1), Axis("tokens"), Axis("bounds")
LENGTHS, OTHER_LENGTHS = (3, 5, 2), (1, 9, 4, 1)
# A sequence of middling length: it chooses among the tunings of a kernel and changes no result.
TYPICAL = 128
NONE = BiasKind.NONE.value
# What shows ones and nothing else where it is given ones.
SPREADING = frozenset(
    {
        torch.ops.aten.unsqueeze.default,
        torch.ops.aten.slice.Tensor,
        torch.ops.aten.expand.default,
        torch.ops.aten._to_copy.default,
        torch.ops.aten.to.dtype,
    }
)


@dataclass(frozen=True)
class Pack:
    """The program takes `[1, T]` tokens and `cu_seqlens`, computes no padding, and answers as each sequence alone."""

    name: str = "pack"

    def __call__(self, program: Program) -> Program:
        """Swap the nodes that know of sequences, export what that leaves, and hold it against the padded program.

        Raises:
            TraceError: an attention has a bias that is a tensor of its own, a convolution looks at later tokens, state
                crosses from one sequence to the next, or an operator has no form for packed rows.
        """
        if (shared := shared_value(program)) is not None:
            raise TraceError(f"{shared.name} is one number of all the texts in a batch, and each text needs its own.")
        if (lstm := next((node for node in program.graph.graph.nodes if node.target is LSTM), None)) is not None:
            raise TraceError(f"{lstm.name} is an LSTM, which takes a row a sequence.")
        module = graphs.flat_module(program.graph)
        recovered = _swap(module, program)
        module.recompile()
        given = _packed_inputs(program)
        # torch.export gives one sequence a graph of its own: a batch has two at least, if need be one of filling.
        tokens = Dim("tokens", min=2)
        free = {TOKENS: tokens, BOUNDS: Dim("offsets", min=3)}
        shapes = {one.name: {place: free[axis] for place, axis in enumerate(one.axes) if axis in free} for one in given}
        exported = export_row(module, sample.row(program.with_(inputs=given), LENGTHS), shapes)
        nodes = [node for node in exported.graph.nodes if node.target is ATTENTION_VARLEN]
        named = zip(program.nodes.attention, nodes, strict=True)
        specs = tuple(replace(spec, node=node.name, mask_node=None) for spec, node in named)
        packed = program.with_(
            exported=exported, inputs=given, layout=Layout.PACKED, attention=specs,
            recurrent=_recurrent_specs(exported, program, recovered),
            recovered=tuple(spec.node for spec in specs if spec.recovered),
        )  # fmt: skip
        _compare(program, packed, LENGTHS)
        _compare(program, packed, OTHER_LENGTHS)
        return packed


def _packed_inputs(program: Program) -> tuple[Input, ...]:
    """The inputs without what says where padding is, in one row, and where each sequence begins in it."""
    rows = [replace(one, axes=(ROW, TOKENS)) for one in program.signature.inputs if one.role is not Role.PADDING]
    return (*rows, Input(OFFSETS, Role.OFFSETS, "int32", (BOUNDS,)))


def export_row(module: fx.GraphModule, inputs: dict[str, Tensor], shapes: dict[str, Any]) -> ExportedProgram:
    """The program of a module that takes sequences in one row.

    Raises:
        TraceError: torch.export refuses it.
    """
    with torch.no_grad(), warnings.catch_warnings(), brief_traces(), without_stacks(), without_fake_cache():
        warnings.simplefilter("ignore")  # torch.export warns of its own deprecations
        try:
            # Deferred: some guards that hold for every count of tokens are past what the export can prove. What is
            # exported was decomposed before, and needs that no second time.
            return torch.export.export(
                module, (), kwargs=inputs, dynamic_shapes=shapes, strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )  # fmt: skip
        except Exception as error:
            debug.say(debug.CODE, f"torch.export of the row's program: {error}")
            first = str(error).strip().partition("\n")[0] or repr(error)
            raise TraceError(f"The program cannot be exported with its sequences in one row: {first}") from error


def _biases(program: Program) -> list[Distance | None]:
    """What each attention's bias is of the distance.

    Raises:
        TraceError: one is more than that.
    """
    found = read_biases(program)
    for node, bias in zip(attention_nodes(program.graph), found, strict=True):
        if bias is None and arguments(node)["bias"] is not None:
            raise TraceError(
                f"{node.name} adds a bias of the shape of its scores, which a packed program does not have: it is no "
                "function of the distance between query and key."
            )
    return found


def _swap(module: fx.GraphModule, program: Program) -> list[bool]:
    """Rewrite the graph; returns of each recurrence whether it was recovered, in the order of the graph."""
    graph, left = module.graph, iter(enumerate(_biases(program)))
    announced = {node for node in graph.nodes if node.target in RECURRENCES}
    recover_shifts(graph)
    recovered: dict[fx.Node, bool] = {}
    named = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    last = list(named.values())[-1]
    with graph.inserting_after(last):
        offsets = graph.placeholder(OFFSETS)
    for node in list(graph.nodes):
        if node.target is ATTENTION:
            graphs.replace(node, _attention(module, node, offsets, *next(left)))
        elif node.target is POOL:
            pool = arguments(node)
            with graph.inserting_before(node):
                new = graph.call_function(POOL_VARLEN, (pool["hidden"], offsets, pool["kind"]))
            graphs.replace(node, new)
        elif (kind := RECURRENCES.get(node.target)) is not None:
            with graph.inserting_before(node):
                new = graph.call_function(kind.varlen, (*arguments(node).values(), offsets))
            recovered[new] = node not in announced
            graphs.replace(node, new)
    for node in list(graph.nodes):
        # An assertion has an effect, so it would keep alive what it looks at.
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)
    ids, padding = (named[str(program.signature.name(role))] for role in (Role.IDS, Role.PADDING))
    with graph.inserting_after(offsets):
        # Every token of a packed row is real. What still reads the padding (sizes, a product with it) sees ones.
        ones = graph.call_function(torch.ops.aten.ones_like.default, (ids,))
    graphs.replace(padding, ones)
    drop_ones(ones)
    graph.eliminate_dead_code()
    return [recovered[node] for node in graph.nodes if node in recovered]


def drop_ones(ones: fx.Node) -> None:
    """Give the readers of a product with ones, spread or cast as they may be, what is multiplied."""
    known, todo = {ones}, list(ones.users)
    for node in todo:
        if node.target in SPREADING and node not in known:
            known.add(node)
            todo += node.users
    for node in [user for one in known for user in one.users if user.target is torch.ops.aten.mul.Tensor]:
        others = [one for one in node.args if isinstance(one, fx.Node) and one not in known]
        values = [one.meta.get("val") for one in (node, *others)]
        if len(others) == 1 and all(isinstance(value, Tensor) for value in values) and _alike(*values):
            node.replace_all_uses_with(others[0])


def _alike(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and list(map(str, one.shape)) == list(map(str, other.shape)))


def _recurrent_specs(
    exported: ExportedProgram, program: Program, recovered: list[bool]
) -> tuple[RecurrentSpec, ...]:  # fmt: skip
    """One spec a recurrence of the row, in call order. A shift by padding had none of its own before."""
    nodes = [node for node in exported.graph.nodes if node.target in VARLEN]
    before = program.nodes.recurrent
    verdict = before[0].verdict if before else Verdict.PROVEN  # shifts alone: the comparison beside the padded form
    places = [spec.provenance for spec in before] if len(before) == len(nodes) else [""] * len(nodes)
    return tuple(
        RecurrentSpec(node.name, order, kind.name, _state(kind, node), True, verdict, place, found)
        for order, (node, place, found) in enumerate(zip(nodes, places, recovered, strict=True))
        if (kind := VARLEN[node.target])
    )


def _state(kind: Recurrence, node: fx.Node) -> tuple[int, ...]:
    values = (arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in node.args[:-1])
    return tuple(int(size) for size in kind.state_sizes(tuple(values)))


def _attention(module: fx.GraphModule, node: fx.Node, offsets: fx.Node, order: int, bias: Distance | None) -> fx.Node:
    """[1, H, T, D] operands to the operator's [T, H, D], and its answer back to [1, T, H, Dv]."""
    args, graph, values = arguments(node), module.graph, f"distance_bias_{order}"
    if bias is not None:
        module.register_buffer(values, bias.values)
    with graph.inserting_before(node):
        rows = [
            graph.call_function(
                torch.ops.aten.transpose.int, (graph.call_function(torch.ops.aten.select.int, (args[x], 0, 0)), 0, 1)
            )
            for x in "qkv"
        ]
        form = (
            args["scale"],
            args["kind"],
            args["window"],
            args["softcap"],
            bias.kind.value if bias else NONE,
            TYPICAL,
        )
        added = None if bias is None else graph.get_attr(values)
        out = graph.call_function(ATTENTION_VARLEN, (*rows, offsets, args["sinks"], added, *form))
        return graph.call_function(torch.ops.aten.unsqueeze.default, (out, 0))


@torch.no_grad()
def _compare(padded: Program, packed: Program, lengths: tuple[int, ...]) -> None:
    """Each sequence of a packed batch must answer as the padded program answers it alone."""
    texts = [sample.text(padded.signature, length, seed) for seed, length in enumerate(lengths)]
    together = wide_outputs(packed, sample.tensors(packed, feed.packed(packed, texts)))
    begin = 0
    for row, text in enumerate(texts):
        one = feed.padded([text], offset=padded.facts.positions.offset)
        alone = wide_outputs(padded, sample.tensors(padded, one))
        for output, own, whole in zip(packed.signature.outputs, alone, together, strict=True):
            per_token = output.kind in PER_TOKEN_OUTPUTS
            got = whole[:, begin : begin + len(text)] if per_token else whole[row : row + 1]
            if own.shape != got.shape or not same(own, got):
                raise TraceError(
                    "A sequence of a packed batch answers otherwise than alone: state, or a position that is counted "
                    "along the row, crosses from the sequences before it."
                )
        begin += len(text)
