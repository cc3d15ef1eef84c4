"""Make attention nodes of the attention that a model's own code computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx

from headrace import graphs, sample
from headrace.errors import AttentionTypeError
from headrace.graphs.provenance import provenance
from headrace.graphs.views import arguments, attention_nodes
from headrace.ir import PER_TOKEN_OUTPUTS, Limits, MaskKind, Program
from headrace.lowering.decide.padding import BOUND, same
from headrace.lowering.recover.mask_and_bias import Summands
from headrace.lowering.recover.mask_relation import LONG, short_batch
from headrace.lowering.recover.rewrite import Folded, fold
from headrace.lowering.recover.scores import Scores, Unread, hidden_attentions, read_attention, read_node

# What the code rounds a node does not, and the other way round.
ROUNDING = {"bfloat16": 5e-2, "float16": 5e-2}


@dataclass(frozen=True)
class Recover:
    """Every attention is an attention node, also where a model's own code computes it or makes its own mask."""

    name: str = "recover"

    def __call__(self, program: Program) -> Program:
        """Read each attention's scores, take the mask out of what is added, and put a node in its place.

        Raises:
            AttentionTypeError: an attention does not read so, or the program answers otherwise afterwards.
        """
        hidden = hidden_attentions(program.graph.graph, program.signature.rows is not None)
        opaque = [n for n in attention_nodes(program.graph) if arguments(n)["kind"] == MaskKind.OPAQUE]
        if not hidden and not opaque:
            return program
        summands, reasons = Summands(program), list[str]()
        found = [_read(summands, node, lambda n: read_attention(n, summands.constant), reasons) for node in hidden]
        if reasons:
            raise _refusal(hidden, reasons)
        # Of an attention node that does not read so, the mask stays opaque, and typing says so.
        found += [_read(summands, node, read_node, []) for node in opaque]
        folded = [one for one in found if one is not None]
        names = list[str]()
        try:
            exported = graphs.rewrite(program.graph, lambda graph: names.extend(fold(graph, folded, program.signature)))
        except Unread as reason:
            raise _refusal([*hidden, *opaque], [str(reason)]) from reason
        recovered = program.with_(exported=exported, recovered=tuple(names))
        if any(one.parts.measured for one in folded):
            recovered = recovered.with_(limits=_limits(program.facts.limits))
        _compare(program, recovered)
        return recovered


def _read(summands: Summands, node: fx.Node, read: Callable[[fx.Node], Scores], reasons: list[str]) -> Folded | None:
    try:
        scores = read(node)
        return Folded(scores, summands.separate(scores))
    except Unread as reason:
        reasons.append(str(reason))
        return None


def _refusal(hidden: list[fx.Node], reasons: list[str]) -> AttentionTypeError:
    return AttentionTypeError(
        f"{len(reasons)} of {len(hidden)} attention(s) in the model's own code, past transformers' interface, "
        f"cannot be read as attention, so their type cannot be told: {reasons[0]} (at {provenance(hidden[0])}). "
        "Accepted are softmax(scale * Q K^T + biases + mask) V, whole or as one operator, with a mask made from the "
        "padding and positions. Nothing is guessed."
    )


def _limits(limits: Limits) -> Limits:
    if limits.length is not None and limits.length <= LONG:
        return limits
    return Limits(LONG, f"the model makes its own masks, which were held against their type up to {LONG} tokens")


@torch.no_grad()
def _compare(before: Program, after: Program) -> None:
    """Both must give the same for every real token, with padding on either side and without."""
    real, bound = short_batch(before.facts.limits.length), ROUNDING.get(before.dtype, BOUND)
    inputs = sample.batch(before, real)
    olds, news = graphs.run(before.graph, inputs)[0], graphs.run(after.graph, inputs)[0]
    for output, one, other in zip(before.signature.outputs, olds, news, strict=True):
        # Every row of an array is real.
        padded = output.kind in PER_TOKEN_OUTPUTS and not before.signature.arrays
        old, new = (x[real] if padded else x for x in (one, other))
        # A row of padding that sees nothing is not a number in some models' code, and spreads; in a node it is zero.
        known = torch.isfinite(old)
        if not same(old[known], new[known], bound) or not torch.isfinite(new).all():
            raise AttentionTypeError(
                f"The attention in the model's own code was read as attention nodes, but {output.name} changed by "
                f"{float((old[known] - new[known]).abs().max()):.1e}. What was read is not what the code computes."
            )
