"""Rows as captured graphs of the device: one launch in place of one a kernel, and no gap between two kernels."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export import ExportedProgram

from headrace import sample
from headrace.backends.gpu.memory import ran_out
from headrace.backends.gpu.readback import Answer, Host, pinned
from headrace.backends.kernels.linear_few.rows import SHORT as SHORTEST
from headrace.compat.torch import OpOverload, free_unbacked_symbols
from headrace.ir import OFFSETS, PER_TOKEN_OUTPUTS, Program, Role
from headrace.ops.stateful import POOL_STATE, STATEFUL

# Rows of few tokens are captured when one first comes, for so many tokens a row.
SHORT_ROWS = (16, 32, 64, 128, 256, 512, 1024, 2048)
SHORT = 8
# Rows up to here have a second graph, which copies too: of a text alone, each call of the driver is a part of the time.
ALONE = 128
# Longer ones when they come again; past so many tokens a launch costs nothing beside the work.
LONGEST, MOST = 1 << 17, 64
REPLAYS = 8  # of a graph that is timed
Run = Callable[..., Sequence[Tensor]]


def capturable(exported: ExportedProgram) -> bool:
    """Whether no operator waits for the device: one that shapes its answer by data does, another library's may.

    Nor goes on from a state: its definition asks for the lengths of a step.
    """
    operators = [node for node in exported.graph.nodes if isinstance(node.target, OpOverload)]
    return not any(node.target in STATEFUL or node.target is POOL_STATE for node in operators) and all(
        node.target.namespace in ("aten", "prims", "headrace")
        and not free_unbacked_symbols(node.meta.get("val"))
        and torch.Tag.dynamic_output_shape not in node.target.tags
        for node in operators
    )


class Shape(NamedTuple):
    """The tokens of a row and the sequences that it has room for, empty ones included."""

    tokens: int
    sequences: int


class Recorded(NamedTuple):
    """A graph of the device, the call that it replays, and what it writes: always the same memory."""

    graph: torch.cuda.CUDAGraph
    run: Run
    outputs: tuple[Tensor, ...]


class Alone:
    """A graph that copies its inputs from memory of the host and its outputs there, for one call at a time."""

    def __init__(self, recorded: Recorded, staged: Tensor, given: Sequence[Tensor], pool: Any) -> None:
        """Record it.

        Args:
            recorded: the graph that does not copy.
            staged: the inputs on the device in one piece, of which `given` are parts.
        """
        self.staged = pinned(staged.shape, staged.dtype)
        outputs = [pinned(output.shape, output.dtype) for output in recorded.outputs]
        self._arrays = [output.numpy() for output in outputs]
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._answers = list[weakref.ref[Answer]]()

        def run(*given: Tensor) -> Sequence[Tensor]:
            staged.copy_(self.staged, non_blocking=True)
            made = recorded.run(*given)
            for own, output in zip(outputs, made, strict=True):
                own.copy_(output, non_blocking=True)
            return made

        self.staged.copy_(staged)
        self._graph = record(run, given, pool).graph

    @property
    def free(self) -> bool:
        """Whether nobody waits for what it wrote last."""
        return all((answer := known()) is None or answer.taken for known in self._answers) and bool(
            self._done.query()  # type: ignore[no-untyped-call]
        )

    def replay(self, counts: Sequence[int | None]) -> list[Answer]:
        """Run on what lies in `staged`, in the order of the current stream.

        Args:
            counts: of each output the rows that are asked for, None for all.
        """
        self._graph.replay()
        self._done.record()
        answers = [Answer(self._done, made[:count]) for made, count in zip(self._arrays, counts, strict=True)]
        self._answers = [weakref.ref(answer) for answer in answers]
        return answers


@dataclass(frozen=True)
class Capture:
    """One shape's graph. It reads `staged` and writes `outputs`, always the same memory."""

    graph: torch.cuda.CUDAGraph
    staged: Tensor
    outputs: tuple[Tensor, ...]
    alone: Alone | None = None


def record(run: Run, given: Sequence[Tensor], pool: Any) -> Recorded:
    """What a call does on those inputs, as a graph; it is run once before, so that everything is compiled."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(*given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        outputs = tuple(run(*given))
    return Recorded(graph, run, outputs)


def record_fastest(run: Run, short: Run | None, tokens: int, given: Sequence[Tensor], pool: Any) -> Recorded:
    """`record` of the call that replays faster, where `short` answers alike and rows are short enough for it."""
    runs = [run] if short is None or tokens > SHORTEST else [run, short]
    made = [record(one, given, pool) for one in runs]
    return min(made, key=lambda one: _milliseconds(one.graph)) if len(made) > 1 else made[0]


def _milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    graph.replay()
    begun.record()
    for _ in range(REPLAYS):
        graph.replay()
    done.record()
    done.synchronize()
    return float(begun.elapsed_time(done))


class Replays:
    """The captured rows of one program, each made when its shape comes. One call at a time: they share their memory."""

    def __init__(self, run: Run, program: Program, short: Run | None = None) -> None:
        """Capture nothing yet.

        Args:
            run: the compiled program; takes its inputs by position, on the device.
            short: the same for rows of at most `linear_few.rows.SHORT` tokens; taken where it is faster.
        """
        self._run, self._names, self._shorter = run, program.signature.input_names, short
        self._ids, self._sample = str(program.signature.name(Role.IDS)), partial(sample.even_row, program)
        self._per_token = [output.kind in PER_TOKEN_OUTPUTS for output in program.signature.outputs]
        self._seen: Counter[Shape] = Counter()
        self._long: dict[Shape, Capture] = {}
        self._capturing = True
        # What long rows take is given back when memory runs out, which a pool does as a whole.
        self._kept, self._pool = torch.cuda.graph_pool_handle(), torch.cuda.graph_pool_handle()
        self._short: dict[Shape, Capture] = {}

    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Host] | list[Answer] | None:
        """Copy the inputs in, replay, and copy the outputs back, in the order of the current stream.

        Returns:
            What is made of each output once it is there; None where the row is too long to be captured, or is long
            and new.
        """
        count = inputs[OFFSETS].shape[0] - 1
        shape = shape_of(inputs[self._ids].shape[1], count)
        capture = self._short.get(shape) or self._long.get(shape) or self._captured(shape)
        if capture is None:
            return None
        counts = [None if per_token else count for per_token in self._per_token]
        if capture.alone is not None and capture.alone.free:
            _write(capture.alone.staged, inputs, self._names, shape)
            return capture.alone.replay(counts)
        capture.staged.copy_(_staged(inputs, self._names, shape), non_blocking=True)
        capture.graph.replay()
        # The copy back begins here: an output lies where the next replay writes.
        return [Host(output[:count]) for output, count in zip(capture.outputs, counts, strict=True)]

    def capture_short(self) -> None:
        """Capture every short row now, the largest first: the others then fit in the memory that it took."""
        for shape in map(shape_of_short, reversed(SHORT_ROWS)):
            if shape not in self._short:
                self._captured(shape)

    def give_back(self) -> bool:
        """Let go of the long rows that were captured, and capture no more: memory has run out.

        Returns:
            Whether there were any.
        """
        held = bool(self._long)
        self._capturing = False
        torch.cuda.synchronize()  # none of them may still run
        self._long.clear()
        torch.cuda.empty_cache()
        return held

    def _captured(self, shape: Shape) -> Capture | None:
        """A row's graph, made when its shape first comes; where it is a long one, for the second time."""
        self._seen[shape] += 1
        short = shape.tokens in SHORT_ROWS and shape == shape_of_short(shape.tokens)
        due = short or (self._seen[shape] == 2 and shape.tokens <= LONGEST and len(self._long) < MOST)
        if not (self._capturing and due):
            return None
        made, pool = (self._short, self._kept) if short else (self._long, self._pool)
        try:
            made[shape] = self._capture(shape, pool)
        except RuntimeError as error:
            if not ran_out(error):
                raise
        else:
            return made[shape]
        # A capture that is broken off keeps what it took, until its pool is empty.
        self.give_back()
        return None

    def _capture(self, shape: Shape, pool: Any) -> Capture:
        staged = _staged(self._sample(*shape), self._names, shape).cuda()
        rows = iter(staged[_head(shape) :].reshape(-1, 1, shape.tokens))
        offsets = staged.view(torch.int32)[: shape.sequences + 1]
        given = [offsets if name == OFFSETS else next(rows) for name in self._names]
        short = None if self._shorter is None else partial(_widened, self._shorter)
        made = record_fastest(partial(_widened, self._run), short, shape.tokens, given, pool)
        alone = Alone(made, staged, given, pool) if shape.tokens <= ALONE else None
        return Capture(made.graph, staged, made.outputs, alone)


def _widened(run: Run, *given: Tensor) -> list[Tensor]:
    return [output.float() for output in run(*given)]


def _staged(inputs: Mapping[str, Tensor], names: tuple[str, ...], shape: Shape) -> Tensor:
    """The inputs in a pinned piece of memory of their own, as `_write` lays them."""
    staged = pinned((_head(shape) + (len(names) - 1) * shape.tokens,), torch.int64)
    _write(staged, inputs, names, shape)
    return staged


def _write(staged: Tensor, inputs: Mapping[str, Tensor], names: tuple[str, ...], shape: Shape) -> None:
    """All inputs in one piece of memory, int64: the offsets as int32, then the rows in the order of their names.

    Offsets of empty sequences, as many as there is room for, follow the others.
    """
    place = _head(shape)
    whole, given = staged.numpy(), inputs[OFFSETS].numpy()
    offsets = whole.view("int32")[: shape.sequences + 1]
    offsets[: len(given)], offsets[len(given) :] = given, given[-1]
    for name in names:
        if name != OFFSETS:
            whole[place : place + shape.tokens] = inputs[name].numpy()[0]
            place += shape.tokens


def _head(shape: Shape) -> int:
    """Where the rows begin: past the offsets, at a multiple of 16 bytes, as vectorised loads want it."""
    return (shape.sequences // 4 + 1) * 2


def shape_of(tokens: int, count: int) -> Shape:
    """The shape that holds a row: each short row has one; of longer ones, those of like counts share one."""
    short = shape_of_short(tokens)
    if tokens in SHORT_ROWS and count <= short.sequences:
        return short
    room = 1 << max(4, (count - 1).bit_length())
    return Shape(tokens, next(room * part // 4 for part in (3, 4) if count <= room * part // 4))


def shape_of_short(tokens: int) -> Shape:
    """The shape of a short row."""
    return Shape(tokens, max(2, tokens // SHORT))
