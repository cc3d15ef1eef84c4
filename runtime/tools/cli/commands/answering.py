"""The commands that answer texts, one a task that has one: made of the task's module and the options that all share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from headrace.ir import TASK_RULES, OutputKind, Task
from headrace.runtime.tasks.interface import Answering, Command
from headrace.runtime.tasks.registry import commands
from headrace.runtime.tools.cli import console, lines
from headrace.runtime.tools.cli.opening import Opening, serve, several
from headrace.runtime.tools.cli.options import (
    BatchSize,
    Dtype,
    Input,
    MaxLength,
    Model,
    Parallel,
    Plain,
    Pooling,
    Prefill,
    Revision,
    Target,
    Texts,
    TokenBudget,
    Tokenizer,
    Tower,
    Truncate,
    Trust,
    TrustCode,
)

Out = Annotated[
    Path | None,
    typer.Option("--out", help="Embed files, named in place of texts, into this folder: Parquet, and resumable."),
]
Column = Annotated[str, typer.Option(help="Of files that are tables or JSON lines, the one that holds the texts.")]


def add_commands(app: typer.Typer) -> None:
    """Add the command of every task that has one."""
    for task, found, command in commands():
        app.command(name=task.replace("_", "-"), help=command.says)(_command(task, found, command))


def _command(task: Task, found: Answering, command: Command) -> Callable[..., None]:
    """The function that the command runs. Its signature, which typer reads, has the task's own options for `own`."""
    options = list(_own_options(found))

    def run(  # noqa: PLR0913 - a command's options are its arguments
        model: Model,
        texts: Texts = None,
        *,
        input_: Input = None,
        plain: Plain = False,
        target: Target = "auto",
        parallel: Parallel = None,
        dtype: Dtype = None,
        max_length: MaxLength = None,
        truncate: Truncate = None,
        batch_size: BatchSize = None,
        token_budget: TokenBudget = None,
        pooling: Pooling = None,
        tower: Tower = None,
        prefill: Prefill = None,
        tokenizer: Tokenizer = None,
        revision: Revision = None,
        trust_remote_code: TrustCode = False,
        trust: Trust = False,
        out: Out = None,
        column: Column = "text",
        **own: Any,
    ) -> None:
        opening = Opening(
            model, target, dtype, max_length, prefill, several(pooling), tokenizer, revision, trust_remote_code,
            token_budget, trust=trust, tower=tower, parallel=parallel,
        )  # fmt: skip

        if out is not None:
            _embed_files(opening, texts or [], out, column, truncate, own)
            return
        source = lines.Source(texts or [], input_, plain, command.pairs, command.words, command.keys)

        def answer(compiled: Any, chunk: Sequence[Any]) -> Iterable[dict[str, Any]]:
            return map(command.record, compiled.answer(task, chunk, truncate=truncate, batch_size=batch_size, **own))

        serve(opening, task, source, answer)

    vars(run)["__signature__"] = _signature(run, task, options)
    return run


def _embed_files(
    opening: Opening, files: list[str], out: Path, column: str, truncate: bool | None, own: dict[str, Any]
) -> None:
    """Embed files into a folder, in place of texts."""
    from headrace.runtime.corpora.embed import embed_files

    compiled = opening.compile(Task.EMBED)
    done = embed_files(compiled, files, out, column=column, truncate=truncate, **own)
    found = f"; {done.found} files were there" if done.found else ""
    console.note(f"wrote {done.rows} rows, {done.failed} of them without a vector, in {done.parts} files{found}")


def _signature(run: Callable[..., None], task: Task, own: list[inspect.Parameter]) -> inspect.Signature:
    """What all commands take, with the task's own options before the others; pooling where it makes the answer."""
    shared = inspect.signature(run, eval_str=True)
    left_out = {"own"} if OutputKind.EMBEDDING in TASK_RULES[task].outputs else {"own", "pooling"}
    if task is not Task.EMBED:
        left_out |= {"out", "column"}
    kept = [parameter for name, parameter in shared.parameters.items() if name not in left_out]
    named = [parameter for parameter in kept if parameter.kind is parameter.KEYWORD_ONLY]
    return shared.replace(parameters=[*kept[: len(kept) - len(named)], *own, *named])


def _own_options(found: Answering) -> Iterator[inspect.Parameter]:
    """The parameters of a task's function past the call and the texts, as options with the words beside their types."""
    _, _, *own = inspect.signature(found.answer, eval_str=True).parameters.values()
    for parameter in own:
        if get_origin(parameter.annotation) is not Annotated:
            continue
        type_, words = get_args(parameter.annotation)
        option = typer.Option(parameter.default, help=words)
        yield parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=type_, default=option)
