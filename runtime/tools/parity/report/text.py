"""Results for people: the verdict, then what fails, worst first, then every node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from headrace.errors import ParityError
from headrace.runtime.tools.inspect.tables import aligned, paragraph
from headrace.runtime.tools.parity.bundle import RECORDED, read_bundle
from headrace.runtime.tools.parity.check.findings import Culprit, Reading, Result, Run, read_result

SAME = "The two machines differ in nothing that was recorded."


def read(path: Path) -> Result:
    """A result by its file, or what the recording machine made of a bundle.

    Raises:
        ParityError: it is neither, or damaged.
    """
    if not path.is_dir():
        return read_result(path)
    # It was written before the bundle was whole and had a digest.
    return replace(read_result(path / RECORDED), bundle=read_bundle(path).digest)


def report_text(results: Sequence[Result]) -> str:
    """One result, or several below one another, with what their machines differ in."""
    require_one_bundle(results)
    parts = ["\n".join(_lines(result)) for result in results]
    if len(results) == 2:
        parts.append("\n".join(_between(*results)))
    return "\n\n".join(parts) + "\n"


def require_one_bundle(results: Sequence[Result]) -> None:
    """Refuse results that are not of one model's one bundle.

    Raises:
        ParityError: they differ; says in what.
    """
    first, *others = [(one.model, one.task, one.lengths, _nodes(one), one.bundle) for one in results]
    names = ("model", "task", "requests", "nodes", "what was recorded")
    for other in others:
        if differs := [name for name, one, two in zip(names, first, other, strict=True) if one != two]:
            raise ParityError(
                f"The two results are of different bundles, by {', '.join(differs)}. Check one bundle on both."
            )


def _nodes(result: Result) -> tuple[str, ...]:
    return tuple(reading.node for reading in result.runs[0].readings)


def verdict(result: Result) -> str:
    """One line."""
    failed = sum(not reading.passed for run in result.runs for reading in run.readings)
    count = sum(len(run.readings) for run in result.runs)
    if not failed:
        return f"PASS: {count} of {count} readings within their limits"
    return f"FAIL: {failed} of {count} readings past their limits"


def _lines(result: Result) -> Iterator[str]:
    yield f"{result.model}, {result.task}, on {result.target} ({result.environment.device})"
    yield f"  {verdict(result)}"
    for dtype, why in result.left_out:
        yield f"  {dtype} was not run: {why}"
    for note in result.notes:
        yield from paragraph(f"  {note}")
    for run in result.runs:
        if not run.passed:
            yield from ("", *_failure(run))
    for run in result.runs:
        yield ""
        yield f"{run.dtype}, {run.layout}"
        yield from aligned([("node", "rmse", "limit", "eager's own", "of limit", ""), *map(_row, run.readings)])


def _row(reading: Reading) -> tuple[str, ...]:
    error = "not a number" if reading.error is None else f"{reading.error:.2e}"
    mark = "" if reading.passed else "FAIL"
    return (reading.node, error, f"{reading.limit:.2e}", f"{reading.floor:.2e}", times(reading.share), mark)


def times(share: float) -> str:
    """A multiple of the limit, for a sentence."""
    return f"{share:.2f}" if share < 10 else f"{share:,.0f}" if share < float("inf") else "inf"


def _failure(run: Run) -> Iterator[str]:
    first, worst = run.first, run.worst
    assert first is not None, "failed runs only"
    yield f"{run.dtype} parts first at {first.node} ({times(first.share)} times its limit)"
    yield f"  worst: {worst.node} ({times(worst.share)} times its limit)"
    if run.culprit is not None:
        yield from (f"  {line}" for line in paragraph(culprit_words(run.culprit)))


def culprit_words(culprit: Culprit) -> str:
    """Where the result parts between two readings."""
    before, after = culprit.between
    if culprit.in_float64:
        return (
            f"{after} parts in float64 too on this machine, before anything is compiled: the model's code here is "
            "another than the one that was recorded"
        )
    if not culprit.node:
        return (
            f"between {before} and {after} no node parts once each returns its values: the difference comes from how "
            "they are compiled together, or lies where no node has a row a token"
        )
    where = f" in {culprit.place}" if culprit.place and culprit.place != "unknown module" else ""
    past = f", {times(culprit.times)} times its limit" if culprit.times else ", not a number"
    return f"between {before} and {after} the first node that parts is {culprit.node} ({culprit.operator}){where}{past}"


def _between(one: Result, other: Result) -> Iterator[str]:
    differences = one.environment.differences(other.environment)
    if not differences:
        yield SAME
        return
    yield "The two machines differ in"
    rows = [(name, a or "none", b or "none") for name, a, b in differences]
    yield from aligned([("", one.target, other.target), *rows])


def report_page(results: Sequence[Result]) -> str:
    """The page of one result, or of two side by side."""
    from headrace.runtime.tools.parity.report.page import page

    require_one_bundle(results)
    return page(results)
