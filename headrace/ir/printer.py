"""A program as text: what `as_text()` returns and golden tests compare. Nothing here prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from headrace.ir import (
    SEQUENCE,
    AttentionSpec,
    Axis,
    Filling,
    Labels,
    Layout,
    Limits,
    Pooling,
    Positions,
    Program,
    RecurrentSpec,
    Verdict,
)


def program_text(program: Program) -> str:
    """Facts, one line an attention, decisions. Says nothing of provenance, so it is equal under renaming."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    yield f"program ({program.stage}, {program.dtype})"
    yield f"  inputs     {inputs_text(program)}"
    for output in program.signature.outputs:
        along = "" if output.along == SEQUENCE else f", along the {output.along.name}"
        yield f"  output     {output.name}: {output.kind}[{output.width}]{along}"
    rows = f", rows: {program.signature.head_rows}" if program.signature.head_rows else ""
    yield f"  head       {program.signature.head}{rows}"
    yield f"  positions  {positions_text(program.facts.positions)}"
    yield from _bounds(program)
    if program.facts.pooling:
        yield f"  pooling    {pooling_text(program.facts.pooling)}"
    if program.facts.labels:
        yield f"  labels     {labels_text(program.facts.labels)}"
    for claim in program.evidence.claims:
        yield f"  claim      {claim.flag}={claim.value} (says {claim.says})"
    for spec in program.nodes.attention:
        yield f"  attention  {attention_text(spec)}"
    for node in program.nodes.recurrent:
        yield f"  recurrent  {recurrent_text(node)}"
    if program.decision.padding:
        yield f"  padding    {program.decision.padding}"
    yield from _lowered(program)
    if route := program.decision.route:
        yield f"  route      {route.name} ({route.rule}: {route.reason})"
    if program.decision.prefill:
        yield f"  prefill    {program.decision.prefill}"
    for task in program.decision.tasks:
        yield f"  task       {task.task}: {'supported' if task.supported else 'refused'} ({task.reason})"


def _lowered(program: Program) -> Iterator[str]:
    if program.form.layout is Layout.PACKED or program.form.layout_why:
        yield f"  layout     {program.form.layout}" + f" ({program.form.layout_why})" * bool(program.form.layout_why)
    if program.form.quantized:
        made = program.form.quantized
        yield f"  quantized  {made.scheme}, {made.layers} of {made.among} linear layers"


def _bounds(program: Program) -> Iterator[str]:
    yield f"  limit      {limits_text(program.facts.limits)}"
    if program.facts.target_limits:
        yield f"  target     {limits_text(program.facts.target_limits)}"
    if program.facts.filling:
        yield f"  filling    {filling_text(program.facts.filling)}"
    if program.signature.marker is not None:
        yield f"  marker     the head reads the rows of token {program.signature.marker}"


def inputs_text(program: Program) -> str:
    """The inputs by name; of arrays the dtype and axes too."""
    return ", ".join(
        f"{one.name} {one.dtype} {axes_text(one.axes)}" if one.is_array else one.name
        for one in program.signature.inputs
    )


def axes_text(axes: tuple[Axis, ...]) -> str:
    """Each axis with its size, e.g. `[batch, channels 3, height 224, width 224]`."""

    def text(axis: Axis) -> str:
        least = f" from {axis.least}" if axis.least > 1 else ""
        return f"{axis.name} {axis.size}" if axis.size is not None else f"{axis.name}{least}"

    return f"[{', '.join(map(text, axes))}]"


def attention_text(spec: AttentionSpec) -> str:
    """One attention on a line, in the order of its fields."""
    parts = [f"{spec.node}: {spec.type}", f"heads {spec.q_heads}/{spec.kv_heads}"]
    dims = f"{spec.qk_head_dim}" if spec.qk_head_dim == spec.v_head_dim else f"{spec.qk_head_dim}|{spec.v_head_dim}"
    parts += [f"dim {dims}", f"scale {spec.scale:.6g}", f"{spec.mask} {spec.window}"]
    parts += [f"softcap {spec.softcap:g}"] * (spec.softcap > 0) + ["sinks"] * spec.sinks + ["latent"] * spec.latent
    parts += ["recovered"] * spec.recovered
    parts += [f"bias {spec.bias}"] * (spec.bias != "none") + [spec.verdict.value]
    return ", ".join(parts)


def recurrent_text(spec: RecurrentSpec) -> str:
    """One recurrence on a line, in the order of its fields."""
    parts = [f"{spec.node}: {spec.operator}"] + ["state " + "x".join(map(str, spec.state))] * bool(spec.state)
    direction = {True: "causal", False: "looks ahead", None: "direction not declared"}[spec.causal]
    return ", ".join([*parts, direction, spec.verdict.value])


def positions_text(positions: Positions) -> str:
    """Where positions come from and what bounds them."""
    table = f", table of {positions.table} rows" if positions.table is not None else ""
    return f"{positions.source}, offset {positions.offset}{table}"


def limits_text(limits: Limits) -> str:
    """The longest usable length and why."""
    return f"{limits.length if limits.length is not None else 'none'} ({limits.why})"


def filling_text(filling: Filling) -> str:
    """The length, the token and its side, and why."""
    side = "left" if filling.left else "right"
    return f"to {filling.length} tokens with token {filling.token} on the {side} ({filling.why})"


def pooling_text(pooling: Pooling) -> str:
    """The kinds, normalising, and the source of the choice."""
    return f"{' + '.join(pooling.kinds) or 'own'}{', normalised' if pooling.normalize else ''} ({pooling.why})"


def labels_text(labels: Labels) -> str:
    """How many labels, the first few, and what scores them."""
    names = ", ".join(labels.names[:4]) + (", ..." if len(labels.names) > 4 else "")
    return f"{len(labels.names)} ({names}), {labels.activation} ({labels.why})"


def attention_groups(program: Program) -> list[tuple[AttentionSpec, int]]:
    """Runs of neighbouring attentions that differ in nothing but their place, each with its length."""

    def kind(spec: AttentionSpec) -> str:
        alike = spec.verdict in (Verdict.PROVEN_ALIKE, Verdict.PROVEN_SHRUNK)
        return attention_text(replace(spec, verdict=Verdict.PROVEN) if alike else spec).split(": ", 1)[1]

    return [(run[0], len(run)) for _, group in groupby(program.nodes.attention, kind) if (run := list(group))]
