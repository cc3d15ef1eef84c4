"""The loop over a cached program: submit requests, step, and take what is finished. Nothing else runs one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from headrace import feed
from headrace.backends.interface import Backend, Memory
from headrace.errors import InputError, OutOfMemoryError, TargetError
from headrace.ir import CacheKind, OutputKind, Role
from headrace.runtime.engine.lane import Lane
from headrace.runtime.engine.scheduler import Scheduler, Turn
from headrace.runtime.engine.sequence import Sequence
from headrace.utils.forks import Guard

# Sequences in a step at most.
SEQUENCES = 256
# Stands for a token that only the target knows.
UNREAD = np.zeros(1, np.int64)


class Chooser(Protocol):
    """Makes a step's tokens from its logits, and says of each sequence whether it is over."""

    def __call__(self, logits: Any, sequences: list[Sequence], /) -> None:
        """Append a token to each sequence, whose row of the logits [w, vocabulary] comes in the same order."""
        ...


class Choice(Protocol):
    """The tokens of a step while the target still chooses them.

    Attributes:
        ids: int64 [w] on the target, one of each sequence.
    """

    ids: Any

    @property
    def lasting(self) -> list[int]:
        """The places of the sequences that another token follows, unless this one ends them; all before it are read."""
        ...


@runtime_checkable
class EarlyChooser(Protocol):
    """A chooser that waits for the target only when it is asked to."""

    def begin(self, logits: Any, sequences: list[Sequence], /) -> Choice | None:
        """Choose, and wait for nothing; None where what is asked hangs on tokens that are not read yet."""
        ...

    def finish(self, choice: Any, /) -> None:
        """Append a token to each sequence that is not over by now."""
        ...


@dataclass(frozen=True)
class Flight:
    """A step that the target was given and that is not read yet.

    Attributes:
        turns: what it runs.
        asking: the sequences that get a token or an answer of it, each with its place in the step.
        output: the executable's.
        choice: the tokens, where they are chosen already.
    """

    turns: list[Turn]
    asking: list[tuple[int, Sequence]]
    output: Any
    choice: Choice | None


class DecodingLoop:
    """Sequences on one cached lane. Safe to call from several threads: whoever steps, steps for all."""

    def __init__(self, lane: Lane, backend: Backend, choose: Chooser, tokens: int, sequences: int = SEQUENCES) -> None:
        """Begin with no sequence."""
        self.lane, self._backend, self._choose = lane, backend, choose
        self.scheduler = Scheduler(lane.state, tokens, sequences)
        self._numbers = itertools.count()
        # A fork waits for a step to end: what a child has of the caches is then what it should be.
        self._guard, self._process = Guard(settles=True), os.getpid()
        # A state's row is copied as it is after a step, so the next one waits until that is done.
        rows = any(cache.kind is CacheKind.ROW for cache in lane.program.form.caches)
        self._early = choose if isinstance(choose, EarlyChooser) and _ahead(backend) and not rows else None
        self._flight: Flight | None = None

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
        """Run one step. Where the target allows it, the next one begins before this one's tokens are read.

        Returns:
            The sequences that are over.

        Raises:
            Exception: what the target raised. Every sequence of the step begins anew, and may be stepped again.
        """
        with self._guard.lock:
            self._leave_parents()
            flight, self._flight, following = self._flight, None, None
            turns = self.scheduler.plan() if flight is None else flight.turns
            if not turns:
                self._require_progress()
                return []
            try:
                if flight is None:
                    flight = self._begin(turns, self._pieces(turns))
                    self._commit(turns)
                following = self._follow(flight)
                self._end(flight)
                if following is not None:
                    self._commit(turn for turn in following.turns if not turn.sequence.finished)
            except BaseException:
                for sequence, _ in turns:
                    if sequence.held is not None:
                        self.scheduler.set_back(sequence)
                raise
            over = [sequence for sequence in self.scheduler.running if sequence.finished]
            for sequence in over:
                self.scheduler.remove(sequence)
            if following is not None and any(not turn.sequence.finished for turn in following.turns):
                self._flight = following
            return over

    def _leave_parents(self) -> None:
        """In a forked child, end what its parent began: the threads that wait for it are not here."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._flight = None
            for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
                sequence.fail(TargetError("The text was begun before this process was forked. Ask for it again."))
                self.scheduler.remove(sequence)

    def _begin(self, turns: list[Turn], pieces: list[feed.Piece], ids: Any = None) -> Flight:
        """Give the target a step; `ids`, on the target, are those of tokens that are not read yet."""
        program = self.lane.program
        given = dict(self._backend.feed(program.signature.named(feed.cached(program, pieces))))
        if ids is not None:
            given[str(program.signature.name(Role.IDS))] = ids[None]
        output = self.lane.state.step(self.lane.executable, given)
        asking = [(place, turn.sequence) for place, turn in enumerate(turns) if ids is not None or turn.asks]
        choice = None
        if self._early and len(asking) == len(turns) and not any(sequence.kinds for _, sequence in asking):
            (logits,) = self.lane.outputs(output, self.lane.kinds[:1])
            choice = self._early.begin(logits, [sequence for _, sequence in asking])
        return Flight(turns, asking, output, choice)

    def _pieces(self, turns: list[Turn]) -> list[feed.Piece]:
        pieces = []
        for turn in turns:
            sequence, held = turn.sequence, turn.sequence.held
            assert held is not None
            ids = np.array(sequence.tokens[held.count : held.count + turn.tokens], np.int64)
            wanted = int(turn.asks and not sequence.kinds)
            pieces.append(feed.Piece(ids, held.count, held.tables, held.row or 0, wanted, length=held.length))
        return pieces

    def _follow(self, flight: Flight) -> Flight | None:
        """Begin the step after one that is under way, from the tokens that it chooses; None where that must be read.

        Who ends with its token is run once more for nothing: no one reads it, and what it writes lies past its tokens.
        """
        choice, scheduler = flight.choice, self.scheduler
        joining = scheduler.waiting and len(scheduler.running) < scheduler.sequences
        if choice is None or joining or len(flight.turns) < len(scheduler.running):
            return None
        going = [place for place in choice.lasting if not flight.turns[place].sequence.finished]
        turns = [Turn(flight.turns[place].sequence, 1) for place in going]
        held = [turn.sequence.held for turn in turns]
        if not turns or not all(one is not None and self.lane.state.reserve(one, 1) for one in held):
            return None
        there = [one for one in held if one is not None]
        pieces = [feed.Piece(UNREAD, one.count, one.tables, one.row or 0, length=one.length) for one in there]
        return self._begin(turns, pieces, choice.ids if len(going) == len(choice.ids) else choice.ids[going])

    def _commit(self, turns: Iterable[Turn]) -> None:
        for sequence, count in turns:
            assert sequence.held is not None
            self.lane.state.commit(sequence.held, sequence.tokens, count)

    def _end(self, flight: Flight) -> None:
        """Read a step's tokens and answers."""
        if flight.choice is None:
            self._answer(flight.asking, flight.output)
        else:
            assert self._early is not None
            self._early.finish(flight.choice)

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


def _ahead(backend: Backend) -> bool:
    return isinstance(backend, Memory) and backend.ahead
