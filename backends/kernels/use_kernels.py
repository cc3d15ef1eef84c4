"""A packed or a cached graph in terms of our kernels: what the GPU targets compile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from headrace import graphs
from headrace.backends.kernels import pooling  # noqa: F401 - registers the operators
from headrace.backends.kernels.attention.op import Form, tile_rows, tuning_for
from headrace.backends.kernels.attention.paged import paged_tuning
from headrace.backends.kernels.recurrent import (  # noqa: F401 - registers the operators
    channels,
    chunk_scan,
    delta_rule,
    matrix_memory,
    selective_scan,
)
from headrace.backends.kernels.recurrent.convolution import ROWS
from headrace.backends.kernels.tuning import Blocks, Scan, converts_float8, scan_blocks
from headrace.graphs.views import arguments, in_order
from headrace.ir import OFFSETS, Window
from headrace.ops.cached import ATTENTION_CROSS, ATTENTION_PAGED
from headrace.ops.packed import ATTENTION_VARLEN, POOL_VARLEN
from headrace.ops.recurrent import CAUSAL_CONV1D, CHUNK_SCAN, GATED_DELTA_RULE, TOKEN_SHIFT
from headrace.ops.stateful import RECURRENCES, VARLEN

TILES = torch.ops.headrace.varlen_tiles.default
PAGED_TILES = torch.ops.headrace.paged_tiles.default
ATTENTION_TRITON = torch.ops.headrace.attention_varlen_triton.default
# What the caches' operators become, and the name there of the argument that counts keys.
PAGED: dict[Any, tuple[Any, str]] = {
    ATTENTION_PAGED: (torch.ops.headrace.attention_paged_triton.default, "context"),
    ATTENTION_CROSS: (torch.ops.headrace.attention_cross_triton.default, "lengths"),
}
# What an attention over caches is not told: that they hold keys and values in their own dtype.
WHOLE = {"v_width": 0, "k_scale": None, "v_scale": None}
CAST = torch.ops.aten._to_copy.default
POOL_TRITON = torch.ops.headrace.pool_varlen_triton.default
# Our operator for each recurrence of a packed row.
RECURRENT_TRITON: dict[Any, Any] = {
    kind.varlen: getattr(torch.ops.headrace, f"{kind.name}_triton").default for kind in RECURRENCES.values()
}
CONVOLUTION, SHIFT, DELTA_RULE = (
    RECURRENCES[operator].varlen for operator in (CAUSAL_CONV1D, TOKEN_SHIFT, GATED_DELTA_RULE)
)
# Those that go in chunks, and the operand whose last dimension is the rows of their state.
# The largest state of which Mamba-2's scan in half precision was held to its definition on a device.
HELD_STATES = {"sm90": 128}
STATES: dict[Any, str] = {CHUNK_SCAN: "b", GATED_DELTA_RULE: "q"}
SILU = torch.ops.aten.silu.default


@dataclass(frozen=True)
class UseKernels:
    """Attention over rows and caches, recurrences and pooling are our kernels.

    The tiles of a batch are listed once and shared.

    Attributes:
        family: the architecture whose tunings they take, as `tuning.family` names it.
        ids: the name of the input whose second size is the row's tokens.
    """

    family: str
    ids: str
    name: str = "use-kernels"

    def __call__(self, graph: fx.Graph) -> None:
        """Put them there."""
        given = {node.name: node for node in graph.nodes if node.op == "placeholder"}
        offsets, ids = given[OFFSETS], given[self.ids]
        first = next(node for node in graph.nodes if node.op != "placeholder")
        with graph.inserting_before(first):
            tokens = graphs.call(graph, graphs.SIZE, (ids, 1))
        tiles: dict[tuple[Any, int], fx.Node] = {}

        def listed(maker: Any, rows: int) -> fx.Node:
            if (maker, rows) not in tiles:
                with graph.inserting_after(tokens):
                    tiles[maker, rows] = graphs.call(graph, maker, (offsets, tokens, rows))
            return tiles[maker, rows]

        for node in list(graph.nodes):
            if node.target is ATTENTION_VARLEN:
                blocks, rows = _tuned(node, self.family)
                graphs.replace(node, _attention(graph, node, listed(TILES, rows), blocks))
            elif node.target in PAGED:
                blocks, rows = _paged_tuned(node, self.family)
                graphs.replace(node, _paged(graph, node, listed(PAGED_TILES, rows), blocks, self.family))
            elif node.target is CONVOLUTION:
                _convolve(graph, node, listed(TILES, ROWS))
            elif node.target is SHIFT:
                _put(graph, node, RECURRENT_TRITON[SHIFT], (node.args[0], listed(TILES, ROWS)))
            elif node.target in RECURRENT_TRITON:
                _widen(graph, node, self.family)
                tuned = _scan_tuned(node, self.family)
                # The rule's triangular systems are solved for all chunks of a batch at once.
                chunks = [listed(TILES, tuned.chunk)] if tuned and node.target is DELTA_RULE else []
                said = [list(tuned)] if tuned else []
                _put(graph, node, RECURRENT_TRITON[node.target], (*node.args, *chunks, *said))
            elif node.target is POOL_VARLEN:
                _put(graph, node, POOL_TRITON, node.args)


def _tuned(node: fx.Node, family: str) -> tuple[Blocks, int]:
    """The attention's tuning, and the rows of a tile that suit it."""
    given = arguments(node)
    q, k, v = (given[name].meta["val"] for name in "qkv")
    form = Form(given["scale"], given["kind"], Window(*given["window"]), given["softcap"], given["bias_kind"])
    blocks = tuning_for(q, v, given["length"], form, family)
    return blocks, tile_rows(q, k, blocks)


def _attention(graph: fx.Graph, node: fx.Node, tiles: fx.Node, blocks: Blocks) -> fx.Node:
    given = arguments(node) | {"tiles": tiles, "blocks": blocks.numbers}
    with graph.inserting_before(node):
        return graphs.call(graph, ATTENTION_TRITON, in_order(ATTENTION_TRITON, given))


def _paged_tuned(node: fx.Node, family: str) -> tuple[Blocks, int]:
    given = arguments(node)
    q, keys = (given[name].meta["val"] for name in ("q", "k_cache"))
    values = None if given["v_cache"] is None else given["v_cache"].meta["val"]
    blocks = paged_tuning(q, values, family, given.get("k_scale") is not None)
    return blocks, tile_rows(q, keys[0], blocks)


def _paged(graph: fx.Graph, node: fx.Node, tiles: fx.Node, blocks: Blocks, family: str) -> fx.Node:
    target, counted = PAGED[node.target]
    given = WHOLE | arguments(node) | {"native": converts_float8(family)}
    given |= {"tiles": tiles, "tuned": blocks.numbers, "counts": given[counted]}
    with graph.inserting_before(node):
        return graphs.call(graph, target, in_order(target, given))


def _convolve(graph: fx.Graph, node: fx.Node, tiles: fx.Node) -> None:
    """A convolution, and the SiLU that alone reads it, in one kernel."""
    users = list(node.users)
    activated = len(users) == 1 and users[0].target is SILU
    last = users[0] if activated else node
    _put(graph, last, RECURRENT_TRITON[CONVOLUTION], (*node.args[:-1], tiles, activated))
    if activated:
        graph.erase_node(node)


def _scan_tuned(node: fx.Node, family: str) -> Scan | None:
    """The blocks of a recurrence that goes in chunks; None of one that goes token by token."""
    kind, given = VARLEN[node.target], arguments(node)
    if kind.operator not in STATES:
        return None
    rows = given[STATES[kind.operator]].meta["val"]
    return scan_blocks(family, kind.name, rows.dtype, rows.shape[-1])


def _widen(graph: fx.Graph, node: fx.Node, family: str) -> None:
    """Mamba-2's scan runs in float32 on NVIDIA where half precision was not held to the definition there.

    On an H200 it is right in chunks of 16 and 32 tokens. In chunks of 64, by 16 columns, it was wrong (Triton 3.6),
    which the interpreter does not show and for which no cause is known yet.
    """
    given = arguments(node)
    if VARLEN[node.target].operator is not CHUNK_SCAN or not family.startswith("sm"):
        return
    if given["b"].meta["val"].shape[-1] <= HELD_STATES.get(family, 0):
        return
    with graph.inserting_before(node):
        wide = {name: graphs.call(graph, CAST, (given[name],), kwargs={"dtype": torch.float32}) for name in "xbc"}
    node.args = in_order(node.target, given | wide)


def _put(graph: fx.Graph, old: fx.Node, target: Any, args: tuple[Any, ...]) -> None:
    with graph.inserting_before(old):
        new = graphs.call(graph, target, args)
    graphs.replace(old, new)
