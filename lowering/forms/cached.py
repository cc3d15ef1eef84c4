"""Rewrite a padded program to a cached one: it runs what is new of each sequence, and keeps what came before in caches.

One graph serves whole prefill, prefill in chunks and decoding, mixed in one step: the new tokens of some sequences lie
after one another in a row, as in a packed program. Every causal attention becomes `attention_paged`, every recurrent
operator the form that goes on from a state; both write their caches, which are inputs. Only rows that are asked for
reach the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import Dim

from headrace import feed, sample
from headrace.errors import TraceError
from headrace.ir import (
    CROSS,
    OFFSETS,
    PER_TOKEN_OUTPUTS,
    AttentionSpec,
    AttentionType,
    BiasKind,
    CacheKind,
    Layout,
    OutputKind,
    Program,
    RecurrentSpec,
    Role,
    Verdict,
)
from headrace.lowering.decide.padding import same, shared_value, wide_outputs
from headrace.lowering.forms.cached_graph import ASKED, BLOCKS, HELD, SEQUENCES, STATES, CachedGraph
from headrace.lowering.forms.encoder import SplitEncoder
from headrace.lowering.forms.packed import TOKENS, export_row
from headrace.lowering.forms.pieces import Pieces, random_steps
from headrace.ops.cached import ATTENTION_CROSS, ATTENTION_PAGED
from headrace.ops.lstm import LSTM
from headrace.ops.stateful import STATEFUL

# Of the texts that are run in pieces against the padded program alone.
LENGTHS = (3, 11, 7)
FEWEST = 4  # tokens of the first text that a target is made beside
KEEPING = {ATTENTION_PAGED: AttentionType.DECODER, ATTENTION_CROSS: AttentionType.ENCODER_DECODER}
BIDIRECTIONAL = (AttentionType.ENCODER_ONLY, AttentionType.ENCODER)


@dataclass(frozen=True)
class CacheStates:
    """The program keeps each sequence's keys, values and states, runs what is new, and answers as the whole text does.

    Attributes:
        block: rows of a block of paged caches.
        widest_row: of rows that keys and values are linear maps of, how many numbers one has at most that is kept in
            their place, where it is narrower; 0 keeps none.
    """

    block: int = 16
    widest_row: int = 0
    name: str = "cache"

    def __call__(self, program: Program) -> Program:
        """Swap what looks along the tokens, export what that leaves, and hold it against the padded program.

        Raises:
            TraceError: something in the program looks along the tokens in a way that no cache keeps.
        """
        _refuse(program)
        graph = CachedGraph(program, self.widest_row)
        graph.swap()
        cached = _exported(program, graph, self.block)
        _compare(program, cached)
        return cached


def _refuse(program: Program) -> None:
    if (shared := shared_value(program)) is not None:
        raise TraceError(f"{shared.name} is one number of all the texts in a batch, and each text needs its own.")
    if (lstm := next((node for node in program.graph.graph.nodes if node.target is LSTM), None)) is not None:
        raise TraceError(f"{lstm.name} is an LSTM, whose states no cache keeps.")
    bidirectional = (AttentionType.ENCODER_ONLY,) if program.signature.has(Role.TARGET_IDS) else BIDIRECTIONAL
    for spec in program.nodes.attention:
        if spec.type in bidirectional:
            raise TraceError(
                f"{spec.node} ({spec.provenance}) is {spec.type}: its queries see keys that are not there yet while a "
                "text grows. A cached program's attentions are DECODER."
            )


def _exported(program: Program, graph: CachedGraph, block: int) -> Program:
    """The program of the rewritten graph."""
    inputs = graph.inputs(block)
    whole = program.with_(
        inputs=inputs, layout=Layout.CACHED, caches=tuple(graph.caches), groups=tuple(graph.groups), block=block,
        outputs=graph.outputs(), whole_why=graph.whole_why,
    )  # fmt: skip
    example = Pieces(whole, [sample.text(whole.signature, length, 0) for length in LENGTHS], [], wide=False)
    axes = {TOKENS: Dim("tokens", min=2), SEQUENCES: Dim("sequences", min=2), ASKED: Dim("asked", min=2),
            HELD: Dim("held", min=2), BLOCKS: Dim("pool", min=2), STATES: Dim("states", min=2)}  # fmt: skip
    shapes = {one.name: {place: axes[axis] for place, axis in enumerate(one.axes) if axis in axes} for one in inputs}
    shapes[OFFSETS] = {0: axes[SEQUENCES] + 1}
    step = example.inputs(example.begin(2))
    exported = export_row(graph.module, {one.name: step[one.name] for one in inputs}, shapes)
    nodes = [node for node in exported.graph.nodes if node.target in KEEPING]
    named = zip((spec for spec in program.nodes.attention if spec.type in KEEPING.values()), nodes, strict=True)
    specs = tuple(replace(_kept(spec, graph), node=node.name, mask_node=None, bias=_bias(spec)) for spec, node in named)
    states = (one for one in graph.caches if one.kind is CacheKind.ROW and one.name not in graph.pooled)
    nodes = [node for node in exported.graph.nodes if node.target in STATEFUL]
    recurrent = tuple(
        RecurrentSpec(node.name, order, STATEFUL[node.target].name, cache.sizes, True, Verdict.PROVEN)
        for order, (node, cache) in enumerate(zip(nodes, states, strict=True))
    )
    return whole.with_(
        exported=exported, attention=specs, recurrent=recurrent,
        recovered=tuple(spec.node for spec in specs if spec.recovered),
    )  # fmt: skip


def _kept(spec: AttentionSpec, graph: CachedGraph) -> AttentionSpec:
    """What it reads: rows, where those are kept."""
    if (row := graph.compressed.get(spec.node)) is None:
        return spec
    return replace(spec, kv_heads=1, qk_head_dim=row.width, v_head_dim=row.value_map.shape[1], compressed=True)


def _bias(spec: AttentionSpec) -> BiasKind:
    """A cross attention's is of nothing, or was refused."""
    return BiasKind.NONE if spec.type is AttentionType.ENCODER_DECODER else spec.bias


@torch.no_grad()
def _compare(padded: Program, cached: Program) -> None:
    """Texts that are run in pieces, mixed, must answer as the padded program answers each text alone.

    At every token, or, where tokens are pooled, with the last piece.
    """
    limits = padded.facts.target_limits if padded.signature.has(Role.TARGET_IDS) else padded.facts.limits
    longest = (limits.length if limits else None) or max(LENGTHS)
    texts = [sample.text(padded.signature, min(length, longest), seed) for seed, length in enumerate(LENGTHS)]
    alone = [_whole(padded, text, seed) for seed, text in enumerate(texts)]
    encoder = SplitEncoder()(padded) if CROSS in cached.form.groups else None
    rows = [wide_outputs(encoder, _of(encoder, given))[0][0] for given, _ in alone] if encoder else []
    pools, got = Pieces(cached, texts, rows), [[list[Tensor]() for _ in texts] for _ in cached.signature.outputs]
    for step in random_steps(texts):
        pieces = [pools.piece(order, count) for order, count in step]
        answers = wide_outputs(cached, pools.inputs(pieces))
        bounds = np.cumsum([len(piece.ids) for piece in pieces])[:-1].tolist()
        for output, made, of in zip(cached.signature.outputs, answers, got, strict=True):
            per_token = output.kind in PER_TOKEN_OUTPUTS
            for (order, _), own in zip(step, made[0].tensor_split(bounds) if per_token else made[:, None], strict=True):
                of[order] = [*of[order], own] if per_token else [own]
    for place, (_, whole) in enumerate(alone):
        if not all(same(own, torch.cat(of[place])) for own, of in zip(whole, got, strict=True)):
            raise TraceError(
                "A text that is run in pieces answers otherwise than whole: something looks along the tokens that no "
                "cache keeps, or a position is counted from the first token of a piece."
            )


def _of(program: Program, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of some inputs that a program takes."""
    return {name: given[name] for name in program.signature.input_names}


def _whole(padded: Program, text: NDArray[np.int64], seed: int) -> tuple[dict[str, Tensor], list[Tensor]]:
    """A text, or a target beside one, as the padded program is given it alone, and its answers: rows each."""
    if padded.signature.has(Role.TARGET_IDS):
        real, target = (torch.ones((1, size), dtype=torch.bool) for size in (FEWEST + seed, len(text)))
        given = sample.batch(padded, real, target, seed)
        given[str(padded.signature.name(Role.TARGET_IDS))] = torch.from_numpy(text)[None]
    else:
        given = sample.tensors(padded, feed.padded([text], offset=padded.facts.positions.offset))
    answers = zip(padded.signature.outputs, wide_outputs(padded, given), strict=True)
    kept = [made for output, made in answers if output.kind is not OutputKind.HIDDEN]
    return given, [made[0] if made.dim() > 2 else made for made in kept]
