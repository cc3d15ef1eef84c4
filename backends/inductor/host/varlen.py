"""Attention over packed rows on a host, in C++: each sequence alone, without padding and without a mask.

It means what `headrace::attention_varlen` does, which runs what this does not: operands of several dtypes, or of
float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from headrace import graphs
from headrace.compat.torch_code import define
from headrace.graphs.views import arguments
from headrace.ir import BiasKind, MaskKind
from headrace.ops.packed import ATTENTION_VARLEN, attend_each

FLOAT = torch.ops.prims.convert_element_type.default
DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
# As `varlen.h` numbers them.
RELATIONS = (MaskKind.BIDIRECTIONAL, MaskKind.CAUSAL, MaskKind.CHUNKED)
BIASES = (BiasKind.NONE, BiasKind.ALIBI, BiasKind.RELATIVE)
SCHEMA = (
    "attention_varlen_host(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? sinks, Tensor? bias, float scale, "
    "int relation, int left, int right, float softcap, int added) -> Tensor"
)


def attention_varlen_host(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    scale: float,
    relation: int,
    left: int,
    right: int,
    softcap: float,
    added: int,
) -> Tensor:
    """As `attention_varlen`; compiled code runs `varlen.h` in its place.

    Args:
        q, k, v: of one dtype, float32, bfloat16 or float16; sinks and bias are float32.
        relation: the place of the mask's kind in `RELATIONS`.
        left, right: the window.
        added: the place of the bias's kind in `BIASES`.
    """
    kind = RELATIONS[relation].value
    given = (q, k, v, cu_seqlens, sinks, bias, scale, kind, [left, right], softcap, BIASES[added].value)
    return attend_each(*given)


def _shape(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return v.new_empty((q.shape[0], q.shape[1], v.shape[2]))


ATTENTION_VARLEN_HOST = define(SCHEMA, attention_varlen_host, _shape)


def attentions(graph: fx.Graph) -> Iterator[tuple[fx.Node, str]]:
    """The graph's attentions over packed rows, and of each why the host's operator does not take it: "" if it does."""
    for node in graph.find_nodes(op="call_function", target=ATTENTION_VARLEN):
        yield node, _left_because(arguments(node))


def use_host_varlen(graph: fx.Graph) -> None:
    """Have a graph call this module's operator where it calls the IR's with what this one takes."""
    for node, left in list(attentions(graph)):
        if not left:
            given = arguments(node)
            relation, added = RELATIONS.index(given["kind"]), BIASES.index(given["bias_kind"])
            besides = [_floats(graph, node, given[name]) for name in ("sinks", "bias")]
            form = given["scale"], relation, *given["window"], given["softcap"], added
            node.args = (*node.args[:4], *besides, *form)
            node.target, node.kwargs = ATTENTION_VARLEN_HOST, {}


def _left_because(given: dict[str, Any]) -> str:
    dtypes = [given[name].meta["val"].dtype for name in "qkv"]
    if len(set(dtypes)) > 1:
        return f"q, k and v are {', '.join(map(_name, dtypes))}"
    if dtypes[0] not in DTYPES:
        return f"they are {_name(dtypes[0])}"
    return "" if given["kind"] in RELATIONS else f"the mask is {given['kind']}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _floats(graph: fx.Graph, before: fx.Node, given: fx.Node | None) -> fx.Node | None:
    if given is None or given.meta["val"].dtype is torch.float32:
        return given
    with graph.inserting_before(before):
        return graphs.call(graph, FLOAT, (given, torch.float32))
