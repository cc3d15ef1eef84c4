"""The command `headrace`. Nothing here imports torch before a command needs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace import __version__
from headrace.errors import warn
from headrace.runtime.tools.cli import console, files
from headrace.runtime.tools.cli.commands import parity, saved
from headrace.runtime.tools.cli.commands.answering import add_commands
from headrace.runtime.tools.cli.commands.serve import serve
from headrace.runtime.tools.cli.opening import Opening, several
from headrace.runtime.tools.cli.options import (
    Dtype,
    Json,
    Model,
    Pooling,
    Prefill,
    Revision,
    Source,
    Target,
    Task,
    Tokenizer,
    TrustCode,
)

app = typer.Typer(
    name="headrace",
    help="Hand it a Hugging Face model: it says what the model's attention does, and serves what it can.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: list[str] | None = None) -> Any:
    """Run the command that the arguments name; None takes the process's. What goes wrong comes as an exception."""
    return typer.main.get_command(app).main(arguments, prog_name="headrace", standalone_mode=False)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Options of the program itself."""
    if version:
        print(f"headrace {__version__}")
        raise typer.Exit


@app.command()
def explain(
    model: Model,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with the attention map here.")] = None,
    as_json: Json = False,
    task: Task = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Also what this target would do, and why: rocm:gfx942, cuda:sm90, cpu ... Not of a saved model."
        ),
    ] = None,
    dtype: Dtype = None,
    prefill: Prefill = None,
    pooling: Pooling = None,
    tokenizer: Tokenizer = None,
    revision: Revision = None,
    trust_remote_code: TrustCode = False,
) -> None:
    """What the model's attention does, how it is routed, and what it can do and why."""
    opening = Opening(
        model, target=target or "auto", dtype=dtype, prefill=prefill, pooling=several(pooling), tokenizer=tokenizer,
        revision=revision, trust_remote_code=trust_remote_code,
    )  # fmt: skip
    files.require_writable(html)
    lowered = opening.lower() if target else None
    program, made = (lowered.program, target) if lowered else opening.decided()
    from headrace.ir.serialize import encode
    from headrace.runtime.tools.inspect.report import explain as explained

    chosen = _chosen(program, task)
    decided = {"target": made, "task": chosen, "plan": lowered.plan(task) if lowered else ()}
    if html is not None:
        files.write(html, explained(program, "html", **decided))
        console.note(f"wrote {html}")
    if as_json:
        print(json.dumps(encode(program), indent=1))
    elif html is None:
        console.say(explained(program, **decided))


@app.command()
def tasks(
    model: Model,
    as_json: Json = False,
    task: Task = None,
    prefill: Prefill = None,
    pooling: Pooling = None,
    revision: Revision = None,
    trust_remote_code: TrustCode = False,
) -> None:
    """The tasks that the model offers, each supported or refused, with the reason."""
    opening = Opening(
        model, prefill=prefill, pooling=several(pooling), revision=revision, trust_remote_code=trust_remote_code
    )
    program, _ = opening.decided()
    from headrace.ir.serialize import encode
    from headrace.runtime.tools.inspect.report import task_table

    chosen = _chosen(program, task)
    if as_json:
        print(json.dumps({"default": chosen, "tasks": encode(program.decision.tasks)}, indent=1))
    else:
        console.say("\n".join(line[2:] for line in task_table(program, chosen)) + "\n")


@app.command()
def probe(model: Source, revision: Revision = None, trust_remote_code: TrustCode = False) -> None:
    """What every attention is declared to see beside what it was seen to see. Exits 1 where they disagree."""
    traced = Opening(model, revision=revision, trust_remote_code=trust_remote_code).trace()
    from headrace.runtime.tools.cli.commands.probe_report import report

    found = report(traced.program, traced.behaviour)
    print(found.text, end="")
    if not found.agrees:
        raise typer.Exit(1)


add_commands(app)
app.command(name="compile")(saved.compile_)
app.command()(saved.export)
app.command()(saved.inspect)
app.command()(saved.verify)
app.command()(serve)
app.add_typer(parity.app)


@app.command()
def doctor(as_json: Json = False) -> None:
    """What is installed, which devices there are, what is missing, and the line that mends it."""
    from headrace.runtime.tools.cli.commands.doctor import examine, report, works

    findings = examine()
    print(json.dumps([finding.as_dict() for finding in findings], indent=1) if as_json else report(findings))
    if not works(findings):
        raise typer.Exit(1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Where the page goes.")] = Path("headrace-demo.html"),
    target: Target = "auto",
) -> None:
    """Headrace on real models: similarities, names in a sentence, the page, a refusal and its cure."""
    from headrace.runtime.tools.cli.commands.demo import shown

    for line in shown(out, target):
        console.say(f"{line}\n")
        sys.stdout.flush()


def _chosen(program: Any, wish: str | None) -> Any:
    """The task that compiling would take, with the warning that compiling would give."""
    from headrace.tasks import select

    task, warning = select(program, wish)
    if warning:
        warn(warning)
    return task
