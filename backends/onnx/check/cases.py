"""Requests and the answers that a model file must give: what an export is held against, and wherever it lands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import feed
from headrace.backends.onnx import names
from headrace.backends.onnx.session import Session
from headrace.ir import PER_TOKEN_OUTPUTS, Output, PaddingRule, Program, Role

# Lengths of the sequences of each batch, none of them the trace's. The last one is asked for on both sides.
BATCHES = ((1,), (11,), (5, 9, 2), (1, 17), (33, 20, 33, 6))
# So many values of an answer are recorded, of the last real row where there is one a token.
RECORDED = 16


@dataclass(frozen=True)
class Case:
    """One batch: the token ids of each sequence, and the side of their padding.

    `paired` says that the second half of each sequence is a second text, of token type 1.
    `targets` are what a decoder is given beside an encoder's texts, of one length.
    `answers` holds for each output and sequence the values that the oracle gave, the recorded ones alone.
    """

    ids: tuple[tuple[int, ...], ...]
    left: bool
    paired: bool = False
    answers: tuple[tuple[str, tuple[tuple[float, ...], ...]], ...] = ()
    targets: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        """E.g. `5 + 9 + 2 tokens, padded left`."""
        lengths = " + ".join(str(len(row)) for row in self.ids)
        padded = len({len(row) for row in self.ids}) > 1
        beside = f" and targets of {len(self.targets[0])}" if self.targets else ""
        return f"{lengths} tokens{beside}" + (f", padded {'left' if self.left else 'right'}" if padded else "")


def make_cases(program: Program, lengths_only: bool) -> Iterator[Case]:
    """Batches of pseudorandom tokens within the program's limits, padded on both sides where it can be said.

    Args:
        lengths_only: whether the model file takes lengths, which say nothing of padding on the left.
    """
    longest = program.facts.limits.length or max(map(max, BATCHES))
    random = np.random.default_rng(0)
    for batch in BATCHES:
        lengths = [min(length, longest) for length in batch]
        if program.decision.padding is PaddingRule.UNPADDED:
            lengths = lengths[:1]
        ids = tuple(tuple(feed.random_ids(program.signature, random, length).tolist()) for length in lengths)
        paired = (program.signature.token_types or 1) > 1
        yield Case(ids, left=False, paired=paired)
        if len(set(lengths)) > 1 and not lengths_only:
            yield Case(ids, left=True, paired=paired)


def types_of(case: Case, row: int) -> NDArray[np.int64]:
    """The token types of one sequence."""
    length = len(case.ids[row])
    return (np.arange(length) >= (length + 1) // 2).astype(np.int64) * case.paired


def feeds(case: Case, inputs: Iterable[str]) -> dict[str, NDArray[np.int64]]:
    """The batch as the model file's inputs."""
    values = by_role(case)
    known = {names.INPUTS[role]: array for role, array in values.items()}
    known[names.LENGTHS] = values[Role.PADDING].sum(1)
    return {name: known[name] for name in inputs}


def by_role(case: Case) -> dict[Role, NDArray[np.int64]]:
    """The batch as a program takes it, whose positions begin at 0: no model file reads any."""
    types = [types_of(case, row) for row in range(len(case.ids))]
    return feed.padded(case.ids, types, left=case.left)


def answered(case: Case, session: Session, outputs: Sequence[Output]) -> list[list[NDArray[Any]]]:
    """What the model file answers for each output and sequence: [width], or [tokens, width] of the real tokens."""
    found = session.run_for(feeds(case, session.inputs), [names.OUTPUTS[output.kind] for output in outputs])
    return [real_rows(case, values, output) for values, output in zip(found, outputs, strict=True)]


def real_rows(case: Case, found: NDArray[Any], output: Output) -> list[NDArray[Any]]:
    """One output of a batch, sequence by sequence, without its padding."""
    if output.kind not in PER_TOKEN_OUTPUTS:
        return list(found)
    width = found.shape[1]
    return [row[width - len(own) :] if case.left else row[: len(own)] for row, own in zip(found, case.ids, strict=True)]


def recorded(answer: NDArray[Any]) -> tuple[float, ...]:
    """The values of an answer that are kept."""
    row = answer[-1] if answer.ndim > 1 else answer
    return tuple(float(value) for value in row[:RECORDED])


@dataclass(frozen=True)
class Distance:
    """How far answers lie from those wanted: the largest difference relative to the largest value, least cosine."""

    worst: float
    cosine: float

    def joined(self, other: Distance) -> Distance:
        """The worse of both."""
        return Distance(max(self.worst, other.worst), min(self.cosine, other.cosine))


def distance(got: Sequence[NDArray[Any]], wanted: Sequence[NDArray[Any]]) -> Distance:
    """Between answers of one output, sequence by sequence."""
    found = Distance(0.0, 1.0)
    for mine, theirs in zip(got, wanted, strict=True):
        one, other = np.asarray(mine, np.float64), np.asarray(theirs, np.float64)
        if not np.isfinite(one).all():
            return Distance(float("inf"), -1.0)
        worst = float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-12))
        flat, flat_other = one.ravel(), other.ravel()
        length = float(np.linalg.norm(flat) * np.linalg.norm(flat_other))
        # A single number has no direction.
        cosine = float(flat @ flat_other / length) if length > 0 and flat.size > 1 else 1.0
        found = found.joined(Distance(worst, cosine))
    return found


def replay(case: Case, session: Session, outputs: Mapping[str, Output]) -> Distance:
    """How far the model file, here and now, lies from what was recorded."""
    found = Distance(0.0, 1.0)
    answers = answered(case, session, [outputs[name] for name, _ in case.answers])
    for rows, (_, values) in zip(answers, case.answers, strict=True):
        got = [np.asarray(recorded(row)) for row in rows]
        found = found.joined(distance(got, [np.asarray(row) for row in values]))
    return found
