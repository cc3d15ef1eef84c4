"""Cached programs on a GPU: one graph for every step; steps of one token a sequence, as decoding has them, captured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace import feed, sample
from headrace.backends.gpu.cuda_graphs import Run, capturable, record_fastest
from headrace.backends.gpu.executable import LONGEST, OfGraph, alone, compiled_kernels, short_kernels
from headrace.backends.gpu.memory import memory_told
from headrace.backends.inductor.compile import quiet
from headrace.backends.inductor.precision import exact
from headrace.ir import PER_TOKEN_OUTPUTS, CacheKind, Program, Role

# A size of one would have a graph of its own, so a step has room for two of everything.
LEAST = 2
# What a step is filled up with: sequences of no token, and tokens of no sequence, which go nowhere.
FILLING = {Role.SLOTS: -1}
NOTHING = np.empty(0, np.int64)
ALIGNED = 16  # bytes, as vectorised loads want it
# Sequences that captured steps have room for; more than the last are captured for none.
ROOMS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
FEWEST_BLOCKS = 16
# Sequences, tokens and blocks of each in the step that a graph is compiled on.
SAMPLE = (4, 64, 8)
Given = Mapping[str, Tensor]


class Size(NamedTuple):
    """What a step has room for: new tokens, sequences, rows that are asked for, and blocks of a sequence."""

    tokens: int
    sequences: int
    asked: int
    held: int

    def shape(self, role: Role, groups: int) -> tuple[int, ...]:
        """That of an input; the groups are the program's."""
        if role in {Role.CONTEXT, Role.ROWS, Role.LENGTHS}:
            return (self.sequences,)
        shapes = {
            Role.OFFSETS: (self.sequences + 1,),
            Role.WANTED: (self.asked,),
            Role.SLOTS: (groups, self.tokens),
            Role.BLOCKS: (groups, self.sequences, self.held),
        }
        return shapes.get(role, (1, self.tokens))


class _Place(NamedTuple):
    """Where an input lies among bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    def of(self, whole: Tensor) -> Tensor:
        """The input."""
        part = whole[self.begin : self.begin + prod(self.shape) * self.dtype.itemsize]
        return part.view(self.dtype).view(self.shape)


class Staged:
    """The inputs of a step but the caches: one piece of pinned memory, and one like it on the device."""

    def __init__(self, program: Program, size: Size) -> None:
        """Make room; nothing is in it yet."""
        self._inputs = [one for one in program.signature.inputs if one.role is not Role.CACHE]
        groups, parts, end = len(program.form.groups), list[_Place](), 0
        for one in self._inputs:
            shape, dtype = size.shape(one.role, groups), getattr(torch, one.dtype)
            parts.append(_Place(one.name, dtype, shape, end))
            end += -(-prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED
        # One is written while the other may still be read, by the copy of the step before.
        self._hosts = [torch.empty(end, dtype=torch.uint8, pin_memory=torch.cuda.is_available()) for _ in range(2)]
        self._arrays = [{part.name: part.of(host).numpy() for part in parts} for host in self._hosts]
        self._device = torch.empty(end, dtype=torch.uint8).cuda()
        self.tensors = {part.name: part.of(self._device) for part in parts}

    def write(self, given: Given) -> None:
        """Put a step's inputs there, filled up, and begin to copy them to the device; what lies there stays there."""
        self._hosts.reverse()
        self._arrays.reverse()
        for one in self._inputs:
            array, own = self._arrays[0][one.name], given[one.name]
            if array.shape != own.shape:
                array[...] = own[-1].item() if one.role is Role.OFFSETS else FILLING.get(one.role, 0)
            if not own.is_cuda:
                array[tuple(map(slice, own.shape))] = own.numpy()
        self._device.copy_(self._hosts[0], non_blocking=True)
        for one in self._inputs:
            if (own := given[one.name]).is_cuda:
                self.tensors[one.name][tuple(map(slice, own.shape))] = own


class Capture(NamedTuple):
    """One size's graph. It reads `staged` and writes `outputs`, always the same memory."""

    graph: torch.cuda.CUDAGraph
    staged: Staged
    outputs: tuple[Tensor, ...]


class Decodes:
    """The captured steps of one program, each made when its size first comes. One call at a time: they share memory."""

    def __init__(self, run: Run, program: Program, short: Run | None = None) -> None:
        """`run` is the compiled program; it takes its inputs by position, on the device. `short` as of `Replays`."""
        self._run, self._program, self._shorter = run, program, short
        self._captures: dict[Size, Capture] = {}
        self._pool: Any = None
        self._lie: tuple[int, ...] = ()  # where the caches do: a graph holds for no other place

    def __call__(self, size: Size, given: Given, caches: Mapping[str, Tensor]) -> tuple[Tensor, ...] | None:
        """Copy the inputs in and replay, in the order of the current stream.

        Returns:
            The outputs, filled up, which the next call overwrites; None where the step has another form.
        """
        room = room_for(size)
        if room is None:
            return None
        if (lie := tuple(cache.data_ptr() for cache in caches.values())) != self._lie:
            torch.cuda.synchronize()  # none of them may still run
            self._captures.clear()
            self._pool, self._lie = torch.cuda.graph_pool_handle(), lie  # a pool ends with its last graph
        if room not in self._captures:
            self._captures[room] = self._capture(room, caches)
        capture = self._captures[room]
        capture.staged.write(given)
        capture.graph.replay()
        return capture.outputs

    def _capture(self, size: Size, caches: Mapping[str, Tensor]) -> Capture:
        """On a step in which nothing runs, so that the caches stay what they are."""
        staged, groups = Staged(self._program, size), len(self._program.form.groups)
        nothing = feed.Piece(NOTHING, tables=[()] * groups, wanted=0)
        staged.write(sample.tensors(self._program, feed.cached(self._program, [nothing])))
        taken = staged.tensors | dict(caches)
        inputs = [taken[name] for name in self._program.signature.input_names]
        made = record_fastest(self._run, self._shorter, size.tokens, inputs, self._pool)
        return Capture(made.graph, staged, made.outputs)


class Stepping(OfGraph):
    """A cached program, compiled for any step."""

    def __init__(self, program: Program) -> None:
        """Compile on a sample.

        Args:
            program: cached, its graph on the device.
        """
        super().__init__(program)
        self._program, self._caches = program, [cache.name for cache in program.form.caches]
        names = program.signature.name
        self._ids, self._offsets = str(names(Role.IDS)), str(names(Role.OFFSETS))
        self._wanted, self._blocks = names(Role.WANTED), names(Role.BLOCKS)
        with quiet(), exact(), torch.no_grad():
            self._run = compiled_kernels(program, partial(sample_step, program, *SAMPLE), LONGEST)
            self._decodes = (
                Decodes(self._exactly, program, short_kernels(program)) if capturable(program.graph) else None
            )

    def __call__(self, inputs: Mapping[str, Tensor]) -> Any:
        """Run a step; its ids may lie on the device already. What is asked of it lies there until the next call."""
        self.calls += 1
        caches = {name: inputs[name] for name in self._caches}
        given = {name: tensor for name, tensor in inputs.items() if name not in caches}
        size = self._size(given)
        with self._guard.lock, memory_told():
            decoded = self._decodes(size, given, caches) if self._decodes else None
            outputs = self._step(size, given, caches) if decoded is None else decoded
        return alone(self._asked(outputs, size))

    def _step(self, size: Size, given: Given, caches: Mapping[str, Tensor]) -> Sequence[Tensor]:
        staged = Staged(self._program, Size(*(max(LEAST, count) for count in size)))
        staged.write(given)
        taken = staged.tensors | dict(caches)
        return self._exactly(*(taken[name] for name in self._names))

    def _size(self, given: Given) -> Size:
        """Of a step as it comes."""
        asked = len(given[self._wanted]) if self._wanted else 0
        held = given[self._blocks].shape[2] if self._blocks else 0
        return Size(given[self._ids].shape[1], len(given[self._offsets]) - 1, asked, held)

    def _asked(self, outputs: Iterable[Tensor], size: Size) -> list[Tensor]:
        """The outputs without what fills them up."""
        kinds = (output.kind in PER_TOKEN_OUTPUTS for output in self._program.signature.outputs)
        return [
            made[:, : size.asked] if per_token else made[: size.sequences]
            for made, per_token in zip(outputs, kinds, strict=True)
        ]


def room_for(size: Size) -> Size | None:
    """What a captured step has room for that holds one; None where it is none of one token a sequence."""
    count = size.sequences
    if not size.tokens == count == size.asked or count > ROOMS[-1]:
        return None
    room = next(room for room in ROOMS if room >= count)
    return Size(room, room, room, 1 << (max(FEWEST_BLOCKS, size.held) - 1).bit_length())


def sample_step(program: Program, count: int, tokens: int, held: int) -> dict[str, Tensor]:
    """A step of `count` new sequences of so many tokens each, and caches of as many blocks, on the device."""
    texts = (sample.text(program.signature, tokens, seed) for seed in range(count))
    tables = [list(range(order * held, (order + 1) * held)) for order in range(count)]
    pieces = [
        feed.Piece(ids, 0, [tables[order]] * len(program.form.groups), order, length=held * program.form.block)
        for order, ids in enumerate(texts)
    ]
    counts = {CacheKind.PAGED: (count * held, program.form.block), CacheKind.ROW: (count,)}
    caches = {
        cache.name: torch.zeros((*counts[cache.kind], *cache.sizes), dtype=getattr(torch, cache.dtype)).cuda()
        for cache in program.form.caches
    }
    staged = Staged(program, Size(count * tokens, count, count, held))
    staged.write(sample.tensors(program, feed.cached(program, pieces)))
    # With the strides of a step's, and no views: what views share would be part of the graph.
    return {name: tensor.clone() for name, tensor in staged.tensors.items()} | caches
