"""A generation step by step: prompts in pieces beside texts that grow by a token, joining and leaving.

The tokens are the bundle's, so that each machine runs the same; what is compared is the logits of every step, and what
the steps left in the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from headrace import feed, graphs
from headrace.backends.interface import Backend, Memory
from headrace.backends.reference import Reference
from headrace.errors import ParityError, TargetError
from headrace.ir import CROSS, Cache, CacheKind, Layout, OutputKind, Program, Task
from headrace.ir.passes import run_passes
from headrace.lowering.forms.cached import CacheStates
from headrace.lowering.forms.select import SelectTask
from headrace.lowering.optimise.pool_first import PoolFirst
from headrace.runtime.cache.store import Held
from headrace.runtime.state.model_state import ModelState, state_class
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.tools.parity.bundle import Node
from headrace.runtime.tools.parity.rule import Array

# Tokens that each prompt grows by, and layers whose caches are compared: the first, some between and the last.
NEW, LAYERS = 6, 4
# What the caches of a bundle's texts may take.
BYTES = 1 << 30


def pieces_of(request: Encoded) -> tuple[int, ...]:
    """How many of a text's tokens each of its steps runs: its prompt in two pieces where it has so many, then ones."""
    prompt = request.length - NEW
    halves = (prompt - prompt // 2, prompt // 2)
    return (*(half for half in halves if half), *[1] * NEW)


def defined(analysed: Program) -> Program:
    """The cached program with the weights of the model, none of them merged.

    Raises:
        ParityError: its texts are read by an encoder.
    """
    found = run_passes(
        analysed, (SelectTask(Task.GENERATE, (OutputKind.HIDDEN,)), PoolFirst(), CacheStates())
    )  # fmt: skip
    if CROSS in found.form.groups:
        raise ParityError(
            "The model has an encoder beside its decoder: a generation is compared of models that read one text. "
            "Record another task."
        )
    return found


def chosen(program: Program) -> list[tuple[str, Cache]]:
    """The caches that are compared, by what people call them."""
    paged = [cache for cache in program.form.caches if cache.kind is CacheKind.PAGED]
    named = [(f"{('keys', 'values')[place % 2]} {place // 2}", cache) for place, cache in enumerate(paged)]
    states = [cache for cache in program.form.caches if cache.kind is CacheKind.ROW]
    pairs = [named[place : place + 2] for place in range(0, len(named), 2)]
    alone = [[(f"state {place}", cache)] for place, cache in enumerate(states)]
    return [one for part in (*_some(pairs), *_some(alone)) for one in part]


def _some(parts: list[list[tuple[str, Cache]]]) -> list[list[tuple[str, Cache]]]:
    if len(parts) <= LAYERS:
        return parts
    return [parts[place] for place in np.linspace(0, len(parts) - 1, LAYERS).round().astype(int)]


def nodes_of(program: Program, requests: Sequence[Encoded]) -> tuple[Node, ...]:
    """The caches that are compared, and the answer; each with the number of its rows of each request."""
    found = [
        Node(name, _says(cache), "", prod(cache.sizes), tuple(_kept(program, cache, one) for one in requests))
        for name, cache in chosen(program)
    ]
    output = program.signature.outputs[0]
    rows = tuple(len(pieces_of(one)) for one in requests)
    return (*found, Node(Task.GENERATE.value, f"the answer, {output.kind}", "", output.width, rows))


def _says(cache: Cache) -> str:
    sizes = " x ".join(map(str, cache.sizes))
    return f"a state of {sizes}" if cache.kind is CacheKind.ROW else f"rows of {sizes}, read by {cache.group}"


def _kept(program: Program, cache: Cache, request: Encoded) -> int:
    return 1 if cache.kind is CacheKind.ROW else request.length - _first(program, cache, request.length - 1)


def _first(program: Program, cache: Cache, context: int) -> int:
    """The first row that a token after so many sees."""
    return next(group for group in program.form.groups if group.name == cache.group).first_key(context)


class Walk:
    """A cached program's steps over some texts."""

    def __init__(self, program: Program, memory: Memory, read: Callable[[Any], Array]) -> None:
        """Make room.

        Args:
            memory: also feeds the steps.
            read: what the program returns, or keeps, on the host.
        """
        self._program, self._memory, self._read = program, memory, read
        self._state: ModelState = state_class(program)(program)
        self._state.keep_in(memory, BYTES)
        self._chosen = [cache for _, cache in chosen(program)]

    def __call__(self, requests: Sequence[Encoded], run: Any) -> list[list[Array]]:
        """Rows of each node and request, the answer's last; the text at place i begins with step i."""
        kept: list[list[Array]] = [[np.empty(0)] * len(requests) for _ in self._chosen]
        logits: list[list[Array]] = [[] for _ in requests]
        left = {place: list(pieces_of(request)) for place, request in enumerate(requests)}
        held = dict[int, Held]()
        for step in range(len(requests) + max(map(len, left.values()))):
            turns = [(place, left[place].pop(0)) for place in range(min(step + 1, len(requests))) if left[place]]
            if not turns:
                continue
            rows = self._step(requests, turns, held, run)
            for (place, count), row in zip(turns, rows, strict=True):
                logits[place].append(row)
                mine = held[place]
                if not left[place]:
                    for node, cache in enumerate(self._chosen):
                        kept[node][place] = self._rows(cache, mine, mine.count + count)
                self._state.commit(mine, requests[place].ids.tolist(), count)
                if not left[place]:
                    self._state.release(mine)
        return [*kept, [np.stack(rows) for rows in logits]]

    def _step(
        self, requests: Sequence[Encoded], turns: Sequence[tuple[int, int]], held: dict[int, Held], run: Any
    ) -> Array:
        """The logits of each turn's last token."""
        pieces = []
        for place, count in turns:
            if place not in held:
                found = self._state.admit(())
                assert found is not None, "a bundle's texts are few"
                held[place] = found
            mine = held[place]
            if not self._state.reserve(mine, count):
                raise TargetError(f"The caches of {BYTES} bytes hold no {mine.count + count} tokens of a text.")
            ids = requests[place].ids[mine.count : mine.count + count]
            pieces.append(feed.Piece(ids, mine.count, mine.tables, mine.row or 0))
        backend: Any = self._memory
        given = backend.feed(self._program.signature.named(feed.cached(self._program, pieces)))
        rows: Array = self._read(self._state.step(run, given))[0]
        return rows

    def _rows(self, cache: Cache, held: Held, count: int) -> Array:
        """What a cache holds of a text of so many tokens, as far as its last token saw it: [rows, width]."""
        assert self._state.store is not None
        array = self._state.store.arrays[cache.name]
        if cache.kind is CacheKind.ROW:
            return self._read(array[held.row]).reshape(1, -1)
        place = [group.name for group in self._program.form.groups].index(str(cache.group))
        first, size = _first(self._program, cache, count - 1), self._program.form.block
        begin = first // size
        rows = self._read(array[held.tables[place][begin : -(-count // size)]]).reshape(-1, prod(cache.sizes))
        return rows[first - begin * size : count - begin * size]


def on_target(analysed: Program, backend: Backend, requests: Sequence[Encoded]) -> list[list[Array]]:
    """The rows of a target's steps.

    Raises:
        TargetError: it keeps nothing between steps.
    """
    from headrace.lowering.pipeline import prepare

    if not isinstance(backend, Memory):
        raise TargetError(f"The target {backend.name} keeps nothing between steps, and runs no generation.")
    program = prepare(analysed, Task.GENERATE)
    return Walk(program, backend, lambda made: np.asarray(backend.fetch(made), np.float64))(
        requests, backend.compile(program)
    )


def by_definition(
    program: Program, requests: Sequence[Encoded], weights: Mapping[str, torch.Tensor] | None = None
) -> list[list[Array]]:
    """The rows of steps by each operator's definition: in float64 with those weights, else in the program's dtype."""
    wide = None if weights is None else torch.float64

    def run(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return graphs.run(program.graph, inputs, widened=wide, weights=weights)[0][0]

    return Walk(program, Reference(Layout.PADDED), lambda made: made.double().numpy())(requests, run)


def grown(requests: Sequence[Encoded], logits: Callable[[Sequence[Encoded]], list[Array]]) -> Iterator[Encoded]:
    """Prompts with the tokens that the model goes on with, greedily.

    Args:
        logits: of each request alone, [tokens, V].
    """
    texts = list(requests)
    for _ in range(NEW):
        following = [rows[-1].argmax() for rows in logits(texts)]
        texts = [Encoded(np.append(one.ids, token)) for one, token in zip(texts, following, strict=True)]
    yield from texts
