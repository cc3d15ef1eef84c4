"""Texts that a model writes itself: what they cost another form of it tells more than random tokens do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import feed
from headrace.backends.onnx import names
from headrace.backends.onnx.check.cases import Case
from headrace.backends.onnx.check.past import LOGITS, Rows
from headrace.backends.onnx.names import Past
from headrace.backends.onnx.session import Session
from headrace.ir import Program

TEXTS, TOKENS = 4, 32


def written(program: Program, session: Session, pasts: Mapping[str, Past]) -> Case:
    """A batch of texts of one length, each token but the first drawn as the file's logits have it."""
    random = np.random.default_rng(0)
    longest = program.facts.limits.length if program.facts.limits.length else TOKENS
    ids = feed.random_ids(program.signature, random, TEXTS)[:, None]
    held = {one.before: np.zeros(one.shape(0, TEXTS), np.float32) for one in pasts.values()}
    while ids.shape[1] < min(TOKENS, longest):
        feeds = {
            names.IDS: ids[:, -1:],
            names.PADDING: np.ones_like(ids),
            names.POSITIONS: np.full((TEXTS, 1), ids.shape[1] - 1),
        }
        logits, *presents = session.run_for({**feeds, **held}, [LOGITS, *(one.after for one in pasts.values())])
        held = {one.before: present for one, present in zip(pasts.values(), presents, strict=True)}
        # The largest of logits and Gumbel's noise is drawn as their softmax says.
        drawn = (logits[:, -1] + random.gumbel(size=logits[:, -1].shape)).argmax(-1)
        ids = np.concatenate([ids, drawn[:, None]], 1)
    return Case(tuple(map(tuple, ids.tolist())), left=False)


@dataclass(frozen=True)
class Perplexity:
    """How many tokens a model wavers between, on average, at each place of some texts."""

    found: float
    wanted: float

    @property
    def ratio(self) -> float:
        """In multiples of the one wanted."""
        return self.found / self.wanted

    def __str__(self) -> str:
        """E.g. `perplexity 12.31 where float32's is 11.80`."""
        return f"perplexity {self.found:.2f} where float32's is {self.wanted:.2f}"


def perplexity(case: Case, found: Sequence[Rows], wanted: Sequence[NDArray[Any]]) -> Perplexity:
    """Of the case's texts, by logits of their tokens by place, beside those wanted [tokens, V]."""
    places = [(row, place) for row, rows in enumerate(found) for place in rows if place + 1 < len(case.ids[row])]
    following = np.array([case.ids[row][place + 1] for row, place in places])
    made = (np.stack([side[row][place] for row, place in places]) for side in (found, wanted))
    return Perplexity(*(_perplexity(logits, following) for logits in made))


def _perplexity(logits: NDArray[Any], following: NDArray[Any]) -> float:
    """Of tokens [n], each by the logits [n, V] of the one before it."""
    wide = logits.astype(np.float64) - logits.max(1, keepdims=True)
    logarithms = wide[np.arange(len(following)), following] - np.log(np.exp(wide).sum(1))
    return float(np.exp(-logarithms.mean()))
