"""score: how well the two texts of a pair fit; and documents ranked by it."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import InputError
from headrace.runtime.tasks.answers.mapping import Record
from headrace.runtime.tasks.classify import Raw, classified
from headrace.runtime.tasks.interface import Answering, Call, Prompt, PromptName
from headrace.runtime.text.columns import unpacked
from headrace.runtime.text.prompts import one_prompt
from headrace.runtime.text.validate import counts, many


@dataclass(frozen=True)
class Ranked(Record):
    """A document's place in the list that was ranked, its score, and the document itself where it was asked for."""

    index: int
    score: float
    document: str | None = None


def score(
    call: Call, pairs: Any, prompt: Prompt = None, raw: Raw = False, prompt_name: PromptName = None
) -> list[float]:
    """See `CompiledModel.score`."""
    listed = call.drawn(pairs, pairs=True)
    for number, one in enumerate(listed, call.first):
        if not isinstance(one, (tuple, list)) or len(one) != 2:
            raise InputError(f"Request {number} is {reprlib.repr(one)}; score takes pairs of texts: tuples of two.")
    return [found.score for found in classified(call, listed, one_prompt(call.program, prompt, prompt_name), raw)]


def read_documents(documents: Any, top_k: int | None) -> list[Any]:
    """The documents to rank, one alone as a list of one.

    Raises:
        InputError: `top_k` is no number of documents.
    """
    if top_k is not None and not counts(top_k):
        raise InputError(f"top_k is {top_k!r}; an int of 1 and above is accepted.")
    documents = unpacked(documents, "The documents")
    # Their length is not asked: a nested tensor has none, and says so by an error of its own.
    return list(iter(documents)) if many(documents, "The documents") else [documents]


def ranked(scores: Sequence[float], documents: Sequence[Any] | None, top_k: int | None) -> list[Ranked]:
    """The best of the documents by their scores, best first; of like scores, the first.

    Args:
        documents: where they are to be returned.
    """
    best = sorted(range(len(scores)), key=lambda place: -scores[place])[:top_k]
    return [Ranked(place, float(scores[place]), None if documents is None else documents[place]) for place in best]


TASK = Answering(score)
