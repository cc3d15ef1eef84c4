"""The beams of one prompt as sequences of a loop: they share what they have in common, and part where they do."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.errors import OutOfMemoryError
from headrace.ir import Beams
from headrace.runtime.cache.store import Held
from headrace.runtime.engine.decoding import DecodingLoop
from headrace.runtime.engine.sequence import Sequence
from headrace.runtime.generate.answer import Start
from headrace.runtime.generate.batch import batched
from headrace.runtime.generate.beams import BeamSearch, find_candidates, held_scores
from headrace.runtime.generate.generation import Generation


class BeamGroup:
    """One answer, found by a beam search. It begins as one sequence, its lead, which callers wait for.

    Attributes:
        start: the prompt and its rules.
        index: of the answer among those to its prompt: there is one.
    """

    index = 0

    def __init__(self, start: Start, beams: Beams, width: int, loop: DecodingLoop) -> None:
        """Begin with no token; `width` is that of the logits."""
        self.start, self._beams, self._loop = start, beams, loop
        self._search = BeamSearch(start, beams, width)
        self._members: list[Sequence] = []
        self._rows: dict[Sequence, Tensor] = {}
        self._told = False

    @property
    def new(self) -> NDArray[np.int64]:
        """The tokens of the best text, once it is found."""
        return np.array(self.generation().token_ids if self._search.done else (), np.int64)

    def take(self) -> str:
        """The best text, once; nothing before it is found, since another beam may win."""
        if self._told or not self._search.done:
            return ""
        self._told = True
        return self.generation().text

    def generation(self) -> Generation:
        """The answer."""
        return self._search.generation()

    def arrive(self, sequence: Sequence, logits: Tensor) -> None:
        """Take one beam's logits [vocabulary]; with the last of them all go on."""
        if not self._members:
            self._members = [sequence]
        self._rows[sequence] = logits.clone()  # the next step may write where these lie
        if all(one in self._rows and one.held is not None and not one.left for one in self._members):
            self._advance()

    def _advance(self) -> None:
        count, members = self._beams.count, self._members
        logits = torch.stack([self._rows[one] for one in members])
        self._rows = {}
        rows = batched(self._search.rows, logits.shape[1], logits.device)
        scores = held_scores([self._search], logits.device)
        whole = logits if len(members) == count else logits.expand(count, -1)
        found = find_candidates(whole, rows, scores, self._beams, self._search.keep)
        parents = self._search.step(*(part[0].cpu().numpy() for part in found))
        lead = members[0]
        if self._search.done:
            lead.finished = self.generation().finish_reason.value
            return
        came = [members[parent if len(members) == count else 0] for parent in parents.tolist()]
        made = [[*one.tokens, int(row.new[-1])] for one, row in zip(came, self._search.rows, strict=True)]
        held = self._parted(came)
        if held is None:
            told = f"The caches have no room for {count} beams. Compile with a larger cache_bytes."
            lead.fail(OutOfMemoryError(told))
            return
        self._members = members + [Sequence(lead.number, [], lead.prompt, None, self) for _ in held[len(members) :]]
        for sequence, own, tokens in zip(self._members, held, made, strict=True):
            sequence.held, sequence.tokens = own, tokens
        lead.others = self._members[1:]
        self._loop.scheduler.running += self._members[len(members) :]

    def _parted(self, came: list[Sequence]) -> list[Held] | None:
        """What each beam goes on from: the first that comes of a sequence takes what that holds, the others a copy.

        Returns:
            None where there is no room for the copies.
        """
        state, kept, held = self._loop.lane.state, set[Sequence](), list[Held]()
        for one in came:
            assert one.held is not None
            own = one.held if one not in kept else state.fork(one.held)
            if own is None:
                return None
            held.append(own)
            kept.add(one)
        for one in set(self._members) - kept:
            assert one.held is not None
            state.release(one.held)
        return held
