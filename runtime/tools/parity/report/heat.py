"""The heat map of parity: a row a node, a column a request, coloured by the error in multiples of the limit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from headrace.runtime.tools.parity.check.findings import Reading, Result, Run
from headrace.runtime.tools.parity.report.text import times

# The first three of the six colours pass.
STEPS = (0.1, 0.4, 1.0, 3.0, 10.0)
WORDS = ("below a tenth of the limit", "below 0.4", "up to the limit", "past it", "past 3 times", "past 10 times")
NOTE = (
    "A row is a node, in the order that the program computes them; the answer is last. A column is a request, by its "
    "tokens; <b>all</b> decides. A number is the error in multiples of the limit."
)
GAP = '<td class="gap"></td>'


def heat(results: Sequence[tuple[Result, str]]) -> str:
    """A map for each precision that one of the results ran; each result comes with its letter."""
    dtypes = dict.fromkeys(run.dtype for result, _ in results for run in result.runs)
    maps = "".join(f"<h3>{dtype}</h3>{_map(results, dtype)}" for dtype in dtypes)
    legend = "".join(f'<span><i class="h{step}"></i>{word}</span>' for step, word in enumerate(WORDS))
    return f'<div class="legend">{legend}</div>{maps}'


def badge(letter: str) -> str:
    """A machine's letter in a circle, where there are two."""
    return f'<span class="letter">{letter}</span> ' if letter else ""


def _map(results: Sequence[tuple[Result, str]], dtype: str) -> str:
    held = [(run, result, letter) for result, letter in results for run in result.runs if run.dtype == dtype]
    lengths = held[0][1].lengths
    each = f'<th scope="col">all</th>{"".join(f"<th scope=col>{length}</th>" for length in lengths)}'
    top = GAP.join(
        f'<th colspan="{len(lengths) + 1}" scope="colgroup">{badge(letter)}{escape(result.target)}</th>'
        for _, result, letter in held
    )
    head = f"<tr><td></td>{top}</tr><tr><td>tokens</td>{GAP.join([each] * len(held))}</tr>"
    rows = "".join(_row(place, [run for run, _, _ in held]) for place in range(len(held[0][0].readings)))
    return f'<div class="scroll"><table class="heat"><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _row(place: int, runs: Sequence[Run]) -> str:
    readings = [run.readings[place] for run in runs]
    parts = any(run.first is reading for run, reading in zip(runs, readings, strict=True))
    mark = ' <span class="verdict no">parts here</span>' if parts else ""
    cells = GAP.join("".join(_cells(reading)) for reading in readings)
    return (
        f'<tr{" class=parts" * parts}><th scope="row">{escape(readings[0].node)}{mark}'
        f"<small>{escape(_kind(readings[0].says))}</small></th>{cells}</tr>"
    )


def _kind(says: str) -> str:
    """Of an attention its type and what it sees; of others all that is said."""
    first, *others = says.split(", ", 1)
    seen = re.search(r"(causal|bidirectional|chunked) \([^)]*\)", others[0]) if others else None
    return f"{first}, {seen[0]}" if seen else says


def _cells(reading: Reading) -> Iterator[str]:
    yield _cell(reading.share, "all ")
    for share in reading.shares:
        yield _cell(float("inf") if share is None else share)


def _cell(share: float, more: str = "") -> str:
    step = next((place for place, most in enumerate(STEPS) if share <= most), len(STEPS))
    return f'<td class="{more}h{step}">{_short(share)}</td>'


def _short(share: float) -> str:
    """A multiple of the limit in the room of a cell."""
    if share < 1000 or share == float("inf"):
        return times(share)
    return f"{share / 1e3:.0f}k" if share < 1e6 else f"{share / 1e6:.0f}M" if share < 1e9 else f"{share:.0e}"
