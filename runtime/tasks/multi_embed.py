"""multi_embed: a text as many vectors, of which those that score are kept: late interaction (arXiv 2004.12832)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.ir import Interaction
from headrace.runtime.tasks.answers.records import shortest
from headrace.runtime.tasks.interface import Answering, Call, Command, Each, Prompt, PromptName
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.prompts import one_prompt, side_prompt

Floats = NDArray[np.float32]
QUERY, DOCUMENT = "query", "document"


def multi_embed(
    call: Call,
    texts: Any,
    side: Annotated[str, "query or document: they are filled, cut and scored each in its own way."] = DOCUMENT,
    prompt: Prompt = None,
    prompt_name: PromptName = None,
) -> list[Floats]:
    """See `CompiledModel.multi_embed`."""
    if side not in (QUERY, DOCUMENT):
        raise InputError(f"side is {side!r}; {QUERY} and {DOCUMENT} are accepted.")
    call.lane()
    rules = call.program.facts.interaction or Interaction()
    chosen = one_prompt(call.program, prompt, prompt_name)
    reader = call.texts().limited(length_of(rules, side), f"the model's {side} length")
    listed = call.drawn(texts)
    kept, places = call.once(listed)
    read = reader.ahead(
        kept, truncate=call.truncate, places=places, sizes=call.sizes(),
        prompt=side_prompt(call.program, side) if chosen is None else chosen,
    )  # fmt: skip
    scoring: list[NDArray[np.bool_]] = []
    rows = call.rows_of(_filled(read, rules, side, scoring), len(kept), places)
    return [np.asarray(one)[scored] for one, scored in zip(rows, places.spread(scoring), strict=True)]


def length_of(rules: Interaction, side: str) -> int | None:
    """The tokens that a text of that side is cut to, None where the text's own rule holds."""
    if side == DOCUMENT:
        return rules.document_length
    if rules.expansion is None:
        return rules.query_length
    least = rules.expansion.length
    return least if rules.expansion.fixed else None if rules.query_length is None else max(rules.query_length, least)


def _filled(
    parts: Iterator[Sequence[Encoded]], rules: Interaction, side: str, scoring: list[NDArray[np.bool_]]
) -> Iterator[Sequence[Encoded]]:
    """Queries filled up, as they come; which tokens of each score is added to `scoring`."""
    for part in parts:
        fills = side == QUERY and rules.expansion is not None
        made = [one.expanded(rules.expansion) for one in part] if fills and rules.expansion else part
        scoring += [scores(one.ids, rules, side) for one in made]
        yield made


def scores(ids: NDArray[np.int64], rules: Interaction, side: str) -> NDArray[np.bool_]:
    """Which tokens of a text score."""
    kept = np.arange(len(ids)) >= rules.begins
    if rules.skipped and side in rules.skips_in:
        kept &= ~np.isin(ids, rules.skipped)
    if rules.kept and side == DOCUMENT:
        kept &= np.isin(ids, rules.kept)
    return kept


def each(call: Call) -> Each:
    """A document's vectors, where documents are read as any other text is.

    Raises:
        InputError: they are not.
    """
    rules, text = call.program.facts.interaction or Interaction(), call.program.facts.text
    if length_of(rules, DOCUMENT) is not None or text.default_prompt or side_prompt(call.program, DOCUMENT):
        raise InputError(
            "multi_embed cuts this model's documents to a length of their own, or puts a prompt before them, and "
            "shares no pass: ask for it alone, by model.multi_embed(...)."
        )
    return Each(lambda row, one: row[scores(one.ids, rules, DOCUMENT)])


def record(vectors: Floats) -> dict[str, Any]:
    """The vectors of a text as JSON."""
    return {"embeddings": [[shortest(value) for value in vector] for vector in vectors]}


TASK = Answering(
    multi_embed, Command('A vector for each token that scores: {"embeddings": [[...], ...]}.', record), each
)
