"""The page of `explain`: one file, no outside resource, readable on a phone, in the dark and aloud."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import PurePath
from typing import Any

from headrace.ir import AttentionSpec, AttentionType, Program, Route, Task, TaskDecision, Verdict
from headrace.ir.printer import attention_text
from headrace.runtime.tools.inspect.document import document
from headrace.runtime.tools.inspect.picture import picture, scale_words
from headrace.runtime.tools.inspect.words import (
    MEANS,
    RULES,
    TYPES,
    direction,
    extras,
    facts,
    head_dims,
    layers,
    prefill_words,
    summary,
    window_words,
)

COLOURS = {
    AttentionType.DECODER: "decoder",
    AttentionType.ENCODER_ONLY: "encoder",
    AttentionType.ENCODER: "encoder",
    AttentionType.ENCODER_DECODER: "cross",
}


def page(program: Program, target: str | None, task: Task | None, plan: Sequence[Any] = ()) -> str:
    """The whole page."""
    name = escape(PurePath(program.source.name).name or program.source.name)
    body = "".join(
        [
            _header(program, name, target),
            _attention(program),
            f'<div class="pair">{_route(program)}{_tasks(program, task)}</div>',
            _plan(target, plan),
            _facts(program, target, task),
        ]
    )
    return document(f"{name} - Headrace", body)


def _header(program: Program, name: str, target: str | None) -> str:
    pills = [
        program.decision.route.name if program.decision.route else "",
        f"{program.decision.prefill} prefill" if program.decision.prefill else "",
        f"{program.source.parameters:,} parameters",
        program.dtype,
        f"target {target}" if target else "",
    ]
    return (
        f'<header><p class="brand">Headrace explains</p><h1>{name}</h1><p class="lead">{escape(summary(program))}</p>'
        f'<ul class="pills">{_items(filter(None, pills))}</ul></header>\n'
    )


def _items(texts: Iterable[str]) -> str:
    return "".join(f"<li>{escape(text)}</li>" for text in texts)


def _card(title: str, body: str, note: str = "") -> str:
    said = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{said}{body}</section>\n'


def _attention(program: Program) -> str:
    if not program.nodes.attention and not program.nodes.recurrent:
        return _card("Attention map", "<p>The model has no attention.</p>")
    groups = "".join(_group(specs) for specs in _kinds(program))
    recurrent = "".join(
        f'<li class="recurrent"><span></span><div class="what"><span class="place">Recurrence {spec.call_order}</span>'
        f'<span class="badge">RECURRENT</span><code>{escape(spec.operator)}</code>'
        f'<span class="verdict plain">{escape(spec.verdict)}</span>'
        f'<span class="soft">looks {direction(spec)}</span></div></li>'
        for spec in program.nodes.recurrent
    )
    note = "Every attention, by kind. In a picture, rows are queries and columns keys; filled is what is seen."
    return _card("Attention map", f'{_strip(program)}<ol class="layers">{groups}{recurrent}</ol>', note)


def _strip(program: Program) -> str:
    """One bar a layer: its colour is the type, a low one has a window."""
    bars = "".join(
        f'<i class="{COLOURS[spec.type]}{" narrow" if spec.window.bounded else ""}" '
        f'title="{escape(f"{spec.call_order}: {spec.type}, {window_words(spec)}")}"></i>'
        for spec in program.nodes.attention
    )
    count = len(program.nodes.attention)
    low = "; a low bar sees through a window" if any(spec.window.bounded for spec in program.nodes.attention) else ""
    return (
        f'<div class="strip" role="img" aria-label="{count} attentions in call order">{bars}</div>'
        f'<p class="soft">{count} attention{"s" * (count != 1)}, first to last{low}</p>'
    )


def _kinds(program: Program) -> list[list[AttentionSpec]]:
    """The attentions that differ in nothing but their place, in the order of each kind's first."""
    kinds: dict[str, list[AttentionSpec]] = {}
    for spec in program.nodes.attention:
        kinds.setdefault(attention_text(spec).split(": ", 1)[1], []).append(spec)
    return list(kinds.values())


def _group(specs: list[AttentionSpec]) -> str:
    first = specs[0]
    verdict = "yes" if first.verdict in (Verdict.PROVEN, Verdict.PROVEN_SHRUNK, Verdict.PROVEN_ALIKE) else "plain"
    return (
        f'<li class="{COLOURS[first.type]}"><div>{picture(first)}<p class="scale">{scale_words(first)}</p></div><div>'
        f'<div class="what"><span class="place">Layer{"s" * (len(specs) > 1)} {layers(specs)}</span>'
        f'<span class="badge">{first.type}</span><span class="verdict {verdict}">{escape(first.verdict)}</span></div>'
        f'<p class="soft">{TYPES[first.type]}</p><dl class="numbers">{_numbers(first)}</dl>{_nodes(specs)}</div></li>'
    )


def _numbers(spec: AttentionSpec) -> str:
    shown = {
        "query heads": str(spec.q_heads),
        "key heads": str(spec.kv_heads),
        "head dim": head_dims(spec),
        "mask": spec.mask.value,
        "window": f"{spec.window}: {window_words(spec)}" if spec.window.bounded else "none",
        "besides": extras(spec),
    }
    return "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in shown.items() if value)


def _nodes(specs: list[AttentionSpec]) -> str:
    """A row for each node of a kind."""
    rows = "".join(
        f"<tr><td>{spec.call_order}</td><td><code>{escape(spec.node)}</code></td><td>{spec.type}</td>"
        f"<td>{spec.q_heads}/{spec.kv_heads}</td><td>{escape(str(spec.window))}</td><td>{escape(spec.verdict)}</td>"
        f"<td><code>{escape(spec.provenance)}</code></td></tr>"
        for spec in specs
    )
    names = ("layer", "node", "type", "heads", "window", "probe", "place in the model")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    what = "This node" if len(specs) == 1 else f"These {len(specs)} nodes"
    return (
        f'<details><summary>{what}</summary><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _route(program: Program) -> str:
    if program.decision.route is None:
        return _card("Route", "<p>Not decided yet.</p>")
    route = program.decision.route
    return _card(
        "Route",
        f'<p class="state">{escape(route.name)}</p><p class="soft">{MEANS[route.state]}</p>'
        f'<ol class="rules">{"".join(_rules(route))}</ol>'
        f'<p class="prefill"><b>Prefill</b> {escape(prefill_words(program.decision.prefill))}</p>',
        "Which state runs the model: the first rule that matches decides.",
    )


def _rules(route: Route) -> Iterator[str]:
    for rule, what in RULES.items():
        if rule == route.rule:
            why = f"{what}: {escape(route.reason)}"
            yield f'<li class="match" aria-current="true"><b>{rule}</b><span>{why}</span><span>matches</span></li>'
        else:
            yield f"<li><b>{rule}</b><span>{what}</span><span>{'no' if rule < route.rule else 'not asked'}</span></li>"


def _tasks(program: Program, default: Task | None) -> str:
    rows = "".join(_task(decision, decision.task is default) for decision in program.decision.tasks)
    none = f"<p>None: {escape(program.signature.head_note or 'the model offers no task')}.</p>"
    note = "What the model offers and the route enables."
    return _card("Tasks", f'<ul class="tasks">{rows}</ul>' if rows else none, note)


def _task(decision: TaskDecision, default: bool) -> str:
    colour, word = ("yes", "supported") if decision.supported else ("no", "refused")
    mark = '<span class="verdict plain">default</span>' if default else ""
    return (
        f'<li><div class="what"><code class="place">{decision.task}</code><span class="verdict {colour}">{word}</span>'
        f'{mark}</div><p class="soft">{escape(decision.reason)}</p></li>'
    )


def _plan(target: str | None, plan: Sequence[Any]) -> str:
    rows = "".join(
        f"<div><dt>{escape(choice.about)}</dt><dd>{escape(f'{choice.what}: {choice.why}')}</dd></div>"
        for choice in plan
    )
    return _card(f"Plan for {target}", f'<dl class="facts">{rows}</dl>') if rows else ""


def _facts(program: Program, target: str | None, task: Task | None) -> str:
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts(program, target, task)
    )
    named = program.facts.labels.names if program.facts.labels else ()
    every = f'<details><summary>All {len(named)} labels</summary><ul class="names">{_items(named)}</ul></details>'
    return _card("Facts", f'<dl class="facts">{rows}</dl>{every if named else ""}')
