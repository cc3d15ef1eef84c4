"""Runs encoded requests: plan, run, collect. What a task needs is compiled when it is first asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from itertools import chain
from typing import Any

import numpy as np

from headrace.backends.interface import Backend, Memory, Planner, WarmsUp
from headrace.errors import InputError, OutOfMemoryError, TargetError, warn
from headrace.ir import CROSS, CacheDtype, Layout, Output, OutputKind, Program, Task
from headrace.runtime.engine.budget import Budget
from headrace.runtime.engine.compiler import Compiler
from headrace.runtime.engine.decoding import Chooser, DecodingLoop
from headrace.runtime.engine.finite import require_finite
from headrace.runtime.engine.lane import Lane, key_of
from headrace.runtime.engine.padded_batch import Rows, Step
from headrace.runtime.engine.request import NONE, Asked, Request, Requests, gathered
from headrace.runtime.engine.sequence import Sequence as Growing
from headrace.runtime.places import IN_ORDER, Numbers, Places
from headrace.runtime.progress import bar
from headrace.runtime.state.model_state import ModelState, state_class
from headrace.runtime.text.encoded import Tokens
from headrace.runtime.text.prefetch import PACKED, Sizes, padded
from headrace.runtime.text.validate import counts, require_choice
from headrace.tasks import answering, lacks, runnable, select
from headrace.utils.compiler_lock import in_turn
from headrace.utils.forks import Guard

Array = np.ndarray[Any, np.dtype[Any]]
NO_MORE: list[Request] = []  # comes after the last part
AHEAD = 4  # steps that the target is given before the first is read back


class Engine:
    """One analysed program on one backend. Tasks that read the same outputs share a lane.

    Attributes:
        compiler: makes the lanes.
        shares: whether processes of several devices answer, to whom prompts go whole.
    """

    shares = False

    def __init__(
        self,
        program: Program,
        backend: Backend,
        token_budget: int | None = None,
        lanes: Mapping[str, Lane] | None = None,
        quantize: str | None = None,
        force: bool = False,
        state: type[ModelState] | None = None,
        cache_bytes: int | None = None,
        cache_dtype: CacheDtype | None = None,
    ) -> None:
        """Compile nothing yet.

        Args:
            token_budget: padded tokens in a step at most; None leaves it to the backend.
            lanes: what was compiled before and read back.
            quantize: the scheme of the linear layers, which the backend runs; None leaves them as they are.
            force: keep what is quantised where its answers fail the gate.
            state: the class that makes each lane's state; None takes what the program's route names.
            cache_bytes: what generation keeps of its texts at most; None leaves it to the backend.
            cache_dtype: in what its keys and values are kept; None for the program's dtype.

        Raises:
            ArtifactError: the route names a custom state that is not registered here.
        """
        self.program, self.backend = program, backend
        self.lanes: dict[str, Lane] = dict(lanes or {})
        self.state = state or state_class(program)
        self.compiler: Compiler = Compiler(
            program, backend, self.state, token_budget, quantize, force, cache_dtype
        )  # fmt: skip
        self._budget = Budget(token_budget)
        self._cache_bytes, self._compiling = cache_bytes, Guard()
        self._noun = "arrays" if program.signature.arrays else "texts"
        self._outputs_of: dict[str, Output] = {}  # what the tasks that were asked for are answered from
        self._loops: dict[str, DecodingLoop] = {}

    def lane(self, task: str, progress: bool | None = None) -> Lane:
        """What answers a task, compiled on first use.

        Raises:
            TaskNotEnabledError: the task is not supported.
            TargetError: this version has no runtime for it.
            ArtifactError: the program was read back without it.
        """
        return self.joint_lane((task,), progress)

    def joint_lane(self, tasks: Sequence[str], progress: bool | None = None) -> Lane:
        """What answers several tasks in one pass; errors as of `lane`.

        One that returns more is taken where there is one: a task that was answered beside others needs no code of its
        own.
        """
        kinds = tuple(dict.fromkeys(self.kind(task) for task in tasks))
        if (lane := self._held(kinds)) is None:
            self._compile([self.require(task) for task in tasks], kinds, progress)
            lane = self._held(kinds)
        assert lane is not None
        return lane

    def output(self, task: str) -> Output:
        """What a task is answered from; errors as of `lane`."""
        if not isinstance(task, str) or task not in self._outputs_of:
            self._outputs_of[task] = answering(self.program, self.require(task))
        return self._outputs_of[task]

    def kind(self, task: str) -> OutputKind:
        """What its output holds; errors as of `lane`."""
        return self.output(task).kind

    def _held(self, kinds: tuple[OutputKind, ...]) -> Lane | None:
        """The lane of those outputs, else the first that returns them among others."""
        if (lane := self.lanes.get(key_of(kinds))) is not None:
            return lane
        held = list(self.lanes.values())  # another thread may add one
        return next((lane for lane in held if set(kinds) <= set(lane.kinds)), None)

    def require(self, task: str) -> Task:
        """The task by its name, where it can be run; errors as of `lane`."""
        chosen, _ = select(self.program, task)
        assert chosen is not None
        if undone := lacks(chosen, self.decodes):
            others = runnable(self.program, self.decodes)
            raise TargetError(
                f"{chosen} is enabled for this model, but this version lacks {undone}. "
                + (f"Choose one of: {', '.join(others)}." if others else "It runs no other task of this model.")
            )
        return chosen

    @property
    def decodes(self) -> bool:
        """Whether the target holds what lives between steps, and so makes tokens."""
        return isinstance(self.backend, Memory)

    @property
    def token_budget(self) -> int | None:
        """Padded tokens in a step at most, as the user said; None leaves it to the backend."""
        return self._budget.tokens

    def decoding(self, progress: bool | None = None) -> DecodingLoop:
        """The loop that makes tokens, one for all callers, compiled on first use. Errors as of `lane`."""
        return self._loop(self.lane(Task.GENERATE, progress))

    def written(self, prompts: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Any]:
        """Of an engine that `shares`, parts of `generate_iter`, in no order.

        Args:
            prompts: token ids of each, int64 [p], or arrays.
        """
        raise AssertionError("its own loop makes tokens")

    def _loop(self, lane: Lane) -> DecodingLoop:
        key = key_of(lane.kinds)
        if key not in self._loops:
            with self._compiling.lock:
                if key not in self._loops:
                    self._loops[key] = self._begin_loop(lane)
        return self._loops[key]

    def _begin_loop(self, lane: Lane) -> DecodingLoop:
        assert isinstance(self.backend, Memory)
        encodes = CROSS in lane.program.form.groups
        lane.state.keep_in(self.backend, self._cache_bytes, self._encode if encodes else None)
        budget = self.token_budget or self.backend.step_tokens
        return DecodingLoop(lane, self.backend, _chooser(self.backend, self.program.dtype), budget)

    def sizes(self, *tasks: str, progress: bool | None = None) -> Sizes:
        """Of the parts in which the texts of a task, or of several in one pass, are read best."""
        whole = self.joint_lane(tasks, progress).program.form.layout is Layout.PADDED
        return padded(self.token_budget or self.backend.step_tokens) if whole else PACKED

    def parts(self, reader: Any, listed: Sequence[Any], **options: Any) -> Iterator[Any]:
        """The parts of what a reader's `ahead` takes, as `answered` takes them; options and errors as of that."""
        parts: Iterator[Any] = reader.ahead(listed, **options)
        return parts

    def begin(self) -> None:
        """Start what runs elsewhere, which is nothing."""

    def close(self) -> None:
        """End what runs elsewhere."""

    def warm_up(self) -> None:
        """Do ahead what the first requests would do beside being answered; for servers, whose clients wait for them."""
        for lane in self.lanes.values():
            if isinstance(lane.executable, WarmsUp):
                lane.executable.warm_up()

    def described(self) -> Program:
        """The program, with the layout of what was compiled first."""
        lane = next(iter(self.lanes.values()), None)
        if lane is None:
            return self.program
        made = lane.program.form
        return self.program.with_(
            layout=made.layout, layout_why=made.layout_why, quantized=made.quantized, caches=made.caches,
            quantized_caches=made.quantized_caches, whole_why=made.whole_why,
            groups=made.groups, block=made.block, weights=made.weights,
        )  # fmt: skip

    def plan(self) -> tuple[Any, ...]:
        """What the target does with what was compiled first, and why: a `headrace.backends.interface.Choice` each."""
        lane = next(iter(self.lanes.values()), None)
        if lane is None or lane.program.exported is None or not isinstance(self.backend, Planner):
            return ()
        return self.backend.plan(lane.program)

    def _encode(self, source: Request) -> Any:
        """What an encoder-decoder's decoder reads of a text or an array: rows [S, W] on the target."""
        lane = self.lanes[OutputKind.CROSS]
        given = lane.batcher.assemble(gathered([source]), source.length, lane.program)
        return lane.executable(self.backend.feed(given))[0]

    @in_turn
    def _compile(self, tasks: list[Task], kinds: tuple[OutputKind, ...], progress: bool | None) -> None:
        if self._held(kinds) is not None:
            return  # by another thread, while this one waited
        self._warn_of_pooling(kinds)
        with bar(f"Compiling {', '.join(tasks)} for {self.backend.name}", shown=progress):
            made = self.compiler.lane(tasks, kinds, list(self.lanes), self._answers)
            if CROSS in made.program.form.groups:
                self.lanes[OutputKind.CROSS] = self.compiler.encoder()
            self.lanes[key_of(kinds)] = made

    def _answers(self, lane: Lane, backend: Backend, tasks: Sequence[Task], requests: Sequence[Request]) -> list[Array]:
        engine = Engine(lane.program, backend, lanes={key_of(lane.kinds): lane}, state=self.state)
        return [row for task in tasks for row in engine.run(task, requests, progress=False)]

    def _warn_of_pooling(self, kinds: tuple[OutputKind, ...]) -> None:
        pooling = self.program.facts.pooling
        if OutputKind.EMBEDDING in kinds and pooling is not None and pooling.assumed:
            warn(f"Pooling is {', '.join(pooling.kinds) or 'own'} ({pooling.why}). Pass pooling= to choose.")

    def run(
        self, task: str, requests: Sequence[Request], batch_size: int | None = None, progress: bool | None = None
    ) -> list[Array]:
        """`run_parts` for requests that are all there."""
        return self.run_parts(task, [requests], len(requests), batch_size, progress)

    def run_parts(
        self,
        task: str,
        parts: Iterable[Sequence[Request]],
        count: int,
        batch_size: int | None = None,
        progress: bool | None = None,
        places: Places = IN_ORDER,
    ) -> list[Array]:
        """Answer the requests in their order: float32 [width] each, [tokens, width] for token-level tasks.

        Args:
            parts: none waits until the requests of the part before are answered.
            count: the requests of all parts together.
            places: where they stand in the caller's list.

        Raises:
            NonFiniteError: an answer holds a NaN or an infinity.
        """
        results: list[Array] = [np.empty(0)] * count
        for requests, rows in self.answered(task, parts, count, batch_size, progress, places):
            if isinstance(rows, np.ndarray) and rows.ndim == 2:
                kept = list(rows.copy())  # they share memory: one array each takes longer to make and to free
            else:
                kept = [row.copy() for row in rows]
            for request, row in zip(requests, kept, strict=True):
                results[request] = row
        return results

    def answered(
        self,
        task: str,
        parts: Iterable[Sequence[Request]],
        count: int,
        batch_size: int | None = None,
        progress: bool | None = None,
        places: Places = IN_ORDER,
    ) -> Iterator[tuple[Numbers, Rows]]:
        """The answers to some requests at a time, by their places, while the target works on others.

        Arguments and errors as of `run_parts`. What comes is good until the next is asked for.
        """
        for requests, (rows,) in self.answered_together((task,), parts, count, batch_size, progress, places):
            yield requests, rows

    def answered_together(
        self,
        tasks: Sequence[str],
        parts: Iterable[Sequence[Request]],
        count: int,
        batch_size: int | None = None,
        progress: bool | None = None,
        places: Places = IN_ORDER,
    ) -> Iterator[tuple[Numbers, list[Rows]]]:
        """`answered` of several tasks in one pass: what each task is answered from, in their order."""
        require_batch_size(batch_size)
        require_choice("progress", progress)
        lane, kinds = self.joint_lane(tasks, progress), [self.kind(task) for task in tasks]
        asked = Asked(count, batch_size, places)
        if count == 1 and not progress and lane.program.form.layout is not Layout.CACHED:
            yield self._alone(lane, kinds, parts, asked)
            return
        run = self._in_pieces if lane.program.form.layout is Layout.CACHED else self._in_steps
        reading = closing(parts) if isinstance(parts, Generator) else nullcontext()  # an error ends it at once
        with reading, bar(f"{', '.join(tasks)}: {self._noun}", places.count(range(count)), progress) as shown:
            for requests, rows in run(lane, kinds, parts, asked):
                yield requests, rows
                shown.advance(places.count(requests))

    def _alone(
        self, lane: Lane, kinds: list[OutputKind], parts: Iterable[Sequence[Request]], asked: Asked
    ) -> tuple[Numbers, list[Rows]]:
        """The one request of a call: what lets requests share a step and steps wait for each other takes time too."""
        (part,) = [part for part in parts if len(part)]
        (step,) = self._budget.plan(lane, asked.take(part), asked, self.backend)
        try:
            outputs = self._outputs(lane, kinds, step, gathered(part))
        except OutOfMemoryError as error:
            self._halve(step, asked, error)  # which raises: it was alone
            raise
        made = zip(kinds, outputs, strict=True)
        return step.requests, [self._rows(lane, step, asked, np.asarray(output), kind) for kind, output in made]

    def _in_steps(
        self, lane: Lane, kinds: list[OutputKind], parts: Iterable[Sequence[Request]], asked: Asked
    ) -> Iterator[tuple[Numbers, list[Rows]]]:
        for step, outputs in self._read(self._begun(lane, kinds, parts, asked)):
            made = zip(kinds, outputs, strict=True)
            yield step.requests, [self._rows(lane, step, asked, output, kind) for kind, output in made]

    def _in_pieces(
        self, lane: Lane, kinds: list[OutputKind], parts: Iterable[Sequence[Request]], asked: Asked
    ) -> Iterator[tuple[Numbers, list[Rows]]]:
        """Texts on the loop, each answered with its last piece."""
        loop = self._loop(lane)
        for places in (some for part in parts for some in _batched(asked.take(part), asked.batch_size)):
            texts = zip(_ids(asked.of(places)), places.tolist(), strict=True)
            growing = {loop.submit(ids, kinds=tuple(kinds)): place for ids, place in texts}
            asked.drop(places)
            try:
                while growing:
                    loop.step()
                    over = {sequence: growing[sequence] for sequence in growing if sequence.finished}
                    for sequence, place in over.items():
                        self._require_answer(sequence, asked.places.number(place))
                        del growing[sequence]
                    if over:
                        rows: list[Rows] = [[sequence.answer[kind] for sequence in over] for kind in kinds]
                        yield np.array(list(over.values()), np.int64), rows
            finally:
                for sequence in growing:
                    loop.abort(sequence)

    def _require_answer(self, sequence: Growing, number: int) -> None:
        if sequence.error is not None:
            raise sequence.error
        for row in sequence.answer.values():
            require_finite(row, f"The answer to request {number}", self.program.dtype)

    def _read(self, begun: Iterator[tuple[Step, list[Any]]]) -> Iterator[tuple[Step, list[Array]]]:
        """Each step's outputs on the host. The target works some steps ahead of what is read back."""
        waiting: deque[tuple[Step, list[Any]]] = deque()
        for one in begun:
            waiting.append(one)
            if len(waiting) > AHEAD:
                done, outputs = waiting.popleft()
                yield done, [np.asarray(output) for output in outputs]
        for done, outputs in waiting:
            yield done, [np.asarray(output) for output in outputs]

    def _begun(
        self, lane: Lane, kinds: list[OutputKind], parts: Iterable[Sequence[Request]], asked: Asked
    ) -> Iterator[tuple[Step, list[Any]]]:
        """Every step, given to the target, and what its outputs of those kinds are read from.

        Where more requests are to come, those of a step with room left wait for them.
        """
        held = NONE
        for part in chain(parts, (NO_MORE,)):
            if not len(left := np.concatenate([held, asked.take(part)])):
                continue
            steps, held, begun = self._budget.plan(lane, left, asked, self.backend), NONE, 0
            while (step := next(steps, None)) is not None:
                if step.open and begun and part is not NO_MORE:
                    held = step.requests
                    break
                begun += 1
                try:
                    outputs = self._outputs(lane, kinds, step, asked.of(step.requests))
                except OutOfMemoryError as error:
                    self._halve(step, asked, error)
                    left = np.concatenate([one.requests for one in (step, *steps)])
                    steps = self._budget.plan(lane, left, asked, self.backend)
                else:
                    asked.drop(step.requests)
                    yield step, outputs

    def _outputs(self, lane: Lane, kinds: list[OutputKind], step: Step, requests: Requests) -> list[Any]:
        """Give a step to the target: what its outputs of those kinds are read from."""
        inputs = self.backend.feed(lane.batcher.assemble(requests, step.length, lane.program))
        made = lane.outputs(lane.state.step(lane.executable, inputs), kinds)
        return [self.backend.fetch(output) for output in made]

    def _halve(self, step: Step, asked: Asked, error: OutOfMemoryError) -> None:
        if self.compiler.split is not None:  # the other devices have begun with this very step
            raise error
        self._budget.halve(step, asked, error, self.backend.step_tokens)

    def _rows(self, lane: Lane, step: Step, asked: Asked, output: Array, kind: OutputKind) -> Rows:
        rows = lane.rows(step, asked.lengths, output, kind)
        if not np.isfinite(output).all():  # it may be padding's alone
            for request, row in zip(step.requests, rows, strict=True):
                require_finite(row, f"The answer to request {asked.places.number(request)}", self.program.dtype)
        return rows


def _chooser(backend: Memory, dtype: str) -> Chooser:
    """What makes tokens of logits as the backend returns them; only one of tensors needs torch."""
    if backend.tensors:
        from headrace.runtime.generate.sampler import Sampler

        return Sampler(dtype)
    from headrace.runtime.generate.host_sampler import HostSampler

    return HostSampler(dtype)


def require_batch_size(batch_size: int | None) -> None:
    """Refuse what is no number of requests in a step.

    Raises:
        InputError: it is none.
    """
    if batch_size is not None and not counts(batch_size):
        raise InputError(f"batch_size is {batch_size!r}; an int of 1 and above is accepted.")


def _batched(places: Numbers, size: int | None) -> Iterator[Numbers]:
    size = size or len(places)
    return (places[begin : begin + size] for begin in range(0, len(places), size or 1))


def _ids(requests: Requests) -> list[list[int]]:
    assert isinstance(requests, Tokens), "only texts grow"
    return [one.ids.tolist() for one in requests]
