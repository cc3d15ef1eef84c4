"""The stages of the public API: trace, lower, compile."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headrace import debug
from headrace.backends import backend as find_backend
from headrace.backends import target_of
from headrace.backends.interface import Backend, KernelMaker, Memory, Planner
from headrace.errors import HeadraceError, InputError, TargetError
from headrace.frontend.load.checkpoint import Checkpoint, load
from headrace.frontend.load.sentence_transformers.modules.pooling import pool_kind
from headrace.frontend.trace import Traced as Frontend
from headrace.frontend.trace import trace as trace_checkpoint
from headrace.ir import PoolKind, Prefill, Program, Task
from headrace.lowering.pipeline import analyse, prepare
from headrace.runtime.dtypes import dtype_for, read_dtype
from headrace.runtime.engine.quantization_gate import require_cache_dtype, require_scheme, require_steps
from headrace.runtime.model import CompiledModel
from headrace.runtime.progress import bar
from headrace.runtime.state.model_state import ModelState, brought_state, state_class
from headrace.runtime.text.tokenizer.own import own_copy
from headrace.runtime.text.validate import counts, require_choice
from headrace.runtime.tools.inspect.report import explain
from headrace.runtime.views import frame, line
from headrace.tasks import Tasks, first_runnable, require_any, select
from headrace.utils.compiler_lock import in_turn
from headrace.utils.gc_freeze import sparing_the_old

Source = str | Path | nn.Module
OWN = "own"


class Traced:
    """A traced model. Its types, route and tasks are worked out when something asks for them."""

    def __init__(
        self,
        frontend: Frontend,
        tokenizer: Any,
        prefill: Prefill | None,
        side_files: Mapping[str, str | None],
        state: type[ModelState] | None = None,
    ) -> None:
        """Keep what the frontend made.

        Args:
            side_files: texts that an exported model's folder holds too, by their path there.
            state: the class of the state that the module brought.
        """
        self.program, self.tokenizer, self.side_files = frontend.program, tokenizer, side_files
        self.brought = state
        self.behaviour, self._prefill = frontend.behaviour, prefill

    @cached_property
    @in_turn
    def analysed(self) -> Program:
        """The program with every type proven, its route and its tasks.

        Raises:
            AttentionTypeError, VerifyError: it cannot be typed, or behaves unlike its type.
        """
        with sparing_the_old():
            return analyse(self.program, self.behaviour, self._prefill)

    @property
    def tasks(self) -> Tasks:
        """The supported tasks; empty, never an exception, where nothing is."""
        try:
            return Tasks(self.analysed.decision.tasks)
        except HeadraceError:
            return Tasks(())

    def as_text(self) -> str:
        """The program on a page, as it was traced."""
        return self.program.as_text()

    def explain(self, form: str = "text") -> str:
        """Attention, route and tasks, as "text" or "html"."""
        chosen, _ = select(self.analysed, None)
        return explain(self.analysed, form, task=chosen)

    def __repr__(self) -> str:
        """The model, and its tasks where they have been worked out."""
        known = "analysed" in vars(self)
        return line("Traced", self.program.source.name, (", ".join(self.tasks) or "no task") if known else "traced")

    def _repr_html_(self) -> str:
        """`explain` as a page, in notebooks."""
        return frame(self.explain("html"))

    def lower(self, target: str = "auto", device: Any = None, parallel: str | None = None) -> Lowered:
        """Decide for a target, or a device in its place; `parallel` is as of `headrace.compile`."""
        backend = find_backend(target_of(device, target), compiles=False, parallel=parallel)
        return Lowered(self.analysed, backend, self.tokenizer, self.side_files, self.brought)


class Lowered:
    """An analysed program and the target that it is for."""

    def __init__(
        self,
        program: Program,
        backend: Backend,
        tokenizer: Any,
        side_files: Mapping[str, str | None] | None = None,
        brought: type[ModelState] | None = None,
    ) -> None:
        """Check that the target runs the program's dtype.

        Args:
            brought: the class of the state that the module brought.

        Raises:
            TargetError: it does not.
            ArtifactError: the program's route names a custom state that is not registered any more.
        """
        if program.dtype not in backend.dtypes:
            raise TargetError(f"The target {backend.name} runs {', '.join(backend.dtypes)}, not {program.dtype}.")
        self.program, self.backend, self.tokenizer = program, backend, tokenizer
        self.side_files = side_files or {}
        self.state = state_class(program, brought)

    @property
    def tasks(self) -> Tasks:
        """The supported tasks."""
        return Tasks(self.program.decision.tasks)

    @in_turn
    def as_text(self, task: str | None = None) -> str:
        """The analysed program on a page, or what is left of it for one task."""
        return (self.program if task is None else prepare(self.program, self._supported(task))).as_text()

    def explain(self, form: str = "text") -> str:
        """Attention, tower, tasks and what the target will do, as "text" or "html"."""
        chosen, _ = select(self.program, None)
        return explain(self.program, form, target=self.backend.name, task=chosen, plan=self.plan())

    def __repr__(self) -> str:
        """The model, its tasks, target and dtype."""
        tasks = ", ".join(self.tasks) or "no task"
        return line("Lowered", self.program.source.name, f"{tasks}; {self.backend.name}, {self.program.dtype}")

    def _repr_html_(self) -> str:
        """`explain` as a page, in notebooks."""
        return frame(self.explain("html"))

    @in_turn
    def plan(self, task: str | None = None) -> tuple[Any, ...]:
        """What the target will do with one task's program, and why; empty where there is nothing to choose.

        Returns:
            A `headrace.backends.interface.Choice` for each decision.
        """
        chosen = self._chosen(task)
        if chosen is None or not isinstance(self.backend, Planner):
            return ()
        return self.backend.plan(prepare(self.program, chosen, self.backend.layout_of(self.program)))

    @in_turn
    def kernels(self, task: str | None = None) -> list[Any]:
        """Every kernel of Headrace's own that one task's program runs on the target, compiled but not loaded.

        The target's architecture need not be here: `headrace.lower(model, target="rocm:gfx942").kernels()`.

        Returns:
            A `headrace.backends.kernels.compile.aot.Kernel` for each specialisation.

        Raises:
            TargetError: the target has no such kernels, or the program runs none of them.
            TaskNotEnabledError: the task is not supported.
        """
        if not isinstance(self.backend, KernelMaker):
            raise TargetError(
                f"The target {self.backend.name} has no kernels of Headrace's own; cuda and rocm have. Choose one, and "
                "name an architecture where its device is not here: rocm:gfx942."
            )
        chosen = self._chosen(task)
        if chosen is None:
            raise TargetError("The model supports no task that this version runs, so that it runs no kernel.")
        return self.backend.kernels(prepare(self.program, chosen, self.backend.layout))

    def _chosen(self, wish: str | None) -> Task | None:
        if wish is not None:
            return self._supported(wish)
        return first_runnable(self.program, select(self.program, None)[0], isinstance(self.backend, Memory))

    def _supported(self, wish: str) -> Task:
        task, _ = select(self.program, wish)
        assert task is not None
        return task

    def compile(
        self,
        *,
        task: str | None = None,
        beside: tuple[str, ...] = (),
        max_length: int | None = None,
        token_budget: int | None = None,
        cache_bytes: int | None = None,
        kv_cache_dtype: str | None = None,
        quantize: str | None = None,
        force: bool = False,
        progress: bool | None = None,
    ) -> CompiledModel:
        """Compile for a task: the user's, else the default one. The others are compiled when they are first used.

        Args:
            beside: tasks that the same program answers too, see `headrace.compile`.

        Raises:
            TaskNotEnabledError: the task is not supported, or the model supports none at all.
            TargetError: the target cannot compile or run here, or this version cannot run the task.
            VerifyError: the quantised model answers otherwise than the model.
        """
        if task is None:
            require_any(self.program)
        self.backend.check(compiles=True)
        require_choice("force", force)
        if cache_bytes is not None and not counts(cache_bytes):
            raise InputError(f"cache_bytes is {cache_bytes!r}; an int of 1 and above is accepted.")
        require_scheme(quantize, self.backend, self.program.dtype)
        kept = require_cache_dtype(kv_cache_dtype, self.backend)
        model = CompiledModel(
            self.program, self.backend, own_copy(self.tokenizer), task=task, max_length=max_length,
            token_budget=token_budget, cache_bytes=cache_bytes, kv_cache_dtype=kept, side_files=self.side_files,
            quantize=quantize, force=force, state=self.state,
        )  # fmt: skip
        if kept is not None and not model.engine.compiler.in_pieces:
            require_steps(self.program, kept, [model.task, *beside] if model.task else beside)
        if beside and model.task is not None:
            model.engine.joint_lane((model.task, *_names("beside", beside)), progress)
        elif task is not None:
            model.engine.lane(task, progress)
        return model.warm(progress)

    def export_onnx(
        self,
        folder: str | Path,
        *,
        task: str | None = None,
        profile: str = "std",
        dtype: str = "float32",
        max_length: int | None = None,
        **options: Any,
    ) -> Path:
        """Write an ONNX model with all that belongs to it, without compiling for the target first.

        Options as for `headrace.runtime.artifact.export_onnx.export_onnx`.
        """
        from headrace.runtime.artifact.export_onnx import export_onnx, require_open

        require_open(options, ("tokenizer",), "headrace.lower")
        return export_onnx(
            self.program, folder, tokenizer=self.tokenizer, side_files=self.side_files, task=task,
            profile=profile, dtype=dtype, max_length=max_length, **options,
        )  # fmt: skip


@in_turn
def trace(
    model: Source,
    *,
    dtype: str | torch.dtype = "auto",
    prefill: str | None = None,
    tokenizer: Any = None,
    pooling: str | tuple[str, ...] | None = None,
    task: str | None = None,
    tower: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: bool | None = None,
) -> Traced:
    """Load a model and trace it.

    Args:
        model: a folder, a hub id or an `nn.Module`.
        dtype: of weights and activations. "auto" is float32, or what a module already has.
        prefill: "single_pass" opens the token-level tasks to causal models; None leaves them to prefill in chunks.
        tokenizer: a tokenizer or its folder, where the model's folder has none.
        pooling: how rows become a vector, over what the folder says: cls, last, mean, max, weightedmean,
            mean_sqrt_len_tokens, or several to be concatenated; own takes the vector that the model returns by itself.
        task: what is wished for: a head that offers no vectors is left out for embed and token_embed, and a language
            model scores pairs by its logits of yes and no, a masked one makes sparse vectors.
        tower: of a sentence-transformers folder with a Router: "query" or "document", or what it names them.
        revision: of a hub id.
        trust_remote_code: run Python code that comes with the folder.

    Raises:
        LoadError, TraceError: the model can't be loaded or exported.
    """
    kinds, gate = _pools(pooling), _prefill(prefill)
    require_choice("trust_remote_code", trust_remote_code)
    if revision is not None and not isinstance(revision, str):
        raise InputError(f"revision is {revision!r}; a branch, a tag or a commit is accepted, as a str.")
    with bar("Loading the model", shown=progress) as shown, sparing_the_old(), debug.stage("load"):
        checkpoint = load(
            model, dtype=read_dtype(dtype, model), tokenizer=tokenizer, revision=revision,
            trust_remote_code=trust_remote_code, tower=tower,
        )  # fmt: skip
        shown.say("Tracing the model")
        return trace_loaded(checkpoint, kinds, gate, task)


def trace_loaded(
    checkpoint: Checkpoint, kinds: tuple[PoolKind, ...] | None, gate: Prefill | None, task: str | None
) -> Traced:
    """Trace what has been loaded; arguments and errors as of `trace`."""
    with debug.stage("trace"):
        traced = trace_checkpoint(checkpoint, kinds, task)
    if (state := brought_state(checkpoint.module)) is not None:
        # An artifact names it so: whoever loads one registers the class by that name.
        traced = Frontend(traced.program.with_(declared_state=state.__qualname__), traced.behaviour)
    return Traced(traced, checkpoint.tokenizer, gate, checkpoint.side_files, state)


def lower(
    model: Source, *, target: str = "auto", device: Any = None, parallel: str | None = None, **options: Any
) -> Lowered:
    """Trace a model and decide for a target, or a device in its place. Options as for `trace`.

    Args:
        parallel: as of `headrace.compile`.
    """
    backend = find_backend(target_of(device, target), compiles=False, parallel=parallel)
    traced = trace(model, **(options | {"dtype": dtype_for(options.get("dtype", "auto"), model, backend)}))
    with bar("Proving attention types", shown=options.get("progress")):
        return Lowered(traced.analysed, backend, traced.tokenizer, traced.side_files, traced.brought)


def compile(  # noqa: PLR0913 - each is an option of its own, and plain
    model: Source,
    *,
    task: str | None = None,
    beside: tuple[str, ...] = (),
    target: str = "auto",
    dtype: str | torch.dtype = "auto",
    max_length: int | None = None,
    prefill: str | None = None,
    tokenizer: Any = None,
    pooling: str | tuple[str, ...] | None = None,
    tower: str | None = None,
    token_budget: int | None = None,
    cache_bytes: int | None = None,
    kv_cache_dtype: str | None = None,
    quantize: str | None = None,
    force: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: bool | None = None,
    device: Any = None,
    parallel: str | None = None,
) -> CompiledModel:
    """Load, trace, decide and compile a model.

    Args:
        model: a folder, a hub id or an `nn.Module`.
        task: what to compile for; None takes the model's default task.
        beside: names of tasks that the same program answers too, as `("embed",)` beside generate: one copy of the
            weights, and one loop, in whose steps texts of all of them meet.
        target: "auto" picks the best device present (`.target` says which), "reference" needs no compiler.
        dtype: "auto" is float32 on `reference` and `cpu`, or what a module already has (`.dtype` says which). On `cpu`
            `explain()` says whether bfloat16 is faster on this processor; where it is slower, a warning does.
        max_length: tokens a text at most, over what the folder says; never over what the model can take.
        token_budget: padded tokens in one step at most. A longer text of a causal model that prefills in chunks comes
            in pieces, whose keys and values are kept meanwhile, where the target keeps any (reference, cpu); any other
            is an error, or truncated where asked.
        cache_bytes: what texts keep between steps at most (keys, values, states); None takes half of the free memory.
        kv_cache_dtype: "fp8" keeps the keys and values of texts in float8_e4m3fn, with a scale for each token and head:
            about half of what bfloat16 takes. The targets reference, cuda and rocm run it, and refuse to where answers
            turn by more than a mean cosine of 0.97 (`explain()` has what it costs). None keeps them in the model's.
        quantize: "fp8" multiplies large linear layers in eight-bit floats, on the target cuda, "int8" in integers of
            eight bits, on the target cpu. Both refuse to where answers turn by more than a cosine of 0.97
            (`.quantized` says what it costs); None leaves them as they are.
        force: keep a quantised model, or quantised keys and values, whose answers fail that gate.
        progress: show progress on stderr; None on a terminal or in a notebook only.
        device: in place of a target, as torch and transformers name it: "cpu", "cuda:1", a torch.device, or a number.
        parallel: how the devices of a target such as "cuda:0-1" share the work, each in a process of its own. "data",
            which None is: each has the whole model, and answers some of the requests. "tensor": each has a part of
            every layer, and all of them answer every request.

    The other arguments are `trace`'s.

    Raises:
        HeadraceError: whatever cannot be loaded, traced, typed, served or run here; each says what to do.
    """
    require_choice("force", force)
    target = target_of(device, target)
    # What cannot run here is refused before anything is loaded.
    found = find_backend(target, parallel=parallel)
    require_scheme(quantize, found)
    require_cache_dtype(kv_cache_dtype, found)
    lowered = lower(
        model, target=target, parallel=parallel, dtype=dtype, prefill=prefill, tokenizer=tokenizer, pooling=pooling,
        task=task, tower=tower, revision=revision, trust_remote_code=trust_remote_code, progress=progress,
    )  # fmt: skip
    return lowered.compile(
        task=task, beside=beside, max_length=max_length, token_budget=token_budget, cache_bytes=cache_bytes,
        kv_cache_dtype=kv_cache_dtype, quantize=quantize, force=force, progress=progress,
    )  # fmt: skip


def _names(option: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, (tuple, list)):
        raise InputError(f"{option} is {reprlib.repr(given)}; a tuple of tasks' names is accepted.")
    return tuple(given)


def _prefill(prefill: str | None) -> Prefill | None:
    if prefill is not None and (not isinstance(prefill, str) or prefill not in list(Prefill)):
        raise InputError(f"prefill is {prefill!r}; choose from {', '.join(Prefill)}.")
    return Prefill(prefill) if prefill else None


def _pools(pooling: str | tuple[str, ...] | None) -> tuple[PoolKind, ...] | None:
    if pooling is None:
        return None
    if not isinstance(pooling, (str, tuple, list)) or not pooling:
        raise InputError(f"pooling is {pooling!r}; the name of a kind, or several in a tuple, is accepted.")
    if pooling == OWN or tuple(pooling) == (OWN,):
        return ()
    return tuple(pool_kind(name) for name in ([pooling] if isinstance(pooling, str) else pooling))
