"""docs/coverage.md: the rows as a page that a person reads, worst news first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from headrace.ir import AttentionType

Record = dict[str, Any]
WITHIN, REFUSED, UNPROVEN, WRONG, BROKEN, UNBUILT = "served", "refused", "unproven", "differs", "broken", "not built"
EXPLAINED = {
    WITHIN: "typed, every attention proven by the probe, and within contract D1 of the eager float32 model",
    REFUSED: "refused with a reason",
    UNPROVEN: "served, but the probe could not prove an attention",
    WRONG: "differs from the eager model by more than contract D1 allows",
    BROKEN: "failed in a way that is no refusal",
}


INTRODUCTION = """\
Every text architecture of transformers that a tiny configuration builds and that runs on token ids alone is here, under
each of the auto classes AutoModel, MaskedLM, CausalLM, SequenceClassification, TokenClassification and Seq2SeqLM that
knows it; then variants that a flag makes, and image and audio models. Weights are random. Each row was traced, typed,
probed, and run at the shapes (1, 1), (1, 7), (3, 11) and (2, 64) against the eager Hugging Face model in float32 on
each text alone: padded on the right, as Headrace pads, and on the left where nothing in the graph counts from the first
column (a position, a recurrent state, a decoder's target made from the text). *Recovered* counts the
attentions that the model's own code computes and that were found in its graph. *Worst* is the largest difference of any
output, *allowed* what contract D1 allows there: max(1e-5, 4 x the eager model's own distance from float64). *Generates*
is of the rows whose head continues texts and whose attention sees no later token: compiled for the task generate on the
target reference, two prompts of 5 and 11 tokens go on together, 4 tokens a step, by the 8 tokens that transformers'
`generate` makes of each alone, greedily. A row that could and has no answer was not compared.
"""


def status(record: Record) -> str:
    """Which of the statuses a row has."""
    if record["unbuilt"]:
        return UNBUILT
    if record["broken"]:
        return BROKEN
    if record["refused"]:
        return REFUSED
    if record["within"]:
        return WITHIN
    return WRONG if record["verified"] else UNPROVEN


def summary(records: list[Record]) -> str:
    """One sentence: how many of how many."""
    built = [record for record in records if status(record) != UNBUILT]
    architectures = {record["architecture"] for record in built}
    served = sum(status(record) == WITHIN for record in built)
    share = 100 * served / max(1, len(built))
    return f"{served} of {len(built)} rows ({share:.1f}%) of {len(architectures)} architectures are served."


def generating(records: list[Record]) -> str:
    """One sentence: how many of the rows that are served and could generate do."""
    asked = [record for record in records if status(record) == WITHIN and record["generates"] is not None]
    able = sum(record["generates"] is True for record in asked)
    return (
        f"{able} of {len(asked)} ({100 * able / max(1, len(asked)):.1f}%) generate the tokens that transformers does."
    )


def document(records: list[Record], versions: str) -> str:
    """The whole page."""
    return "\n".join(_lines(records, versions)) + "\n"


def _lines(records: list[Record], versions: str) -> Iterator[str]:
    yield "# Coverage"
    yield ""
    yield f"Written by `docs/make_coverage.py` (`make coverage`) with {versions}; do not edit. {summary(records)} "
    yield f"Of those whose head continues texts, {generating(records)}"
    yield ""
    yield INTRODUCTION
    counts = Counter(map(status, records))
    for name, meaning in EXPLAINED.items():
        yield f"- **{counts[name]} {name}**: {meaning}."
    yield f"- {counts[UNBUILT]} not counted: transformers itself could not build or run them small (listed at the end)."
    yield ""
    yield from _table(records)
    yield from _differing(records)
    yield from _recurring(records)
    yield from _reasons(records)
    yield from _unbuilt(records)


def _table(records: list[Record]) -> Iterator[str]:
    columns = (
        "architecture", "head", "status", "types by call", "recovered", "state", "worst", "allowed", "packed", "cached",
        "generates", "s",
    )  # fmt: skip
    yield f"| {' | '.join(columns)} |"
    yield f"| {' | '.join('---' for _ in columns)} |"
    for record in records:
        if status(record) == UNBUILT:
            continue
        worst, allowed = (_number(record[name]) for name in ("worst_difference", "allowed"))
        cells = (
            record["architecture"],
            record["head"].removeprefix("AutoModelFor").replace("AutoModel", "none"),
            status(record),
            _types(record["types"]),
            str(record["recovered"] or ""),
            (record["route"] or "").removesuffix("State"),
            worst,
            allowed,
            *(
                "yes" if record[name] is True else "no" if record[name] else ""
                for name in ("packed", "cached", "generates")
            ),
            str(record["seconds"]),
        )
        yield "| " + " | ".join(cells) + " |"
    yield ""


def _differing(records: list[Record]) -> Iterator[str]:
    """What is past contract D1, beside what float32 leaves open in the eager model's own answer."""
    rows = [record for record in records if status(record) == WRONG]
    if rows:
        yield "## Differs, and by what float32 leaves open"
        yield ""
    for record in rows:
        worst, allowed, moved = (_number(record[name]) for name in ("worst_difference", "allowed", "moved"))
        yield (
            f"- {record['architecture']} {record['head'].removeprefix('Auto')}: {worst}, where {allowed} is allowed. "
            f"The eager model's own answer moves by {moved} when its weights change in the last bit: its distance from "
            "float64, which the allowance is made of, is small here by chance."
        )
    if rows:
        yield ""


def _recurring(records: list[Record]) -> Iterator[str]:
    """Whether each row that recurs, or convolves along the tokens, runs without padding, and what keeps it from it."""
    rows = [record for record in records if not record["unbuilt"] and recurrences(record)]
    if not rows:
        return
    packed = sum(record["packed"] is True for record in rows)
    yield "## Recurrences, packed or why not"
    yield ""
    yield f"{packed} of {len(rows)} rows with a recurrence run packed: each sequence of a row begins from nothing."
    yield ""
    yield "| architecture | head | recurrences | packed |"
    yield "| --- | --- | --- | --- |"
    for record in rows:
        head = record["head"].removeprefix("AutoModelFor").replace("AutoModel", "none")
        found = ", ".join(dict.fromkeys(recurrences(record)))
        why = "yes" if record["packed"] is True else _one_line(str(record["packed"] or record["refused"] or ""))
        yield f"| {record['architecture']} | {head} | {found} | {why} |"
    yield ""


def recurrences(record: Record) -> list[str]:
    """The operators of a row that are no attention, in call order."""
    return [name for name in record["types"] if name.partition(" ")[0] not in set(AttentionType)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _answer(value: bool | str | None) -> str:
    return "yes" if value is True else "no" if value else ""


def _types(types: list[str]) -> str:
    runs = [(name, len(list(run))) for name, run in groupby(types)]
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in runs)


def _reasons(records: list[Record]) -> Iterator[str]:
    """Every reason once, with the rows that it holds for."""
    for field, heading in (
        ("refused", "Refused, and why"),
        ("broken", "Broken"),
        ("packed", "Why a row is not packed"),
        ("cached", "Why keys and values are not cached"),
        ("generates", "Why a row does not generate"),
    ):
        rows = defaultdict(list)
        for record in records:
            if isinstance(record[field], str):
                rows[record[field]].append(f"{record['architecture']} {record['head'].removeprefix('Auto')}")
        if rows:
            yield f"## {heading}"
            yield ""
        for reason, names in sorted(rows.items(), key=lambda item: -len(item[1])):
            yield f"- {_one_line(reason)} ({len(names)}: {', '.join(names[:6])}{', ...' if len(names) > 6 else ''})"
        if rows:
            yield ""


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _unbuilt(records: list[Record]) -> Iterator[str]:
    rows = [record for record in records if status(record) == UNBUILT]
    if not rows:
        return
    yield "## Not built"
    yield ""
    for record in rows:
        yield f"- {record['architecture']} {record['head'].removeprefix('Auto')}: {_one_line(record['unbuilt'])}"
    yield ""
