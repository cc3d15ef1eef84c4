"""A program's facts in words, one line each: what the text and the page of `explain` share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from headrace.ir import (
    CROSS,
    DTYPE_BYTES,
    TASK_RULES,
    AttentionSpec,
    AttentionType,
    CacheKind,
    Head,
    HeldWeights,
    Layout,
    Limits,
    MaskKind,
    PaddingRule,
    Prefill,
    Program,
    RecurrentSpec,
    Similarity,
    State,
    Task,
)
from headrace.ir.printer import filling_text, inputs_text, labels_text, limits_text, pooling_text, positions_text
from headrace.runtime.engine import quantization_gate
from headrace.tasks import runnable

# Bytes of a number.
# Contract B in order; the first that matches decides.
RULES = {
    "B1": "a state of your own is registered for it",
    "B2": "some attention reads an encoder's output",
    "B3": "some attention is ENCODER_ONLY",
    "B4": "it carries recurrent state, or has no attention",
    "B5": "every attention is DECODER",
}
MEANS = {
    State.CUSTOM: "a state of your own runs each batch",
    State.ENCODER_DECODER: "the encoder runs once, the decoder with a KV cache",
    State.ENCODER_ONLY: "not causal: each text runs whole, in one pass, without a KV cache",
    State.HYBRID: "recurrent state, beside a KV cache where there is attention",
    State.DECODER: "causal: may keep a KV cache and read a text in chunks",
}
TYPES = {
    AttentionType.DECODER: "A token sees itself and earlier ones of the same text.",
    AttentionType.ENCODER_ONLY: "A token sees both earlier and later ones of the same text.",
    AttentionType.ENCODER: "A token of the encoder's text sees both earlier and later ones.",
    AttentionType.ENCODER_DECODER: "A token of the decoder sees what the encoder made of its text.",
}


def summary(program: Program) -> str:
    """One sentence for somebody who has never seen the model."""
    parts = [_kind(program), *_sight(program)]
    if program.decision.route:
        single = program.decision.prefill is Prefill.SINGLE_PASS
        parts += ["it runs in one pass" if single else "it may read a text in chunks", _abilities(program)]
    return of_its_inputs(program, "; ".join(parts) + ".")


def of_its_inputs(program: Program, said: str) -> str:
    """A sentence about texts and tokens as one about what the program reads: arrays, of which it makes rows."""
    if not program.signature.arrays:
        return said
    for word, other in (("token", "row"), ("a text", "an array"), ("text", "array")):
        said = said.replace(word, other)
    return said


def _kind(program: Program) -> str:
    types, count = Counter(spec.type for spec in program.nodes.attention), len(program.nodes.attention)
    if not count:
        recurrent = f"A model of {len(program.nodes.recurrent)} recurrent operators"
        return recurrent if program.nodes.recurrent else "A model without attention"
    if len(types) == 1 and AttentionType.ENCODER_DECODER not in types:
        kind = "causal decoder" if types[AttentionType.DECODER] else "bidirectional encoder"
        beside = f" with {len(program.nodes.recurrent)} recurrent operators" if program.nodes.recurrent else ""
        return f"{_article(count)} {count}-layer {kind}{beside}"
    what = "An encoder-decoder of" if types[AttentionType.ENCODER_DECODER] else "A model of"
    return f"{what} {listed([f'{n} {type_}' for type_, n in sorted(types.items())])} attentions"


def direction(spec: RecurrentSpec) -> str:
    """Which way a recurrence looks, in a word or two."""
    return {True: "back only", False: "both ways", None: "not declared"}[spec.causal]


def listed(words: list[str]) -> str:
    """The words with commas and an "and"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _article(number: int) -> str:
    return "An" if str(number).startswith("8") or number in (11, 18) else "A"


def _sight(program: Program) -> list[str]:
    masks = {spec.mask for spec in program.nodes.attention if spec.type is not AttentionType.ENCODER_DECODER}
    if len(masks) != 1:
        return []
    causal = any(mask.causal for mask in masks)
    whole = "a token sees itself and those before it" if causal else "every token sees every token"
    narrow = [spec for spec in program.nodes.attention if spec.window.bounded]
    if not narrow:
        return [whole]
    reaches = {window_words(spec) for spec in narrow}
    reach = reaches.pop() if len(reaches) == 1 else "through a window"
    return [f"{whole}, in {len(narrow)} of {len(program.nodes.attention)} layers {reach}"]


def window_words(spec: AttentionSpec) -> str:
    """How far a query sees."""
    left, right = spec.window
    if not spec.window.bounded:
        return "without a window"
    if spec.mask is MaskKind.CHUNKED:
        return f"within blocks of {left + 1}"
    if spec.mask is MaskKind.CAUSAL:
        return f"no further than {left} back"
    return f"no further than {left} either way" if left == right else f"from {left} back to {right} ahead"


def _abilities(program: Program) -> str:
    does = [TASK_RULES[task].does for task in runnable(program)]
    if not does:
        return "it serves no task as it stands"
    return f"it can {listed(does)}"


def prefill_words(prefill: Prefill | None) -> str:
    """The gate of rule C2."""
    if prefill is None:
        return "not decided yet"
    if prefill is Prefill.SINGLE_PASS:
        return f"{prefill}: every token of a text is there in one step, so token-level tasks are open"
    return (
        f"{prefill}: a text of more tokens than token_budget comes in pieces, a step each, of which none sees all its "
        'tokens; prefill="single_pass" keeps the one step, and opens token-level tasks'
    )


def extras(spec: AttentionSpec) -> str:
    """What an attention has beside heads, mask and window."""
    usual = abs(spec.scale * spec.qk_head_dim**0.5 - 1) < 1e-3
    parts = [] if usual else [f"scale {spec.scale:.4g}"]
    parts += [f"softcap {spec.softcap:g}"] * (spec.softcap > 0) + ["sinks"] * spec.sinks + ["latent"] * spec.latent
    return ", ".join(parts + [f"bias {spec.bias}"] * (spec.bias != "none"))


def head_dims(spec: AttentionSpec) -> str:
    """One number, or two where keys and values differ."""
    same = spec.qk_head_dim == spec.v_head_dim
    return str(spec.qk_head_dim) if same else f"{spec.qk_head_dim}/{spec.v_head_dim}"


def layers(specs: Sequence[AttentionSpec]) -> str:
    """Their places in call order, as ranges."""
    ranges: list[list[int]] = []
    for spec in specs:
        if ranges and ranges[-1][1] == spec.call_order - 1:
            ranges[-1][1] = spec.call_order
        else:
            ranges.append([spec.call_order, spec.call_order])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def facts(program: Program, target: str | None, task: Task | None) -> list[tuple[str, str]]:
    """Everything else that is known, by name."""
    found = {
        "default task": task or "none",
        "reads": inputs_text(program) if program.signature.arrays else "",
        "head": _head(program),
        "pooling": pooling_text(program.facts.pooling) if program.facts.pooling else "none",
        "vectors compared by": program.facts.similarity if program.facts.similarity is not Similarity.COSINE else "",
        **(_of_texts(program) if not program.signature.arrays else {}),
        "padding": of_its_inputs(program, _padding(program.decision.padding)),
        "layout": _layout(program),
        "labels": labels_text(program.facts.labels) if program.facts.labels else "none",
        "config says": ", ".join(f"{c.flag}={c.value}, as the masks do" for c in program.evidence.claims),
        "not in the checkpoint": ", ".join(program.evidence.missing),
        "a text that grows keeps": kept_text(program),
        "weights are held as": ", ".join(map(held_text, program.form.weights)),
        "vocabulary": f"{program.signature.vocabulary:,} tokens" if program.signature.vocabulary else "",
        "parameters": f"{program.source.parameters:,}",
        "dtype": program.dtype,
        "quantised": quantization_gate.words(program.form.quantized) if program.form.quantized else "",
        "target": target or "not chosen yet",
        "traced with": ", ".join(" ".join(version) for version in program.source.versions),
        "source": program.source.name,
    }
    return [(name, value) for name, value in found.items() if value]


def kept_text(program: Program) -> str:
    """What a generated text leaves in the caches, and what a step reads beside them; empty where nothing generates."""
    if not any(one.task is Task.GENERATE and one.supported for one in program.decision.tasks):
        return ""
    size = DTYPE_BYTES[program.dtype]
    rows, states = _kept(program) if program.form.caches else _to_keep(program)
    whole = sum(width for width, left in rows if left < 0)
    windows = sum(width * (left + 1) for width, left in rows if left >= 0)
    parts = [f"{whole:,} bytes a token"] * bool(whole)
    parts += [f"up to {windows:,} bytes in windows"] * bool(windows) + [f"a state of {states:,} bytes"] * bool(states)
    if (fewer := program.form.quantized_caches) is not None:
        own = f"keys and values in {fewer.dtype}, {fewer.after:,} bytes a token, {fewer.before:,} in {program.dtype}"
        parts.append(f"{own}; {quantization_gate.cache_words(fewer)}")
    if program.form.whole_why:
        parts.append(f"keys and values whole: {program.form.whole_why}")
    return f"{', '.join(parts) or 'nothing'}; a step reads {size * program.source.parameters / 1e6:,.1f} MB of weights"


def _kept(program: Program) -> tuple[list[tuple[int, int]], int]:
    """Bytes a token of what caches hold of each attention, each with its window; and the bytes of all states."""
    lefts = {group.name: group.left for group in program.form.groups if group != CROSS}
    each = [(cache, prod(cache.sizes) * DTYPE_BYTES[cache.dtype]) for cache in program.form.caches]
    states = sum(width for cache, width in each if cache.kind is CacheKind.ROW)
    return [(width, lefts[cache.group]) for cache, width in each if cache.group in lefts], states


def _to_keep(program: Program) -> tuple[list[tuple[int, int]], int]:
    """The same of a program that is not compiled yet, if it keeps all keys and values."""
    size = DTYPE_BYTES[program.dtype]
    decoders = [spec for spec in program.nodes.attention if spec.type is AttentionType.DECODER]
    rows = [(size * spec.kv_heads * (spec.qk_head_dim + spec.v_head_dim), spec.window.left) for spec in decoders]
    return rows, sum(prod(spec.state) for spec in program.nodes.recurrent) * DTYPE_BYTES["float32"]


def held_text(held: HeldWeights) -> str:
    """E.g. "bfloat16 (211 matrices, 269.0 MB)"."""
    return (
        f"{held.format} ({held.matrices:,} {'matrices' if held.matrices > 1 else 'matrix'}, {held.size / 1e6:,.1f} MB)"
    )


def _of_texts(program: Program) -> dict[str, str]:
    return {
        "longest text": limits_text(program.facts.limits),
        "truncation": _truncation(program),
        "texts are filled up": filling_text(program.facts.filling) if program.facts.filling else "",
        "prompts": ", ".join(name for name, _ in program.facts.text.prompts),
        "chat template": "every text goes through the tokenizer's" if program.facts.text.chat else "",
        "positions": positions_text(program.facts.positions),
    }


def _head(program: Program) -> str:
    if program.signature.head is Head.NONE:
        return "none: the model ends in hidden rows"
    rows = f", reads the {program.signature.head_rows} row" if program.signature.head_rows else ""
    return f"{program.signature.head}{rows}"


def _truncation(program: Program) -> str:
    if program.facts.text.truncates and program.facts.text.max_length:
        return str(limits_text(Limits(program.facts.text.max_length, program.facts.text.why)))
    return (
        "long texts are refused unless you ask to truncate"
        if not program.facts.text.truncates
        else program.facts.text.why
    )


def _layout(program: Program) -> str:
    if program.form.layout is Layout.PACKED:
        return "packed: sequences follow one another in a row, and no padding is computed"
    return f"padded: {program.form.layout_why}" if program.form.layout_why else ""


def _padding(rule: PaddingRule | None) -> str:
    if rule is None:
        return "not measured yet"
    if rule is PaddingRule.EXACT:
        return "exact: a padded batch answers as each text alone"
    return "not exact: only texts of one length share a step"
