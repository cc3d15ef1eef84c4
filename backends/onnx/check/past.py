"""A file with a past held against the cached program: prompts in pieces, padded, then a token at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.backends.onnx import names
from headrace.backends.onnx.check.cases import Case, Distance, by_role, distance, recorded
from headrace.backends.onnx.names import Past
from headrace.backends.onnx.session import Session
from headrace.ir import OutputKind, Role

LOGITS = names.OUTPUTS[OutputKind.VOCABULARY_LOGITS]
# So many tokens at the end of a batch are run one by one.
SINGLE = 2
Rows = dict[int, NDArray[Any]]


def pieces(width: int) -> Iterator[tuple[int, int]]:
    """Where the pieces of a batch begin and end: halves of what comes before the last tokens, then each of these."""
    single = min(SINGLE, width - 1)
    middle, whole = (width - single) // 2, width - single
    bounds = [0, *dict.fromkeys((middle, whole)), *range(whole + 1, width + 1)]
    yield from ((begin, end) for begin, end in itertools.pairwise(bounds) if end > begin)


def grown(case: Case, session: Session, pasts: Mapping[str, Past]) -> list[Rows]:
    """The logits that the file gives of each sequence, by the place of the token: those of its real tokens."""
    given, found = by_role(case), [Rows() for _ in case.ids]
    count, width = given[Role.IDS].shape
    first = [width - len(own) if case.left else 0 for own in case.ids]
    held = {one.before: np.zeros(one.shape(0, count), np.float32) for one in pasts.values()}
    for begin, end in pieces(width):
        feeds = {
            names.IDS: given[Role.IDS][:, begin:end],
            names.PADDING: given[Role.PADDING][:, :end],
            names.POSITIONS: given[Role.POSITIONS][:, begin:end],
        }
        logits, *presents = session.run_for({**feeds, **held}, [LOGITS, *(one.after for one in pasts.values())])
        held = {one.before: present for one, present in zip(pasts.values(), presents, strict=True)}
        for row, own in enumerate(case.ids):
            for place in range(end - logits.shape[1], end):
                if first[row] <= place < first[row] + len(own):
                    found[row][place - first[row]] = logits[row, place - end]
    return found


def replay_grown(case: Case, session: Session, pasts: Mapping[str, Past]) -> Distance:
    """How far the file, here and now, lies from what was recorded of the last token that it returned logits of."""
    ((_, values),) = case.answers
    found = grown(case, session, pasts)
    got = [np.asarray(recorded(rows[max(rows)])) for rows in found if rows]
    return distance(got, [np.asarray(row) for row, rows in zip(values, found, strict=True) if rows])
