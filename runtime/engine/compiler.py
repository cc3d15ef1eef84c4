"""Makes what answers: the program of some tasks prepared, compiled, and where it is quantised held to its gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace import debug
from headrace.backends.interface import Backend, Memory, Packer
from headrace.errors import ArtifactError, TargetError, TraceError
from headrace.ir import TASK_RULES, CacheDtype, Layout, Needs, OutputKind, Prefill, Program, Role, Task
from headrace.runtime.engine.lane import Lane
from headrace.runtime.engine.quantization_gate import (
    measure_quality,
    require_cache_quality,
    require_quality,
    samples,
    words,
)
from headrace.runtime.engine.request import Request
from headrace.runtime.state.model_state import ModelState
from headrace.tasks import answering
from headrace.utils.gc_freeze import sparing_the_old

if TYPE_CHECKING:
    from headrace.ir.passes import Pass

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Lane, Backend, Sequence[Task], Sequence[Request]], list[Array]]  # the answers of a lane, run by itself


class Compiler:
    """Of one analysed program, for one backend. It runs nothing, and keeps nothing of what it makes.

    Attributes:
        split: cuts what is compiled to the part of this device; None compiles all of it.
    """

    def __init__(
        self,
        program: Program,
        backend: Backend,
        state: type[ModelState],
        token_budget: int | None = None,
        quantize: str | None = None,
        force: bool = False,
        cache_dtype: CacheDtype | None = None,
    ) -> None:
        """Arguments as of `Engine`."""
        self.split: Pass | None = None
        self._program, self._backend, self._state = program, backend, state
        self._token_budget, self._quantize, self._force = token_budget, quantize, force
        self._cache_dtype = cache_dtype

    @property
    def in_pieces(self) -> bool:
        """Whether a text of more tokens than a step may hold runs in several: the step that contract C2 is about."""
        signature, facts = self._program.signature, self._program.facts
        plain = not signature.arrays and not signature.has(Role.TYPES) and facts.filling is None
        chunked = self._program.decision.prefill is Prefill.CHUNKED and facts.interaction is None
        pools = isinstance(self._backend, Memory) and self._backend.pools
        return self._token_budget is not None and pools and plain and chunked

    def lane(self, tasks: Sequence[Task], kinds: Sequence[OutputKind], held: Sequence[str], run: Run) -> Lane:
        """What answers tasks by outputs of those kinds.

        Args:
            held: the keys of the lanes that there are, for an error's words.
            run: answers requests, of which what is quantised is asked some.

        Raises:
            ArtifactError: the program was read back without its graph.
            TargetError: texts come in pieces, and the tasks answer none so.
            VerifyError: what is quantised answers otherwise, and nothing said to keep it so.
        """
        with sparing_the_old():
            return self._lane(tasks, kinds, held, run)

    def _lane(self, tasks: Sequence[Task], kinds: Sequence[OutputKind], held: Sequence[str], run: Run) -> Lane:
        if self._program.exported is None:
            how = f" with task={tasks[0].value!r}" if len(tasks) == 1 else ", run these together,"
            raise ArtifactError(
                f"The saved model holds executables for {', '.join(held) or 'nothing'}; {', '.join(tasks)} needs "
                f"another. Compile the model{how} and save it again."
            )
        if joined := [task for task in tasks[1:] if TASK_RULES[task].needs is Needs.DECODING]:
            first = answering(self._program, joined[0]).kind
            tasks, kinds = [joined[0]], [first, *(kind for kind in kinds if kind is not first)]
        program = self._prepared(tasks[0], tuple(kinds[1:]))
        if self._quantize is None:
            return self._made(program)
        return self._quantized(program, self._quantize, tasks, run)

    def encoder(self) -> Lane:
        """What is run of an encoder-decoder once a text, before its decoder makes tokens."""
        from headrace.ir.passes import run_passes
        from headrace.lowering.forms.encoder import SplitEncoder

        return self._made(run_passes(self._program, (SplitEncoder(),)))

    def _prepared(self, task: Task, others: tuple[OutputKind, ...]) -> Program:
        from headrace.lowering.pipeline import prepare

        layout = Layout.CACHED if self.in_pieces else self._backend.layout_of(self._program)
        # Heads are shared out among devices, and a row is of all of them.
        widest = 0
        if self.split is None and isinstance(self._backend, Memory):
            widest = self._backend.widest_row(self._program.dtype)
        try:
            prepared = prepare(self._program, task, layout, others, self.split, widest)
        except TraceError as error:
            if not self.in_pieces:
                raise
            raise TargetError(
                f"With token_budget={self._token_budget} longer texts come in pieces, and {task} of this model "
                f'answers none so: {error} Pass prefill="single_pass", or leave token_budget out.'
            ) from error
        return prepared if self._cache_dtype is None else self._in_fewer_bits(prepared, self._cache_dtype)

    def _in_fewer_bits(self, prepared: Program, dtype: CacheDtype) -> Program:
        """A program of the caches, of those that the option is for: other tasks keep nothing between steps."""
        from headrace.lowering.pipeline import quantize_caches

        if prepared.form.layout is not Layout.CACHED:
            return prepared
        made = quantize_caches(prepared)
        if not self._force:
            require_cache_quality(made)
        return made

    def _made(self, program: Program) -> Lane:
        executable = self._backend.compile(program)
        if isinstance(executable, Packer):
            program = program.with_(weights=executable.weights)
        return Lane(program, executable, self._state(program))

    def _quantized(self, plain: Program, scheme: str, tasks: Sequence[Task], run: Run) -> Lane:
        """The lane of the program in fewer bits, held against the definition of the one that is not."""
        from headrace.backends.reference import Interpreted, Reference
        from headrace.lowering.pipeline import quantize

        requests, program = samples(plain), quantize(plain, scheme)
        assert program.form.quantized is not None
        definition = Lane(plain, Interpreted(plain), self._state(plain))
        made = self._made(program)
        wanted = run(definition, Reference(plain.form.layout), tasks, requests)
        found = measure_quality(program.form.quantized, run(made, self._backend, tasks, requests), wanted)
        debug.say(debug.STAGES, words(found))
        if not self._force:
            require_quality(found, program)
        return replace(made, program=program.with_(quantized=found))
