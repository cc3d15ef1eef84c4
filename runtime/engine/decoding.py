"""The loop over a cached program: submit requests, step, and take what is finished. Nothing else runs one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from headrace import feed
from headrace.backends.interface import Backend
from headrace.errors import InputError, OutOfMemoryError, TargetError
from headrace.ir import OutputKind
from headrace.runtime.engine.lane import Lane
from headrace.runtime.engine.scheduler import Scheduler, Turn
from headrace.runtime.engine.sequence import Sequence
from headrace.utils.forks import Guard

# Sequences in a step at most.
SEQUENCES = 256


class Chooser(Protocol):
    """Makes a step's tokens from its logits, and says of each sequence whether it is over."""

    def __call__(self, logits: Any, sequences: list[Sequence], /) -> None:
        """Append a token to each sequence, whose row of the logits [w, vocabulary] comes in the same order."""
        ...


class DecodingLoop:
    """Sequences on one cached lane. Safe to call from several threads: whoever steps, steps for all."""

    def __init__(self, lane: Lane, backend: Backend, choose: Chooser, tokens: int, sequences: int = SEQUENCES) -> None:
        """Begin with no sequence."""
        self.lane, self._backend, self._choose = lane, backend, choose
        self.scheduler = Scheduler(lane.state, tokens, sequences)
        self._numbers = itertools.count()
        # A fork waits for a step to end: what a child has of the caches is then what it should be.
        self._guard, self._process = Guard(settles=True), os.getpid()

    @property
    def tokens_known(self) -> int:
        """Tokens of prompts that no step had to run, since what they leave was there."""
        return self.scheduler.known

    def submit(
        self, tokens: list[int], request: Any = None, source: Any = None, kinds: tuple[OutputKind, ...] = ()
    ) -> Sequence:
        """Take a prompt, or what the target of a text begins with.

        Args:
            source: the text, as its encoder reads it.
            kinds: what is answered of the text once all of it has run, where no tokens are to be made.

        Raises:
            InputError: it is empty, or longer than the caches can ever hold.
        """
        if not tokens:
            raise InputError("A prompt has no token; at least one is accepted.")
        store = self.lane.state.store
        if store is not None and (most := store.capacity()) is not None and len(tokens) >= most:
            raise InputError(
                f"A prompt has {len(tokens)} tokens; the caches hold {most} at most. Shorten it, or compile with a "
                "larger cache_bytes."
            )
        with self._guard.lock:
            self._leave_parents()
            sequence = Sequence(next(self._numbers), list(tokens), len(tokens), None, request, source, kinds)
            self.scheduler.add(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """A caller wants no more of a sequence; what it held is free."""
        with self._guard.lock:
            sequence.finished = sequence.finished or "abort"
            self.scheduler.remove(sequence)

    def step(self) -> list[Sequence]:
        """Run one step.

        Returns:
            The sequences that are over.

        Raises:
            Exception: what the target raised. Every sequence of the step begins anew, and may be stepped again.
        """
        with self._guard.lock:
            self._leave_parents()
            turns = self.scheduler.plan()
            if not turns:
                self._require_progress()
                return []
            try:
                asking = [(place, turn.sequence) for place, turn in enumerate(turns) if turn.asks]
                output = self._run(turns)
                for sequence, count in turns:
                    assert sequence.held is not None
                    self.lane.state.commit(sequence.held, sequence.tokens, count)
                self._answer(asking, output)
            except BaseException:
                for sequence, _ in turns:
                    self.scheduler.set_back(sequence)
                raise
            over = [sequence for sequence in self.scheduler.running if sequence.finished]
            for sequence in over:
                self.scheduler.remove(sequence)
            return over

    def _leave_parents(self) -> None:
        """In a forked child, end what its parent began: the threads that wait for it are not here."""
        if self._process != os.getpid():
            self._process = os.getpid()
            for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
                sequence.fail(TargetError("The text was begun before this process was forked. Ask for it again."))
                self.scheduler.remove(sequence)

    def _run(self, turns: list[Turn]) -> Any:
        pieces = []
        for turn in turns:
            sequence, held = turn.sequence, turn.sequence.held
            assert held is not None
            ids = np.array(sequence.tokens[held.count : held.count + turn.tokens], np.int64)
            wanted = int(turn.asks and not sequence.kinds)
            pieces.append(feed.Piece(ids, held.count, held.tables, held.row or 0, wanted, length=held.length))
        given = self.lane.program.signature.named(feed.cached(self.lane.program, pieces))
        return self.lane.state.step(self.lane.executable, self._backend.feed(given))

    def _answer(self, asking: list[tuple[int, Sequence]], output: Any) -> None:
        """Sequences whose tokens have all run, each with its place in the step, get one more, or their answer."""
        if growing := [sequence for _, sequence in asking if not sequence.kinds]:
            (logits,) = self.lane.outputs(output, self.lane.kinds[:1])
            self._choose(logits, growing)
        over = [(place, sequence) for place, sequence in asking if sequence.kinds]
        for kind in dict.fromkeys(kind for _, sequence in over for kind in sequence.kinds):
            (rows,) = self.lane.outputs(output, (kind,))  # one of each sequence of the step
            made = np.asarray(self._backend.fetch(rows[[place for place, _ in over]]))
            for row, (_, sequence) in zip(made, over, strict=True):
                sequence.answer[kind] = row
        for _, sequence in over:
            sequence.finished = "answered"

    def _require_progress(self) -> None:
        if self.scheduler.waiting and not self.scheduler.running:
            sequence = self.scheduler.waiting.popleft()
            sequence.fail(
                OutOfMemoryError(
                    f"A text of {len(sequence.tokens)} tokens finds no room in the caches though it is alone. Compile "
                    "with a larger cache_bytes, or ask for fewer tokens."
                )
            )

    def run(self, sequences: list[Sequence], seen: Callable[[Sequence], None] | None = None) -> None:
        """Step until those sequences are over, whatever others do; an error ends all of them.

        Args:
            seen: called with each that is over.

        Raises:
            Exception: what the target raised, or what ended one of them.
        """
        try:
            left = set(sequences)
            while left:
                self.step()
                for sequence in [one for one in left if one.finished]:
                    if sequence.error is not None:
                        raise sequence.error
                    left.remove(sequence)
                    if seen:
                        seen(sequence)
        finally:
            for sequence in sequences:
                if not sequence.finished:
                    self.abort(sequence)
