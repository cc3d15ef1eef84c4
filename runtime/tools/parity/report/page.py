"""The page of one result, or of two side by side: one file, no outside resource, for a phone and in the dark too."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log10

from headrace.runtime.tools.inspect.document import document
from headrace.runtime.tools.parity.check.findings import Reading, Result, Run
from headrace.runtime.tools.parity.report.heat import NOTE, badge, heat
from headrace.runtime.tools.parity.report.text import SAME, culprit_words, times, verdict

LETTERS = "AB"
SHOWN_OFFENDERS = 12
# The longest bar, in hundredths of its column: its number stands beside it.
FULL_BAR = 72


def page(results: Sequence[Result]) -> str:
    """The whole page."""
    first = results[0]
    name = escape(first.model)
    body = "".join(
        [
            _header(results, name),
            f'<div class="sides">{"".join(_side(result, letter) for result, letter in _lettered(results))}</div>',
            _offenders(results),
            _card("Heat map", heat(_lettered(results)), NOTE),
            _machines(results),
            _rule(),
        ]
    )
    return document(f"{name} - Headrace parity", body, "headrace.runtime.tools.parity.report")


def _lettered(results: Sequence[Result]) -> list[tuple[Result, str]]:
    return [(result, LETTERS[place] if len(results) > 1 else "") for place, result in enumerate(results)]


def _header(results: Sequence[Result], name: str) -> str:
    first, passed = results[0], all(result.passed for result in results)
    tokens = sum(first.lengths)
    pills = (
        first.task,
        " and ".join(dict.fromkeys(result.target for result in results)),
        f"{len(first.lengths)} requests, {tokens} tokens",
        f"{len(first.runs[0].readings) - 1} nodes and the answer",
    )
    listed = "".join(f"<li>{escape(pill)}</li>" for pill in pills)
    colour, word = ("yes", "PASS") if passed else ("no", "FAIL")
    return (
        f'<header><p class="brand">Headrace parity</p><div class="hero"><h1>{name}</h1>'
        f'<span class="stamp {colour}">{word}</span></div><p class="lead">{escape(_summary(results))}</p>'
        f'<ul class="pills">{listed}</ul></header>\n'
    )


def _summary(results: Sequence[Result]) -> str:
    failed = [(run, letter, result) for result, letter in _lettered(results) for run in result.runs if not run.passed]
    if not failed:
        whose = "Both compute" if len(results) > 1 else "This target computes"
        return f"{whose} the same, inside and at the end: every node is as close to float64 as its precision allows."
    run, letter, result = max(failed, key=lambda one: one[0].worst.share)
    where = f"{letter} ({result.target})" if letter else result.target
    first = run.first
    assert first is not None, "failed runs only"
    said = f"On {where} in {run.dtype} the result parts at {first.node}, {times(first.share)} times what is allowed"
    if run.culprit is not None and run.culprit.node:
        said += f"; the first node of the graph to part is {run.culprit.node} ({run.culprit.operator})"
    if len(results) > 1 and any(other.passed for other in results):
        said += ". The other passes"
    return f"{said}."


def _card(title: str, body: str, note: str = "", kind: str = "card") -> str:
    said = f'<p class="soft">{note}</p>' if note else ""
    return f'<section class="{kind}"><h2>{title}</h2>{said}{body}</section>\n'


def _side(result: Result, letter: str) -> str:
    runs = "".join(_run(run) for run in result.runs)
    unrun = "".join(
        f'<li class="soft">{escape(dtype)} was not run: {escape(why)}</li>' for dtype, why in result.left_out
    )
    notes = "".join(f'<li class="soft">{escape(note)}</li>' for note in result.notes)
    title = f"{badge(letter)}{escape(result.target)}"
    return _card(
        title, f'<ul class="runs">{runs}{unrun}{notes}</ul>',
        f"{escape(result.environment.device)}. {escape(verdict(result))}.", "card side",
    )  # fmt: skip


def _run(run: Run) -> str:
    colour, word = ("yes", "pass") if run.passed else ("no", "fail")
    first, worst = run.first, run.worst
    if first is None:
        said = f"nearest to its limit: {worst.node}, at {times(worst.share)} of it"
    else:
        said = f"parts first at {first.node}, worst at {worst.node} ({times(worst.share)} times its limit)"
    why = f'<p class="why">{escape(culprit_words(run.culprit))}</p>' if run.culprit else ""
    return (
        f'<li><div class="what"><span class="place">{run.dtype} <span class="soft">{run.layout}</span></span>'
        f'<span class="verdict {colour}">{word}</span></div><p class="soft">{escape(said)}</p>{why}</li>'
    )


def _offenders(results: Sequence[Result]) -> str:
    """What fails, the worst first; where nothing does, what comes nearest."""
    found = [
        (letter, run, reading)
        for result, letter in _lettered(results)
        for run in result.runs
        for reading in run.readings
    ]
    found.sort(key=lambda one: -one[2].share)
    failed = [one for one in found if not one[2].passed]
    shown = (failed or found[:3])[:SHOWN_OFFENDERS]
    longest = max((one[2].share for one in shown if one[2].share < float("inf")), default=1.0)
    rows = "".join(_offender(letter, run, reading, longest) for letter, run, reading in shown)
    names = [*(["result"] if len(results) > 1 else []), "precision", "node", "rmse", "limit", "times the limit"]
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    more = f" {len(failed) - len(shown)} more are past theirs." if len(failed) > len(shown) else ""
    title = "Worst offenders" if failed else "Nearest to their limits"
    note = f"What is past its limit, the worst first.{more}" if failed else "Nothing is past its limit."
    return _card(title, _table("offenders", head, rows), note)


def _table(kind: str, head: str, rows: str) -> str:
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _offender(letter: str, run: Run, reading: Reading, longest: float) -> str:
    machine = f"<td>{badge(letter)}</td>" if letter else ""
    error = "not a number" if reading.error is None else f"{reading.error:.2e}"
    # Decades from a hundredth of the limit on: a defect is often orders past it.
    width = FULL_BAR * _decades(min(reading.share, longest)) / _decades(longest)
    fine = ' class="fine"' if reading.passed else ""
    return (
        f"<tr>{machine}<td>{run.dtype}</td><td>{escape(reading.node)}</td><td>{error}</td><td>{reading.limit:.2e}</td>"
        f'<td><div class="bar"><i{fine} style="width:{width:.0f}%"></i><b>{times(reading.share)}</b></div></td></tr>'
    )


def _decades(share: float) -> float:
    return log10(max(share, 0.012)) + 2


def _machines(results: Sequence[Result]) -> str:
    names = [f"{badge(letter)}{escape(result.target)}" for result, letter in _lettered(results)]
    cells: list[tuple[str, ...]]
    if len(results) > 1:
        rows = results[0].environment.differences(results[1].environment)
        cells = [tuple(cell or "none" for cell in row) for row in rows]
        note = "What the two machines differ in." if cells else SAME
    else:
        own = results[0].environment
        cells, note = [("device", own.device), *own.libraries, *own.flags], "What ran it."
    if not cells:
        return _card("Machines", "", note)
    head = "".join(f'<th scope="col">{name}</th>' for name in ("", *names))
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
    return _card("Machines", _table("differ", head, body), note)


def _rule() -> str:
    return _card(
        "The rule",
        "<p>A node passes where <code>rmse(result, float64) &le; m &times; floor + rel &times; rms / 10</code>: the "
        "floor is how far the eager model in the same precision lies from float64 on the same rows, m is 10 in float32 "
        "and 3 in half precisions, rel is the precision's rounding and rms the size of the values. Padding takes no "
        "part.</p>",
    )
