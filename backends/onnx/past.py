"""A model file that takes a past, run by steps of a cached program: what its sequences left lies in paged caches.

A step holds new tokens of some sequences in one row. Those that have as many are one batch of the file, so that no new
token is padding; their pasts are read from the caches' blocks, shorter ones filled up with rows that the mask hides,
and what the step adds is written to its slots. Numpy alone: neither torch nor onnx is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.backends.onnx import names
from headrace.backends.onnx.session import FIXED, Session
from headrace.errors import ArtifactError, TargetError
from headrace.ir import CROSS, OutputKind, Program, Role

Array = NDArray[Any]
LOGITS = names.OUTPUTS[OutputKind.VOCABULARY_LOGITS]


class Batch(NamedTuple):
    """Sequences of a step that have as many new tokens.

    Attributes:
        places: of their new tokens in the step's row, [B, L].
        context: how many tokens each has in the caches, [B].
        order: their places among the step's sequences, [B].
    """

    places: Array
    context: Array
    order: Array

    @property
    def past(self) -> int:
        """The length of the longest past."""
        return int(self.context.max())

    @property
    def real(self) -> Array:
        """Which rows of the pasts are some sequence's, bool [B, P]."""
        return rows_of(self.context)


def rows_of(lengths: Array) -> Array:
    """Which rows of a batch as long as its longest are some sequence's, bool [B, P]."""
    real: Array = np.arange(lengths.max()) < lengths[:, None]
    return real


class PastExecutable:
    """The logits of a cached program by its model file."""

    def __init__(self, session: Session, program: Program, keep: Any = None) -> None:
        """Check that the file is of the program; `keep` is held as long as the executable, e.g. the file's folder.

        Raises:
            ArtifactError: it lacks a past that the program keeps.
            TargetError: the provider takes no graph with so many free dimensions.
        """
        if session.provider in FIXED:
            raise TargetError(
                f"{session.provider} compiles a graph for each shape, and a past has another with every token. Use "
                'target="onnx:cpu" to generate.'
            )
        self.calls = 0
        self._session, self._program, self._keep = session, program, keep
        self._pasts = names.pasts(program)
        self._returned = [past.after for past in self._pasts.values() if past.after]
        wanted = [*(past.before for past in self._pasts.values()), *self._returned]
        if lacking := [name for name in wanted if name not in {*session.inputs, *session.outputs}]:
            raise ArtifactError(f"{session.path} has no {lacking[0]}, which the program keeps between its steps.")

    @property
    def provider(self) -> str:
        """The provider in use, by the session's own word."""
        return self._session.provider

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """Run a step: logits float32 [1, w, V] of the rows that are wanted. The caches are written.

        Raises:
            ArtifactError: others are wanted than each sequence's last, and the file returns no more.
        """
        self.calls += 1
        given: dict[Role, Array] = {
            one.role: inputs[one.name] for one in self._program.signature.inputs if one.role is not Role.CACHE
        }
        bounds, wanted = given[Role.OFFSETS].astype(np.int64), given[Role.WANTED]
        asked = np.full(int(bounds[-1]), -1)
        asked[wanted] = np.arange(len(wanted))
        found = np.empty((1, len(wanted), self._program.signature.outputs[0].width), np.float32)
        left = len(wanted)
        counts = np.diff(bounds)
        for count in np.unique(counts[counts > 0]):
            order = np.flatnonzero(counts == count)
            batch = Batch(bounds[order, None] + np.arange(count), given[Role.CONTEXT][order], order)
            logits = self._run(batch, given, inputs)
            places = asked[batch.places[:, -logits.shape[1] :]]
            if np.array_equal(places.ravel(), np.arange(len(wanted))):
                found = logits.reshape(found.shape)  # all that is asked for, in order: a vocabulary is long to copy
            else:
                found[0, places[places >= 0]] = logits[places >= 0]
            left -= int((places >= 0).sum())
        if left:
            raise ArtifactError(
                f"{self._session.path} returns logits of the last token alone; {left} of others are asked for. Export "
                "it with logits='all'."
            )
        return found

    def save(self, path: Path) -> None:
        """Copy the file, and the data beside it."""
        self._session.copy(path)

    def _run(self, batch: Batch, given: Mapping[Role, Array], caches: Mapping[str, Array]) -> Array:
        """One batch's logits [B, 1 or L, V]; what it adds is in the caches then."""
        rows = {group.name: self._rows(place, batch, given) for place, group in enumerate(self._program.form.groups)}
        feeds = self._fed(batch, given)
        for cache in self._program.form.caches:
            array = caches[cache.name]
            read = rows[cache.group].read(array) if cache.group else _state(array, batch, given)
            feeds[self._pasts[cache.name].before] = read
        logits, *made = self._session.run_for(feeds, [LOGITS, *self._returned])
        presents, past = dict(zip(self._returned, made, strict=True)), batch.past
        for cache in self._program.form.caches:
            if (after := self._pasts[cache.name].after) and cache.group:
                rows[cache.group].write(caches[cache.name], presents[after][:, :, past:])
            elif after:
                caches[cache.name][given[Role.ROWS][batch.order]] = presents[after]
        return logits

    def _fed(self, batch: Batch, given: Mapping[Role, Array]) -> dict[str, Array]:
        """What the file is given beside pasts."""
        whole = np.concatenate([batch.real.astype(np.int64), np.ones(batch.places.shape, np.int64)], 1)
        feeds = {
            names.IDS: given[Role.IDS][0][batch.places],
            names.POSITIONS: batch.context[:, None].astype(np.int64) + np.arange(batch.places.shape[1]),
        }
        if Role.LENGTHS not in given:
            return feeds | {names.PADDING: whole}
        encoded = rows_of(given[Role.LENGTHS][batch.order]).astype(np.int64)
        # What is crossed to was kept when the text was encoded, so that no step makes it of these rows.
        nothing = np.zeros((len(encoded), 0, 1), np.float32)
        return feeds | {
            names.DECODED_PADDING: whole,
            names.ENCODED_PADDING: encoded,
            names.ENCODED_ROWS: nothing,
            names.CACHED: np.ones(1, bool),
        }

    def _rows(self, place: int, batch: Batch, given: Mapping[Role, Array]) -> Rows:
        """Where the caches of a group hold what they do of a batch's sequences, and what the step adds."""
        crosses = self._program.form.groups[place] == CROSS
        lengths = given[Role.LENGTHS][batch.order] if crosses else batch.context
        table, size = given[Role.BLOCKS][place, batch.order], self._program.form.block
        return Rows.of(table, lengths, given[Role.SLOTS][place][batch.places], size)


class Rows(NamedTuple):
    """Where paged caches hold some sequences' rows: the same places in every cache of a group.

    Attributes:
        places: of the rows among all of a cache, [B, P].
        nothing: which of them are no row of the sequence, [B, P]; None where all are.
        slots: of what is added, [B, L].
        kept: which of that goes anywhere, [B, L]; None where all does.
        each: by a cache's heads, the places of all their rows, [B, heads, P], once they were asked for.
    """

    places: Array
    nothing: Array | None
    slots: Array
    kept: Array | None
    each: dict[int, Array]

    @classmethod
    def of(cls, table: Array, lengths: Array, slots: Array, size: int) -> Rows:
        """By the sequences' blocks.

        Args:
            table: int [B, m]; below zero where a block is given back, whose rows no query sees.
            lengths: how many rows each sequence has, int [B].
            slots: below zero where what is added goes nowhere.
            size: rows of a block.
        """
        past = int(lengths.max())
        table = table[:, : -(-past // size)]
        real, kept = rows_of(lengths) & (table >= 0).repeat(size, 1)[:, :past], slots >= 0
        places = (np.maximum(table, 0)[:, :, None].astype(np.int64) * size + np.arange(size)).reshape(len(table), -1)
        return cls(places[:, :past], None if real.all() else ~real, slots, None if kept.all() else kept, {})

    def read(self, cache: Array) -> Array:
        """What a paged cache [N, size, heads, width] holds of the sequences, [B, heads, P, width]."""
        heads, width = cache.shape[2:]
        if heads not in self.each:
            self.each[heads] = self.places[:, None] * heads + np.arange(heads)[:, None]
        held: Array = cache.reshape(-1, width).take(self.each[heads], 0)
        if self.nothing is not None:  # what lies there may be no number, which no weight of zero makes one
            held.swapaxes(1, 2)[self.nothing] = 0
        return held

    def write(self, cache: Array, new: Array) -> None:
        """Put rows [B, heads, L, width] into a paged cache."""
        rows, turned = cache.reshape(-1, *cache.shape[2:]), new.swapaxes(1, 2)
        if self.kept is None:
            rows[self.slots] = turned
        else:
            rows[self.slots[self.kept]] = turned[self.kept]


def _state(held: Array, batch: Batch, given: Mapping[Role, Array]) -> Array:
    """What a cache of states holds of a batch's sequences; of one that begins, nothing."""
    fresh = (batch.context == 0).reshape(-1, *[1] * (held.ndim - 1))
    return np.where(fresh, np.zeros((), held.dtype), held[given[Role.ROWS][batch.order]])
