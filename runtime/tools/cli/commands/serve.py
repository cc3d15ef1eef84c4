"""`headrace serve`: models behind HTTP."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from headrace.errors import InputError, TargetError, TaskNotEnabledError
from headrace.ir import Task
from headrace.runtime.tools.cli import console
from headrace.runtime.tools.cli.opening import Opening
from headrace.runtime.tools.cli.opening import several as listed
from headrace.runtime.tools.cli.options import (
    Dtype,
    MaxLength,
    Pooling,
    Prefill,
    Revision,
    Target,
    TokenBudget,
    Tokenizer,
    Trust,
    TrustCode,
)

KEY = "HEADRACE_API_KEY"
Models = Annotated[
    list[str],
    typer.Argument(help="Model folders, hub ids or saved models; a name and = before one is what clients call it."),
]
Tasks = Annotated[
    list[str] | None, typer.Option("--task", help="Compile for this task now; given twice, for both. Else as asked.")
]


def serve(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    models: Models,
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    task: Tasks = None,
    api_key: Annotated[
        list[str] | None, typer.Option(help=f"A key that requests must bring; better set {KEY}, which no list shows.")
    ] = None,
    cors_origin: Annotated[list[str] | None, typer.Option(help="Pages of which browsers may ask; * for all.")] = None,
    queue: Annotated[int, typer.Option(min=1, help="Requests of a task that wait or run; more get 429.")] = 512,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 2048,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters of a text.")] = 1_000_000,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 16 << 20,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that a request may take.")] = 300.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that requests have to end at a shutdown.")] = 30.0,
    wait: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds that a request may have to wait for others; else 429.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that read requests and write answers; 0: the one that runs models.")
    ] = 0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    target: Target = "auto",
    dtype: Dtype = None,
    max_length: MaxLength = None,
    prefill: Prefill = None,
    pooling: Pooling = None,
    tokenizer: Tokenizer = None,
    revision: Revision = None,
    trust_remote_code: TrustCode = False,
    token_budget: TokenBudget = None,
    trust: Trust = False,
) -> None:
    """Serve models behind HTTP: OpenAI's routes, text-embeddings-inference's, and rerankers'. docs/serving.md."""
    counting = _counting_together() if workers else None  # before what counts is imported
    from headrace.runtime.serve import journal
    from headrace.runtime.serve.app import make_app
    from headrace.runtime.serve.limits import Limits
    from headrace.runtime.serve.server import BACKLOG, bound, run, several

    if log_level not in ("debug", "info", "warning", "error"):
        raise InputError(f"--log-level is {log_level}; choose from debug, info, warning, error.")
    limits = Limits(queue, Limits.delay, max_body, max_texts, max_characters, timeout, grace, wait)
    waiting = several(host, port, workers) if workers else [bound(host, port)]  # before models, which take long
    options = {
        "target": target, "dtype": dtype, "max_length": max_length, "prefill": prefill, "pooling": listed(pooling),
        "tokenizer": tokenizer, "revision": revision, "trust_remote_code": trust_remote_code,
        "token_budget": token_budget, "trust": trust,
    }  # fmt: skip
    opened = {name: _opened(name, model, task or [], options) for name, model in _named(models).items()}
    for one in task or []:
        if not any(one in compiled.tasks for compiled in opened.values()):
            next(iter(opened.values())).engine.require(one)  # says why not
    keys = [*(api_key or []), *([os.environ[KEY]] if os.environ.get(KEY) else [])]
    journal.begin(log_level)

    def begun() -> None:
        console.note(f"serving {', '.join(opened)} at http://{host}:{waiting[0].getsockname()[1]}")

    if counting is not None:
        from headrace.runtime.serve.workers.team import Team

        with counting:
            Team(opened, waiting, limits, log_level, keys, cors_origin or []).run(begun)
        return
    app = make_app(opened, limits, keys=keys, origins=cors_origin or [])
    waiting[0].listen(BACKLOG)  # who reads the next line may connect
    begun()
    run(app, waiting[0], limits)


def _counting_together() -> TemporaryDirectory[str]:
    """A folder in which the processes of a server count together."""
    made = TemporaryDirectory(prefix="headrace-counts-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = made.name
    return made


def _named(models: list[str]) -> dict[str, str]:
    """What each model is called: by its own name, else by the last part of its path."""
    found: dict[str, str] = {}
    for one in models:
        name, _, model = one.rpartition("=")
        name = name or Path(model).name or model
        if name in found:
            raise InputError(f"Two models are called {name}. Put another name and = before one of them.")
        found[name] = model
    return found


def _compiled(opening: Opening, tasks: list[str]) -> Any:
    """The model for the first of the tasks that it can be made for: some a head offers only where it is wished for.

    One that is to embed and to generate does both by one program, whose steps hold the texts of both.
    """
    if {Task.EMBED, Task.GENERATE} <= set(tasks):
        with suppress(TaskNotEnabledError, TargetError):  # said below, of each task that was asked for
            return opening.compile(Task.GENERATE, beside=(Task.EMBED,))
    for task in tasks:
        try:
            return opening.compile(task)
        except TaskNotEnabledError:
            continue
    return opening.compile(None)


def _opened(name: str, model: str, tasks: list[str], options: dict[str, Any]) -> Any:
    """The model, compiled for the tasks that were asked for and that it enables, else for its default."""
    compiled = _compiled(Opening(model, **options), tasks)
    for task in tasks:
        if task in compiled.tasks:
            compiled.engine.lane(task)
    compiled.engine.warm_up()
    console.note(f"{name}: {', '.join(compiled.tasks)}; target {compiled.target}, {compiled.dtype}")
    return compiled
