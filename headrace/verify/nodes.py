"""What holds of a program's operators and of the specs about them. Each rule yields where it is broken, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from headrace.graphs.views import arguments
from headrace.ir.attention import AttentionSpec, AttentionType, BiasKind, MaskKind
from headrace.ir.cache import CODES, CacheKind
from headrace.ir.program import Layout, Stage
from headrace.ir.signature import OFFSETS, PoolKind, Role
from headrace.ops.attention import ATTENTION, MASK, POOL
from headrace.ops.cached import ATTENTION_CROSS, ATTENTION_PAGED
from headrace.ops.lstm import LSTM
from headrace.ops.packed import ATTENTION_VARLEN, POOL_VARLEN
from headrace.ops.quantized import LINEAR_FP8, LINEAR_INT8
from headrace.ops.stateful import POOL_STATE, RECURRENCES, STATEFUL, VARLEN
from headrace.verify.signature import Breach
from headrace.verify.view import View, differs, dtype, shape

OPERATORS = {
    Layout.PADDED: (ATTENTION, MASK, POOL, LSTM, *RECURRENCES),
    Layout.PACKED: (ATTENTION_VARLEN, POOL_VARLEN, *VARLEN),
    Layout.CACHED: (ATTENTION_PAGED, ATTENTION_CROSS, POOL_STATE, POOL_VARLEN, *STATEFUL),
}
# What an operator that takes no such arguments says: every key of an encoder is seen.
PLAIN: dict[str, Any] = {"kind": "bidirectional", "window": [-1, -1], "bias": None, "mask": None}
ATTENTIONS = (ATTENTION, ATTENTION_VARLEN, ATTENTION_PAGED)
CONVOLUTION = "convolution"
CONVOLUTIONS = frozenset({torch.ops.aten.conv1d.default, torch.ops.aten.convolution.default})
# What carries state along the sequence, and leaves none that a later step goes on from.
STATELESS = dict.fromkeys(CONVOLUTIONS, CONVOLUTION) | {LSTM: "lstm"}


def attention_form(view: View) -> Iterator[Breach]:
    """An attention has a kind, a window and operands that its operator is defined for."""
    for node in view.of(*ATTENTIONS):
        given = arguments(node)
        yield from _relation(view, node, given)
        rank = 4 if node.target is ATTENTION else 3
        q, k, v = _operands(given)
        if any(sizes is None or len(sizes) != rank for sizes in (q, k, v)):
            yield node.name, f"its operands are {q}, {k} and {v}, not of {rank} dimensions"
            continue
        heads = tuple(sizes[1] for sizes in (q, k, v) if sizes)
        if all(isinstance(count, int) for count in heads) and (heads[0] % heads[1] or heads[1] != heads[2]):
            yield node.name, f"{heads[0]} query heads for {heads[1]} of keys and {heads[2]} of values"
        if given["softcap"] < 0:
            yield node.name, f"a softcap of {given['softcap']}"


def _operands(given: dict[str, Any]) -> tuple[tuple[Any, ...] | None, ...]:
    """The shapes of queries, keys and values, those of a cache without its blocks' number; keys may be values too."""
    caches = [shape(given.get(f"{name}_cache")) for name in "kv"]
    if caches[0] and not caches[1]:
        caches[1] = (*caches[0][:-1], given.get("v_width") or caches[0][-1])
    return (
        shape(given["q"]),
        *(sizes[1:] if sizes else shape(given[x]) for x, sizes in zip("kv", caches, strict=True)),
    )


def mask_form(view: View) -> Iterator[Breach]:
    """A mask has a kind and a window that its operator is defined for."""
    for node in view.of(MASK):
        yield from _relation(view, node, arguments(node))


def _relation(view: View, node: fx.Node, given: dict[str, Any]) -> Iterator[Breach]:
    """Typed are kinds that say who sees whom; before that one may still be opaque."""
    kind, window = given["kind"], tuple(given["window"])
    if kind not in list(MaskKind) or (kind == MaskKind.OPAQUE and view.program.stage is not Stage.TRACED):
        yield node.name, f"its mask is {kind}"
    elif len(window) != 2 or min(window) < -1:
        yield node.name, f"its window is {window}: two numbers of positions, or -1 for no bound"
    elif kind == MaskKind.CHUNKED and window[0] < 0:
        yield node.name, f"its window is {window}, which does not say how long a chunk is"


def specs_match_nodes(view: View) -> Iterator[Breach]:
    """Each attention node has one spec, in call order, that says what the node's arguments say."""
    nodes, specs = view.of(*ATTENTIONS, ATTENTION_CROSS), view.program.nodes.attention
    if [node.name for node in nodes] != [spec.node for spec in specs]:
        yield "attention", f"nodes {[n.name for n in nodes]}, specs {[s.node for s in specs]}"
        return
    orders = [spec.call_order for spec in specs]
    if orders != sorted(set(orders)):
        yield "attention", f"the call orders are {orders}"
    for node, spec in zip(nodes, specs, strict=True):
        yield from ((node.name, what) for what in _said_otherwise(PLAIN | arguments(node), spec))


def _said_otherwise(given: dict[str, Any], spec: AttentionSpec) -> Iterator[str]:
    kind, window = given["kind"], given["window"]
    if (spec.mask, tuple(spec.window)) != (kind, tuple(window)):
        yield f"the spec says {spec.mask} {spec.window}, the node {kind} {window}"
    if spec.mask.causal and spec.type is not AttentionType.DECODER:
        yield f"the spec says {spec.type} of a {spec.mask} mask"
    sizes = [shape or () for shape in _operands(given)]
    if all(len(one) > 2 for one in sizes):
        (_, heads, *_, width), (_, groups, *_), (*_, values) = sizes
        said = (spec.q_heads, spec.kv_heads, spec.qk_head_dim, spec.v_head_dim)
        if any(differs(size, one) for size, one in zip((heads, groups, width, values), said, strict=True)):
            yield f"the spec says heads and widths {said}, the node {(heads, groups, width, values)}"
    if spec.compressed != ("v_cache" in given and given["v_cache"] is None):
        yield f"the spec says compressed {spec.compressed}, the node's values lie in {given.get('v_cache')}"
    if (spec.scale, spec.softcap) != (given["scale"], given["softcap"]):
        yield f"the spec says scale {spec.scale} and cap {spec.softcap}, the node {given['scale']}, {given['softcap']}"
    mask = given.get("mask")  # a packed program has none
    if spec.mask_node != (mask.name if mask is not None and mask.target is MASK else None):
        yield f"the spec says the mask {spec.mask_node}, the node {mask}"
    if (spec.sinks, spec.bias is not BiasKind.NONE) != (given["sinks"] is not None, given["bias"] is not None):
        yield f"the spec says sinks {spec.sinks} and bias {spec.bias}, the node {given['sinks']} and {given['bias']}"


def masks_agree(view: View) -> Iterator[Breach]:
    """The mask node says the same kind and window as the attention that uses it, and no typed mask is opaque."""
    for node in view.of(ATTENTION):
        given = arguments(node)
        mask, opaque = given["mask"], given["kind"] == MaskKind.OPAQUE
        if mask is None or (opaque and view.program.stage is Stage.TRACED):
            continue
        if mask.target is not MASK:
            yield node.name, f"its mask {mask.name} is no mask node"
            continue
        said = arguments(mask)
        if (said["kind"], list(said["window"])) != (given["kind"], list(given["window"])):
            own = f"it says {given['kind']} {given['window']}"
            yield node.name, f"{own}, {mask.name} says {said['kind']} {said['window']}"


def recurrences_match_nodes(view: View) -> Iterator[Breach]:
    """Each recurrent operator has one spec, in call order; a spec is of a node that is there, and of its operator."""
    specs = view.program.nodes.recurrent
    for spec in specs:
        node = view.named.get(spec.node)
        if node is None:
            yield spec.node, f"the spec says {spec.operator}, and no node has this name"
        elif (operator := _operator(node)) != spec.operator:
            yield spec.node, f"the spec says {spec.operator}, the node {operator or node.target}"
        elif any(size < 0 for size in spec.state if isinstance(size, int)):
            yield spec.node, f"a state of {spec.state}"
    known = [spec.node for spec in specs]
    for node in view.of(LSTM, *RECURRENCES, *VARLEN, *STATEFUL):
        if node.name not in known:
            yield node.name, f"a recurrence without a spec; there are those of {', '.join(known) or 'none'}"
    places = {node.name: place for place, node in enumerate(view.nodes)}
    found = [places[name] for name in known if name in places]
    if found != sorted(set(found)):
        yield known[0], f"the specs are out of call order: {', '.join(known)}"


def _operator(node: fx.Node) -> str:
    if node.target in STATELESS:
        return STATELESS[node.target]
    kind = RECURRENCES.get(node.target) or VARLEN.get(node.target) or STATEFUL.get(node.target)
    return kind.name if kind else ""


def lstm_form(view: View) -> Iterator[Breach]:
    """An LSTM has weights of as many directions, one or two, each of its rows' width and its state's."""
    for node in view.of(LSTM):
        given = arguments(node)
        x, w, r, bias = (shape(given[name]) for name in ("x", "w", "r", "bias"))
        if x is None or w is None or r is None or len(x) != 3 or len(r) != 3 or r[0] not in (1, 2):
            yield node.name, f"it runs {x} by weights {w} and {r}, not rows of sequences in one or two directions"
        elif (w, r, bias) != ((r[0], 4 * r[2], x[2]), (r[0], 4 * r[2], r[2]), (r[0], 4 * r[2])):
            yield node.name, f"its weights are {w}, {r} and {bias}, of rows {x[2]} wide and states of {r[2]}"


def recovered_named(view: View) -> Iterator[Breach]:
    """What was recovered from a model's own code are attention nodes, and their specs say so."""
    there, said = {node.name for node in view.of(*ATTENTIONS, ATTENTION_CROSS)}, view.program.evidence.recovered
    yield from ((name, "recovered, and no attention has this name") for name in said if name not in there)
    for spec in view.program.nodes.attention:
        if spec.recovered is not (spec.node in said):
            yield spec.node, f"the spec says recovered {spec.recovered}, the program {', '.join(said) or 'none'}"


def pool_form(view: View) -> Iterator[Breach]:
    """A pooling chooses from rows, [batch, sequence, width], in a way that its operator is defined for."""
    for node in view.of(POOL, POOL_VARLEN, POOL_STATE):
        given = arguments(node)
        sizes = shape(given["hidden"])
        if given["kind"] not in list(PoolKind):
            yield node.name, f"it pools by {given['kind']}; known are {', '.join(PoolKind)}"
        if sizes is None or len(sizes) != 3:
            yield node.name, f"it pools {given['hidden']}, of shape {sizes}, not rows of sequences"
        cached = view.program.form.layout is Layout.CACHED
        if cached and (node.target is POOL_VARLEN) is not (given["kind"] == PoolKind.LAST):
            yield node.name, f"it pools by {given['kind']} the rows of one piece, and a text may come in several"


def rows_form(view: View) -> Iterator[Breach]:
    """The operators are those of the program's layout, and those of one row are told where each sequence begins."""
    layout = view.program.form.layout
    for other in OPERATORS.keys() - {layout}:
        for node in view.of(*(one for one in OPERATORS[other] if one not in OPERATORS[layout])):
            yield node.name, f"it works on {other} rows, and the program is {layout}"
    if (layout is not Layout.PADDED) != view.program.signature.has(Role.OFFSETS):
        inputs = ", ".join(view.program.signature.input_names)
        yield OFFSETS, f"the program is {layout}, and its inputs are {inputs}"
    if layout is not Layout.PADDED:
        yield from _in_one_row(view, layout)


def _in_one_row(view: View, layout: Layout) -> Iterator[Breach]:
    offsets, program = view.placeholder(OFFSETS), view.program
    if program.stage is not Stage.LOWERED or program.form.layout_why:
        yield "layout", f"a {program.stage} program is {layout} {program.form.layout_why}".rstrip()
    if offsets is not None and (dtype(offsets), len(shape(offsets) or ())) != ("int32", 1):
        yield OFFSETS, f"{dtype(offsets)} of shape {shape(offsets)}, not one int32 a bound"
    for node in view.of(*OPERATORS[layout]):
        if arguments(node)["cu_seqlens"] is not offsets:
            yield node.name, f"it finds its sequences by {arguments(node)['cu_seqlens']}, not by {OFFSETS}"
    for spec in program.nodes.recurrent:
        if spec.operator == CONVOLUTION:
            yield spec.node, "it would carry state from one sequence of the row to the next"


def caches_kept(view: View) -> Iterator[Breach]:
    """A cached program's caches are inputs, each written by one operator first, and its paged ones are of a group."""
    program, form = view.program, view.program.form
    taken = program.signature.names(Role.CACHE)
    for name in sorted({cache.name for cache in form.caches} ^ taken):
        yield name, "a cache and no input, or the other way round"
    groups = [group.name for group in form.groups]
    for cache in form.caches:
        if (cache.kind is CacheKind.PAGED) is (cache.group is None) or cache.group not in (None, *groups):
            yield (
                cache.name,
                f"a {cache.kind} cache of the group {cache.group}; there are {', '.join(groups) or 'none'}",
            )
        sizes = shape(view.placeholder(cache.name)) or ()
        if tuple(sizes[-len(cache.sizes) :]) != cache.sizes or dtype(view.placeholder(cache.name)) != cache.dtype:
            yield cache.name, f"the program says {cache.sizes} in {cache.dtype}, the graph {sizes}"
    users = Counter(arg for node in view.of(POOL_STATE, *STATEFUL) for arg in node.all_input_nodes if arg.name in taken)
    yield from (
        (state.name, f"{count} operators keep their state in it") for state, count in users.items() if count > 1
    )


def cache_scales(view: View) -> Iterator[Breach]:
    """Keys and values are codes where they have scales, one for each token and head, and the program says so."""
    coded = False
    for node in view.of(ATTENTION_PAGED):
        given = arguments(node)
        for name in "kv":
            cache, scales = given[f"{name}_cache"], given.get(f"{name}_scale")
            codes = cache is not None and dtype(cache) == CODES
            coded |= codes
            if codes is not (scales is not None):
                yield node.name, f"its {name}_cache {cache} is {dtype(cache)}, its scales are {scales}"
            elif codes and (dtype(scales), shape(scales)) != ("float32", (shape(cache) or ())[:-1]):
                yield node.name, f"{scales} is {dtype(scales)} {shape(scales)}, and {cache} {shape(cache)}"
    said = view.program.form.quantized_caches
    if coded is not (said is not None):
        yield "caches", f"the graph keeps {'codes' if coded else 'no codes'}, the program says {said}"


def quantized_form(view: View) -> Iterator[Breach]:
    """Layers in eight bits are as many as the program says, and hold weights of eight bits with a scale an output."""
    layers, made = view.of(LINEAR_FP8, LINEAR_INT8), view.program.form.quantized
    said = made.layers if made is not None else 0
    # Of a program that returns what nodes computed, those after the last such node are gone.
    if len(layers) > said or (len(layers) < said and not view.program.nodes.taps):
        yield "quantized", f"{len(layers)} layers in eight bits, the program says {said}"
    if made is not None and (made.layers > made.among or view.program.stage is not Stage.LOWERED):
        yield "quantized", f"{made.layers} of {made.among} linear layers of a {view.program.stage} program"
    for node in layers:
        given = arguments(node)
        weight, scale = shape(given["weight"]) or (), shape(given["scale"]) or ()
        held = "int8" if node.target is LINEAR_INT8 else "float8_e4m3fn"
        if dtype(given["weight"]) != held or len(weight) != 2 or scale != weight[:1]:
            yield node.name, f"weights {dtype(given['weight'])} {weight} with scales {scale}"
