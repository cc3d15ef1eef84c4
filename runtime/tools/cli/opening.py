"""The model that a command runs: how it is opened, and how a stream of texts goes through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, InputError, NonFiniteError, OutOfMemoryError
from headrace.runtime.tools.cli import console, streams
from headrace.runtime.tools.cli.lines import Request, Source, read_arrays, write
from headrace.utils.home import expanded

if TYPE_CHECKING:
    from headrace.ir import Program
    from headrace.runtime.api import Lowered, Traced
    from headrace.runtime.model import CompiledModel

MANIFEST = "headrace.json"
# What one request can be the cause of.
OF_REQUESTS = (InputError, NonFiniteError, OutOfMemoryError)
Answer = Callable[["CompiledModel", Sequence[Any]], Iterable[dict[str, Any]]]


@dataclass(frozen=True)
class Opening:
    """A model's name and the options that loading it takes; None leaves the choice to Headrace."""

    model: str
    target: str = "auto"
    dtype: str | None = None
    max_length: int | None = None
    prefill: str | None = None
    pooling: tuple[str, ...] | None = None
    tokenizer: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    token_budget: int | None = None
    quantize: str | None = None
    trust: bool = False
    tower: str | None = None
    parallel: str | None = None
    kv_cache_dtype: str | None = None

    @property
    def _options(self) -> dict[str, Any]:
        """What every way of loading the model takes."""
        return {
            "dtype": self.dtype or "auto",
            "prefill": self.prefill,
            "tokenizer": self.tokenizer,
            "pooling": self.pooling,
            "tower": self.tower,
            "revision": self.revision,
            "trust_remote_code": self.trust_remote_code,
        }

    def trace(self, task: str | None = None) -> Traced:
        """The model traced for a task, for commands that run nothing."""
        import headrace

        self.require_source()
        return headrace.trace(self.model, task=task, **self._options)

    def lower(self, task: str | None = None) -> Lowered:
        """The model decided for a task and the target, which need not be here where its architecture is named."""
        import headrace

        self.require_source()
        return headrace.lower(self.model, target=self.target, task=task, **self._options)

    def compile(self, task: str | None, force: bool = False, beside: tuple[str, ...] = ()) -> CompiledModel:
        """The model compiled for a task, or read back where it was saved by `headrace compile`.

        Args:
            beside: as of `headrace.compile`.
            force: keep a quantised model whose answers fail the gate.

        Raises:
            InputError: an option that a saved model has decided already, or that only one takes.
        """
        import headrace

        if not self.is_saved:
            self._require_untrusted()
            return headrace.compile(
                self.model, task=task, beside=beside, target=self.target, max_length=self.max_length,
                token_budget=self.token_budget, kv_cache_dtype=self.kv_cache_dtype, quantize=self.quantize, force=force,
                parallel=self.parallel,
                **self._options,
            )  # fmt: skip
        self._require_unsettled()
        return headrace.load(self.model, target=self.target, trust=self.trust or None, parallel=self.parallel)

    def decided(self) -> tuple[Program, str | None]:
        """The analysed program, and the target that a saved model is for; such a one is not loaded."""
        if not self.is_saved:
            return self.trace().analysed, None
        from headrace.runtime.artifact.saved_model import decided

        self._require_unsettled()
        program, manifest = decided(expanded(self.model, InputError))
        return program, str(manifest["target"])

    def require_source(self) -> None:
        """Refuse a saved model for what only the original can be used for.

        Raises:
            InputError: it is one.
        """
        if self.is_saved:
            raise InputError(
                f"{self.model} is a saved model, without the original model and its graph, which this command needs. "
                "Give the model that it was made of; headrace explain shows what was found out about it."
            )

    def _require_unsettled(self) -> None:
        settled = (
            *(
                "dtype",
                "max_length",
                "prefill",
                "pooling",
                "tokenizer",
                "revision",
                "token_budget",
                "quantize",
                "kv_cache_dtype",
                "tower",
            ),
        )
        if given := [f"{name}=" for name in settled if getattr(self, name) is not None]:
            raise InputError(
                f"{self.model} is a saved model, which has settled {', '.join(given)}. Leave that out, or compile the "
                "model anew with it."
            )

    def _require_untrusted(self) -> None:
        if self.trust:
            raise InputError(
                f"{self.model} is no saved model, which alone takes --trust. Leave it out; --trust-remote-code runs "
                "Python code that comes with a model."
            )

    @property
    def is_saved(self) -> bool:
        """Whether the model is a folder that `headrace compile` or `headrace export` wrote."""
        return (expanded(self.model, InputError) / MANIFEST).is_file()


def serve(opening: Opening, task: str, source: Source, answer: Answer) -> None:
    """Answer the requests in their order, a chunk at a time.

    The first chunk is read before the model is loaded, so that a bad line costs no waiting; without any, nothing is.
    The target and dtype are said once there are answers.

    Raises:
        HeadraceError: a request is bad; those before it are answered, unless the first chunk has a line without a text.
    """
    streams.require_output()
    model, done = None, 0
    try:
        for chunk in source.chunks():
            if model is None:
                model = opening.compile(task)
            for count, answers in _answered(model, chunk, done, answer):
                if not done:
                    console.note(f"target {model.target}, {model.dtype}")
                write(answers)
                done += count
    except HeadraceError as error:
        if not done:
            raise
        raise HeadraceError(f"After {done} texts: {error} {source.resume(done + 1)}") from error


def _answered(
    model: CompiledModel, chunk: Sequence[Request], first: int, answer: Answer
) -> Iterator[tuple[int, Iterable[dict[str, Any]]]]:
    """The answers, of how many requests they are; where one is bad, those before it in ever smaller parts first."""
    try:
        counted = model.counting_from(first + 1)  # as lines are
        answers = answer(counted, read_arrays(chunk) if model.program.signature.arrays else chunk)
    except OF_REQUESTS:
        if len(chunk) == 1:
            raise
        half = len(chunk) // 2
        yield from _answered(model, chunk[:half], first, answer)
        yield from _answered(model, chunk[half:], first + half, answer)
    else:
        yield len(chunk), answers


def several(values: list[str] | None) -> tuple[str, ...] | None:
    """A repeated option's values, None where it was not given."""
    return tuple(values) if values else None
