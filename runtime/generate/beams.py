"""Beam search as transformers has it: several continuations are followed at once, and the best whole one wins.

The device keeps what is wide, the scores of all tokens of all beams; the host is told of the few best of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.ir import Beams, BeamStop
from headrace.runtime.generate.answer import Start
from headrace.runtime.generate.batch import SamplingBatch
from headrace.runtime.generate.generation import Generation
from headrace.runtime.generate.row import Row
from headrace.runtime.generate.sampling import adjust, unpack
from headrace.runtime.generate.stopping import FinishReason

Ids = NDArray[np.int64]
Scores = NDArray[np.float32]
# What rules a candidate out, where transformers adds it to a score.
OUT = np.float32(-1e9)


class Candidates(NamedTuple):
    """The likeliest continuations of each prompt's beams, the best first.

    Attributes:
        scores: the sum of the logarithms of their tokens' probabilities, float32 [p, k].
        tokens: what each goes on with, int64 [p, k].
        beams: which of the prompt's beams it goes on from, int64 [p, k].
    """

    scores: Tensor
    tokens: Tensor
    beams: Tensor


def find_candidates(logits: Tensor, rows: SamplingBatch, scores: Tensor, beams: Beams, keep: int) -> Candidates:
    """The best continuations of some prompts, `beams.count` rows after one another for each.

    Args:
        logits: [p * count, V].
        rows: what rules are asked of them; nothing is drawn.
        scores: of the beams so far, float32 [p * count].
        keep: how many are told of a prompt.
    """
    known = adjust(logits.float().log_softmax(-1), rows)
    if rows.allowed is not None:
        left = unpack(rows.allowed, logits.shape[1])
        known = known.masked_fill(left & ~left.all(-1, keepdim=True), 0)  # what a rule forces costs a beam nothing
    if beams.renormalize:
        known = known.log_softmax(-1)
    width = logits.shape[1]
    best = (known + scores[:, None]).view(-1, beams.count * width).topk(keep)
    return Candidates(best.values, best.indices % width, best.indices // width)


class BeamSearch:
    """The beams of one prompt.

    Attributes:
        scores: of each beam, float32 [count].
        keep: how many continuations it is told of: enough that `count` of them are not at an end.
        done: whether nothing better is to come.
    """

    def __init__(self, start: Start, beams: Beams, width: int) -> None:
        """Begin with the same beam so many times, of which the first alone counts.

        Args:
            width: how many tokens the head has logits for.
        """
        self._start, self._beams = start, beams
        count = beams.count
        self.keep = min(max(2, 1 + len(start.ends)) * count, count * width)
        self.scores: Scores = np.array([0, *[OUT] * (count - 1)], np.float32)
        self.done = False
        self._place = 0
        self._ids = np.zeros((count, start.most), np.int64)
        # Of whole texts the best, as many as beams: placeholders before there are so many.
        self._whole: list[Ids] = [np.empty(0, np.int64)] * count
        self._whole_scores = np.full(count, OUT, np.float32)
        self._is_whole = np.zeros(count, bool)

    @property
    def rows(self) -> list[Row]:
        """What the next token of each beam is asked for."""
        return [self._start.row(new[: self._place]) for new in self._ids]

    def step(self, scores: Scores, tokens: Ids, beams: Ids) -> Ids:
        """Go on with the best continuations.

        Args:
            scores, tokens, beams: the prompt's row of `Candidates`, [keep] each.

        Returns:
            The beam that each goes on from, int64 [count]: its state is what the state of that one was.
        """
        made = np.concatenate([self._ids[beams, : self._place], tokens[:, None]], 1)
        self._place += 1
        ended = np.isin(tokens, self._start.ends) | (self._place >= self._start.most)
        running = np.where(ended, scores + OUT, scores)
        best = _best(running, self._beams.count)
        self._keep_whole(made, scores, ended)
        self.scores = running[best]
        self._ids[:, : self._place] = made[best]
        self.done = self._is_done(bool(ended.all()))
        return beams[best]

    def generation(self) -> Generation:
        """The best whole text."""
        assert self.done, "the search goes on"
        ids = self._whole[0]
        ends = len(ids) > 0 and bool(np.isin(ids[-1], self._start.ends))
        vocabulary = self._start.vocabulary
        text = "" if vocabulary is None else vocabulary.decode(ids[: len(ids) - ends].tolist())
        reason = FinishReason.STOP if ends else FinishReason.LENGTH
        return Generation(text, tuple(ids.tolist()), reason, self._start.tokens)

    def _keep_whole(self, made: Ids, scores: Scores, ended: NDArray[np.bool_]) -> None:
        """Take those that ended and are among the best among the whole ones, by their score over their length."""
        count = self._beams.count
        among = ended & (np.arange(len(scores)) < count)
        measured = scores / np.float32(self._place**self._beams.length_penalty)
        measured = np.where(among, measured, OUT)
        merged = np.concatenate([self._whole_scores, measured.astype(np.float32)])
        best = _best(merged, count)
        texts = [*self._whole, *made]
        self._whole = [texts[i] for i in best]
        self._whole_scores, self._is_whole = merged[best], np.concatenate([self._is_whole, among])[best]

    def _is_done(self, all_ended: bool) -> bool:
        """Whether no beam is likely, or able, to beat the worst of the whole texts, or the folder asks for no more."""
        beams = self._beams
        longest = beams.stop is BeamStop.NEVER and beams.length_penalty > 0
        length = self._start.most if longest else self._place
        possible = self.scores[0] / np.float32(length**beams.length_penalty)
        worst = np.where(self._is_whole, self._whole_scores.min(), OUT)
        enough = beams.stop is BeamStop.FIRST and bool(self._is_whole.all())
        return enough or all_ended or not bool((possible > worst).any())


def _best(scores: Scores, count: int) -> NDArray[np.intp]:
    """The places of the highest, the first of equal ones before the others."""
    return np.argsort(-scores, kind="stable")[:count]


def held_scores(searches: Sequence[BeamSearch], device: torch.device | str = "cpu") -> Tensor:
    """The scores of all beams of some prompts, in their order: float32 [p * count]."""
    return torch.from_numpy(np.concatenate([one.scores for one in searches])).to(device)
