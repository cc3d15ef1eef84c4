"""An encoder's and a decoder's files run as their callers run them: a first step, then a token at a time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import feed
from headrace.backends.onnx import names
from headrace.backends.onnx.check.cases import Case, Distance, distance, recorded
from headrace.backends.onnx.names import Past
from headrace.backends.onnx.session import Session
from headrace.ir import OutputKind, Role

LOGITS, ROWS = names.OUTPUTS[OutputKind.VOCABULARY_LOGITS], names.OUTPUTS[OutputKind.HIDDEN]
# So many tokens of a target are run in the first step.
FIRST = 2
Given = dict[str, NDArray[Any]]


def replay_crossed(case: Case, sessions: Sequence[Session], pasts: Mapping[str, Past]) -> Distance:
    """How far the files, an encoder's and a decoder's, lie here and now from what was recorded of the last tokens."""
    given = feed.padded(case.ids)
    texts = {names.INPUTS[role]: given[role] for role in (Role.IDS, Role.PADDING)}
    found = stepped(sessions, texts, np.array(case.targets), pasts)
    ((_, wanted),) = case.answers
    return distance([np.asarray(recorded(rows)) for rows in found], [np.asarray(rows) for rows in wanted])


def stepped(
    sessions: Sequence[Session], given: Given, target: NDArray[Any], pasts: Mapping[str, Past]
) -> NDArray[Any]:  # fmt: skip
    """The logits of targets [B, T] beside texts, as a caller of the files makes them: [B, T or less, V]."""
    encoder, decoder = sessions
    held = {one.before: np.zeros(one.shape(0, len(target)), np.float32) for one in pasts.values()}
    known = {names.ENCODED_ROWS: encoder.run(given, ROWS)}
    if names.PADDING in encoder.inputs:
        known[names.ENCODED_PADDING] = given[names.PADDING]
    found, bounds = list[NDArray[Any]](), [0, FIRST, *range(FIRST + 1, target.shape[1] + 1)]
    for begin, end in itertools.pairwise(bounds):
        step = known | held | {names.IDS: target[:, begin:end], names.CACHED: np.array([begin > 0])}
        logits, *presents = decoder.run_for(step, [LOGITS, *(_present(name) for name in held)])
        held = dict(zip(held, presents, strict=True))
        found.append(logits)
    return np.concatenate(found, 1)


def _present(past: str) -> str:
    return past.replace("past_key_values", "present")
