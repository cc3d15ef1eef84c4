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
from headrace.ir import CROSS, Cache, CacheKind, OutputKind, Program, Role

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
        wanted = [name for past in self._pasts.values() for name in (past.before, past.after) if name]
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
        found = np.zeros((1, len(wanted), self._program.signature.outputs[0].width), np.float32)
        left = len(wanted)
        counts = np.diff(bounds)
        for count in np.unique(counts[counts > 0]):
            order = np.flatnonzero(counts == count)
            batch = Batch(bounds[order, None] + np.arange(count), given[Role.CONTEXT][order], order)
            logits = self._run(batch, given, inputs)
            places = asked[batch.places[:, -logits.shape[1] :]]
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
        new = np.ones(batch.places.shape, np.int64)
        encoded = given[Role.LENGTHS][batch.order] if Role.LENGTHS in given else None
        feeds = {
            names.IDS: given[Role.IDS][0][batch.places],
            names.PADDING if encoded is None else names.DECODED_PADDING: np.concatenate(
                [batch.real.astype(np.int64), new], 1
            ),
            names.POSITIONS: batch.context[:, None].astype(np.int64) + np.arange(batch.places.shape[1]),
        }
        if encoded is not None:
            feeds[names.ENCODED_PADDING] = rows_of(encoded).astype(np.int64)
            # What is crossed to was kept when the text was encoded, so that no step makes it of these.
            feeds[names.ENCODED_ROWS] = np.zeros((len(encoded), 0, 1), np.float32)
            feeds[names.CACHED] = np.ones(1, bool)
        for cache in self._program.form.caches:
            feeds[self._pasts[cache.name].before] = self._before(cache, caches[cache.name], batch, given)
        grown = [cache for cache in self._program.form.caches if self._pasts[cache.name].after]
        outputs = [LOGITS, *(self._pasts[cache.name].after for cache in grown)]
        logits, *presents = self._session.run_for(feeds, outputs)
        for cache, present in zip(grown, presents, strict=True):
            if cache.kind is CacheKind.ROW:
                caches[cache.name][given[Role.ROWS][batch.order]] = present
            else:
                slots = given[Role.SLOTS][self._group(cache.group)][batch.places]
                write(caches[cache.name], slots, present[:, :, batch.past :])
        return logits

    def _before(self, cache: Cache, held: Array, batch: Batch, given: Mapping[Role, Array]) -> Array:
        """What a cache holds of a batch's sequences; a state of one that begins is of nothing."""
        if cache.kind is CacheKind.ROW:
            fresh = (batch.context == 0).reshape(-1, *[1] * (held.ndim - 1))
            return np.where(fresh, np.zeros((), held.dtype), held[given[Role.ROWS][batch.order]])
        lengths = given[Role.LENGTHS][batch.order] if cache.group == CROSS.name else batch.context
        return read(held, given[Role.BLOCKS][self._group(cache.group), batch.order], lengths)

    def _group(self, name: str | None) -> int:
        return [group.name for group in self._program.form.groups].index(str(name))


def read(cache: Array, table: Array, lengths: Array) -> Array:
    """What a paged cache [N, size, heads, width] holds of some sequences, [B, heads, P, width].

    Args:
        table: their blocks, int [B, m]; below zero where one is given back, whose rows no query sees.
        lengths: how many rows each has, int [B].
    """
    size, past = cache.shape[1], int(lengths.max())
    table = table[:, : -(-past // size)]
    held = cache[np.maximum(table, 0)].reshape(len(table), -1, *cache.shape[2:])[:, :past]
    real = rows_of(lengths) & (table >= 0).repeat(size, 1)[:, :past]
    if not real.all():  # what lies there may be no number, which no weight of zero makes one
        held[~real] = 0
    return np.ascontiguousarray(held.swapaxes(1, 2))


def write(cache: Array, slots: Array, new: Array) -> None:
    """Put rows [B, heads, L, width] into a paged cache, each into its slot [B, L]; below zero goes nowhere."""
    rows = cache.reshape(-1, *cache.shape[2:])
    rows[slots[slots >= 0]] = new.swapaxes(1, 2)[slots >= 0]
