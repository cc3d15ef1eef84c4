"""What a program's attention does, how it is routed and what it serves: for people."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.errors import InputError
from headrace.ir import AttentionSpec, Program, Task, Verdict
from headrace.ir.printer import attention_groups
from headrace.runtime.tools.inspect import page
from headrace.runtime.tools.inspect.tables import aligned, paragraph
from headrace.runtime.tools.inspect.words import (
    MEANS,
    RULES,
    direction,
    extras,
    facts,
    head_dims,
    layers,
    of_its_inputs,
    prefill_words,
    summary,
)

HEADINGS = ("layers", "type", "q/kv heads", "head dim", "mask", "window", "extras", "probe")


def explain(
    program: Program,
    form: str = "text",
    *,
    target: str | None = None,
    task: Task | None = None,
    plan: Sequence[Any] = (),
) -> str:
    """Explain an analysed program.

    Args:
        form: "text", below 100 columns, or "html", one page without outside resources.
        target: the one that it was lowered for.
        task: what a request without a task gets.
        plan: what the target will do with that task's program, a `headrace.backends.interface.Choice` each.

    Raises:
        InputError: there is no such form.
    """
    if not isinstance(form, str) or form not in ("text", "html"):
        raise InputError(f"explain makes 'text' or 'html', not {reprlib.repr(form)}.")
    if form == "html":
        return page.page(program, target, task, plan)
    return "\n".join(_lines(program, target, task, plan)) + "\n"


def _lines(program: Program, target: str | None, task: Task | None, plan: Sequence[Any]) -> Iterator[str]:
    yield from (*paragraph(program.source.name), "")
    yield from paragraph(summary(program))
    yield from ("", "Attention, in call order")
    yield from attention_table(program)
    if program.nodes.recurrent:
        yield from ("", "Recurrences, in call order")
        yield from recurrence_table(program)
    yield from ("", "Route")
    yield from _route(program)
    yield from ("", "Tasks")
    yield from task_table(program, task)
    if plan:
        yield from ("", f"Plan for {target}")
        yield from aligned([(choice.about, f"{choice.what}: {choice.why}") for choice in plan])
    yield from ("", "Facts")
    yield from aligned(facts(program, target, task))


def attention_table(program: Program) -> list[str]:
    """A row for each run of layers that differ in nothing but their place."""
    starts = [(first.call_order, count) for first, count in attention_groups(program)]
    rows = [HEADINGS, *(_attention(program.nodes.attention[start : start + count]) for start, count in starts)]
    if not any(row[6] for row in rows[1:]):
        rows = [(*row[:6], row[7]) for row in rows]
    return aligned(rows) if rows[1:] else ["  none"]


def recurrence_table(program: Program) -> list[str]:
    """A row for each recurrent node; the state is what one sequence leaves behind."""
    rows = [
        (str(spec.call_order), spec.operator, "x".join(map(str, spec.state)), direction(spec), spec.verdict.value)
        for spec in program.nodes.recurrent
    ]
    return aligned([("order", "operator", "state", "looks", "probe"), *rows])


def _attention(run: tuple[AttentionSpec, ...]) -> tuple[str, ...]:
    first = run[0]
    heads, window = f"{first.q_heads}/{first.kv_heads}", str(first.window) if first.window.bounded else "none"
    return (layers(run), first.type, heads, head_dims(first), first.mask, window, extras(first), verdict_words(run))


def verdict_words(run: tuple[AttentionSpec, ...]) -> str:
    """What the probe saw of attentions that are alike, and of how many of them."""
    verdicts = [spec.verdict for spec in run]
    seen = [verdict for verdict in verdicts if verdict is not Verdict.PROVEN_ALIKE]
    if not seen:
        return "proven on like ones"
    words = "proven, shrunk" if Verdict.PROVEN_SHRUNK in seen else seen[0].value
    return words if len(seen) == len(run) else f"{words}, {len(seen)} of {len(run)}"


def _route(program: Program) -> list[str]:
    if program.decision.route is None:
        return ["  not decided yet"]
    route = program.decision.route
    rows = [
        ("state", f"{route.name}: {of_its_inputs(program, MEANS[route.state])}"),
        ("rule", f"{route.rule}: {RULES[route.rule]}"),
        ("why", route.reason),
        ("prefill", of_its_inputs(program, prefill_words(program.decision.prefill))),
    ]
    return aligned(rows)


def task_table(program: Program, task: Task | None) -> list[str]:
    """A row for each task that the model offers, supported or refused, with the reason."""
    rows = [
        (
            decision.task,
            "supported" if decision.supported else "refused",
            "default" if decision.task is task else "",
            decision.reason,
        )
        for decision in program.decision.tasks
    ]
    return aligned(rows) if rows else [f"  none: {program.signature.head_note or 'the model offers no task'}"]
