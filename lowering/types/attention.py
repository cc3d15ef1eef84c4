"""Type every attention from its mask and its operands (contract A1, A2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from headrace import graphs
from headrace.errors import AttentionTypeError
from headrace.graphs.provenance import provenance
from headrace.graphs.views import arguments, attention_nodes
from headrace.ir import AttentionSpec, AttentionType, BiasKind, MaskKind, Program, Stage, Window
from headrace.lowering.recover.scores import hidden_attentions
from headrace.lowering.types.recurrent import recurrent_specs
from headrace.ops.attention import ATTENTION, MASK


@dataclass(frozen=True)
class TypeAttention:
    """Every attention and recurrent node has a spec, and no explicit claim of the config contradicts a type."""

    name: str = "type"

    def __call__(self, program: Program) -> Program:
        """Read the graph; see the class."""
        nodes = attention_nodes(program.graph)
        _refuse_hidden_attention(program, nodes)
        reads = reads_of(program.graph)
        cross = crossing(program, reads)
        feeding = graphs.ancestors(arguments(node)["k"] for node in cross)
        specs = tuple(
            _spec(
                node,
                order,
                _type(node, node in cross, node in feeding),
                not reads[arguments(node)["q"]],
                program.evidence.recovered,
            )
            for order, node in enumerate(nodes)
        )
        _refuse_contradictions(program, specs)
        return program.with_(attention=specs, recurrent=recurrent_specs(program), stage=Stage.TYPED)


def borrowed_keys(exported: ExportedProgram) -> frozenset[str]:
    """The attentions whose keys are those of one before them: their own module makes none."""
    seen, borrowing = set[fx.Node](), set[str]()
    for node in attention_nodes(exported):
        keys = arguments(node)["k"]
        borrowing |= {node.name} if keys in seen else set()
        seen.add(keys)
    return frozenset(borrowing)


def reads_of(exported: ExportedProgram) -> dict[fx.Node, frozenset[str]]:
    """For each node, the user inputs whose values (not sizes) it depends on."""
    given = set(exported.graph_signature.user_inputs)
    reads = dict[fx.Node, frozenset[str]]()
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            reads[node] = frozenset({node.name} & given)
        elif node.target is torch.ops.aten.sym_size.int:
            reads[node] = frozenset()
        else:
            reads[node] = frozenset().union(*(reads[arg] for arg in node.all_input_nodes))
    return reads


def crossing(program: Program, reads: dict[fx.Node, frozenset[str]]) -> list[fx.Node]:
    """The attentions whose keys come from another sequence than their queries: an encoder's output.

    Either the queries read a sequence that the keys do not, which is how a decoder reads its target; or, where the
    model makes the target from the text, the keys have passed attentions that the queries have not, looking past what
    came in by the cross attentions before. Queries that read no input are latents.

    Raises:
        AttentionTypeError: the keys have passed more attentions than the queries, from the same rows.
    """
    cross: list[fx.Node] = []
    passed = dict[fx.Node, frozenset[fx.Node]]()
    # Inputs of one axis speak of one sequence: keys made before the first attention have read no mask of it yet.
    sequence = {given.name: given.axes[1:] for given in program.signature.inputs}
    for node in program.graph.graph.nodes:
        followed = node.all_input_nodes
        if node.target is ATTENTION:
            q, k = arguments(node)["q"], arguments(node)["k"]
            other = not {sequence[name] for name in reads[q]} <= {sequence[name] for name in reads[k]}
            if reads[q] and not other and not passed[k] <= passed[q]:
                _refuse_one_sequence(node, cross, reads)
                other = True
            if other:
                cross.append(node)
                followed = [q]
        passed[node] = frozenset().union(*(passed[arg] for arg in followed), [node] * (node.target is ATTENTION))
    return cross


def _refuse_one_sequence(node: fx.Node, cross: list[fx.Node], reads: dict[fx.Node, frozenset[str]]) -> None:
    """An encoder and a decoder share their inputs and weights, and no row that was made from them."""

    def reads_past_cross(one: fx.Node) -> list[fx.Node]:
        return [arguments(one)["q"]] if one in cross else one.all_input_nodes

    own, other = (graphs.ancestors([arguments(node)[name]], reads_past_cross) for name in "qk")
    shared = [one for one in own & other if reads[one] and _is_float(one)]
    if shared:
        raise AttentionTypeError(
            f"{node.name} ({provenance(node)}): its keys have passed attentions that its queries have not, but both "
            f"are made from the rows of {shared[0].name}, so neither one sequence nor an encoder and a decoder are "
            "seen. What can't be typed is never guessed."
        )


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def _type(node: fx.Node, cross: bool, feeds_cross: bool) -> AttentionType:
    kind = arguments(node)["kind"]
    if kind == MaskKind.OPAQUE:
        raise AttentionTypeError(
            f"{node.name} ({provenance(node)}): its mask depends on more than the distance between query and key, or "
            "was not made through transformers' mask interface, so its attention type cannot be told. Typed are causal "
            "and bidirectional masks, whole, with a sliding window or in chunks. What can't be typed is never guessed."
        )
    if cross and MaskKind(kind).causal:
        raise AttentionTypeError(
            f"{node.name} ({provenance(node)}): its keys come from an encoder's output, but its mask is causal, which "
            "relates positions of one sequence. Accepted for cross attention is a mask of padding alone."
        )
    if cross:
        return AttentionType.ENCODER_DECODER
    if MaskKind(kind).causal:
        return AttentionType.DECODER
    return AttentionType.ENCODER if feeds_cross else AttentionType.ENCODER_ONLY


def _spec(node: fx.Node, order: int, type_: AttentionType, latent: bool, recovered: tuple[str, ...]) -> AttentionSpec:
    args = arguments(node)
    q, k, v = (_shape(args[name]) for name in "qkv")
    mask = args["mask"]
    return AttentionSpec(
        node=node.name,
        call_order=order,
        type=type_,
        q_heads=q[1],
        kv_heads=k[1],
        qk_head_dim=q[3],
        v_head_dim=v[3],
        scale=args["scale"],
        mask=MaskKind(args["kind"]),
        window=Window(*args["window"]),
        softcap=args["softcap"],
        sinks=args["sinks"] is not None,
        bias=BiasKind.NONE if args["bias"] is None else BiasKind.TENSOR,
        mask_node=mask.name if mask is not None and mask.target is MASK else None,
        latent=latent,
        recovered=node.name in recovered,
        provenance=provenance(node),
    )


def _shape(node: fx.Node) -> tuple[int, ...]:
    value: Tensor = node.meta["val"]
    return tuple(value.shape)


def _refuse_hidden_attention(program: Program, nodes: list[fx.Node]) -> None:
    """A softmax between two products is an attention that no node shows; so is a count that differs."""
    if hidden := hidden_attentions(program.graph.graph, program.signature.rows is not None):
        raise AttentionTypeError(
            f"{len(hidden)} attention(s) are not attention nodes, the first at {hidden[0].name} "
            f"({provenance(hidden[0])}), so their type cannot be told. Nothing is guessed."
        )
    calls, made = len(nodes) - len(program.evidence.recovered), program.evidence.attention_calls
    if calls != made:
        raise AttentionTypeError(
            f"The eager model made {made} attention calls, but the graph has {calls} attention nodes: the trace took "
            "another path than the model does."
        )


def _refuse_contradictions(program: Program, specs: tuple[AttentionSpec, ...]) -> None:
    own = [spec for spec in specs if spec.type is not AttentionType.ENCODER_DECODER]
    against = [
        f"{claim.flag}={claim.value} says {claim.says}, the mask of {spec.node} ({spec.provenance}) is {spec.mask}"
        for claim in program.evidence.claims
        if own and not any(spec.mask.causal is claim.says.causal for spec in own)
        for spec in own[:1]
    ]
    if against:
        raise AttentionTypeError(
            f"The config contradicts the model: {'; '.join(against)}. This version of transformers ignores the flag "
            "for this model, or honours it only in part. Remove the flag, or use a version or a model that honours it."
        )
