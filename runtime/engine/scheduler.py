"""What a step runs: sequences that make a token each, and prompts in chunks, under a budget. Knows nothing of torch."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from headrace.runtime.engine.sequence import Sequence
from headrace.runtime.state.model_state import ModelState


class Turn(NamedTuple):
    """A sequence's part of a step: how many of its next tokens."""

    sequence: Sequence
    tokens: int

    @property
    def asks(self) -> bool:
        """Whether a token is made from it."""
        return self.tokens == self.sequence.left


class Scheduler:
    """Sequences in the order in which they came. One that finds no room makes the last to come wait and begin anew."""

    def __init__(self, state: ModelState, tokens: int, sequences: int) -> None:
        """`tokens` and `sequences` in a step at most."""
        self.state, self.tokens, self.sequences = state, tokens, sequences
        self.known = 0  # tokens that no step had to run, since their prefix was there
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """A sequence is over, wherever it stands, and those of the same answer; what they held is free."""
        for one in (sequence, *sequence.others):
            if one in self.running:
                self.running.remove(one)
            elif one in self.waiting:
                self.waiting.remove(one)
            self._release(one)

    def plan(self) -> list[Turn]:
        """The next step, room for which is reserved; empty where nothing can run."""
        left, turns = self.tokens, list[Turn]()
        # Those with one token left first: who reads waits for them. The others' prompts fill what is left.
        for sequence in sorted(self.running, key=lambda one: one.left > 1):
            # It may have been set back by one before it, or wait for the other beams.
            if left > 0 and sequence.held is not None and sequence.left:
                left -= self._turn(sequence, left, turns)
        while left > 0 and self.waiting and len(self.running) < self.sequences:
            sequence = self.waiting[0]
            sequence.held = self.state.admit(sequence.tokens, sequence.source)
            if sequence.held is None:
                break
            count = self._reserved(sequence, min(left, sequence.left))
            if not count:
                self._release(sequence)
                break
            self.running.append(self.waiting.popleft())
            self.known += sequence.held.count
            turns.append(Turn(sequence, count))
            left -= count
        return turns

    def _turn(self, sequence: Sequence, left: int, turns: list[Turn]) -> int:
        while not (count := self._reserved(sequence, min(left, sequence.left))):
            last = self.running[-1]
            self.set_back(last)
            turns[:] = [turn for turn in turns if turn.sequence is not last]  # it may be admitted anew in this step
            if last is sequence:
                return 0
        turns.append(Turn(sequence, count))
        return count

    def _reserved(self, sequence: Sequence, count: int) -> int:
        """Room for so many tokens; where a sequence is alone and finds none, for fewer. Returns for how many."""
        assert sequence.held is not None
        while count and not self.state.reserve(sequence.held, count):
            alone = not [one for one in self.running if one is not sequence]
            count = count // 2 if alone else 0
        return count

    def set_back(self, sequence: Sequence) -> None:
        """Have a sequence wait and begin anew: what it held may be what others need, or not what it should be."""
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        if sequence.held is not None:
            self.state.release(sequence.held)
            sequence.held = None
