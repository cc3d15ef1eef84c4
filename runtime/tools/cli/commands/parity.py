"""The commands on parity bundles: record one here, check it elsewhere, lay two results side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.errors import InputError
from headrace.runtime.tools.cli import console, files
from headrace.runtime.tools.cli.opening import Opening, several
from headrace.runtime.tools.cli.options import Pooling, Prefill, Revision, Source, Target, Task, TrustCode
from headrace.utils.scratch import require_cache

if TYPE_CHECKING:
    from headrace.runtime.tools.parity.check.findings import Result

app = typer.Typer(
    name="parity", help="Whether a model computes here what it computed elsewhere, node by node.", no_args_is_help=True
)
Precisions = Annotated[
    list[str] | None,
    typer.Option("--precision", help="float32, bfloat16 or float16; may be given again. Else all."),
]
Json = Annotated[Path | None, typer.Option("--json", help="Write the result here, for `headrace parity report`.")]


@app.command()
def record(
    model: Source,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    task: Task = None,
    target: Target = "auto",
    precision: Precisions = None,
    prefill: Prefill = None,
    pooling: Pooling = None,
    seed: Annotated[int, typer.Option(help="Of the requests, which are random token ids.")] = 0,
    revision: Revision = None,
    trust_remote_code: TrustCode = False,
) -> None:
    """Write a bundle of a model, and check it on this machine. Exits 1 where this target does not pass it."""
    Opening(model).require_source()
    require_cache()
    from headrace.runtime.tools.parity.record.recording import record
    from headrace.runtime.tools.parity.rule import SLACK

    result = record(
        model, out, task=task, target=target, precisions=precision or tuple(SLACK), prefill=prefill,
        pooling=several(pooling), seed=seed, revision=revision, trust_remote_code=trust_remote_code,
    )  # fmt: skip
    console.note(f"wrote {out}")
    _conclude(result)


@app.command()
def check(
    bundle: Annotated[Path, typer.Argument(help="A folder that `headrace parity record` wrote.")],
    target: Target = "auto",
    precision: Precisions = None,
    model: Annotated[str | None, typer.Option(help="The model, where the bundle holds no weights.")] = None,
    json: Json = None,
    trust_remote_code: TrustCode = False,
) -> None:
    """Run a bundle's model here and compare every node with float64. Exits 1 where one is too far off."""
    files.require_writable(json)
    require_cache()
    from headrace.runtime.tools.parity.check.checking import check

    result = check(
        bundle, target=target, precisions=precision, model=model, trust_remote_code=trust_remote_code
    )  # fmt: skip
    if json is not None:
        files.write(json, result.as_json())
        console.note(f"wrote {json}")
    _conclude(result)


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="Results of `check --json`, or bundles; one or two.")],
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with heat maps here.")] = None,
) -> None:
    """One result, or two side by side: the verdict, the worst offender first, and where they part."""
    files.require_writable(html)
    from headrace.runtime.tools.parity.report.text import read, report_page, report_text

    if len(results) > 2:
        raise InputError(f"{len(results)} results were given; one, or two to be laid side by side, are accepted.")
    read_in = [read(path) for path in results]
    if html is not None:
        files.write(html, report_page(read_in))
        console.note(f"wrote {html}")
    print(report_text(read_in), end="")
    if not all(result.passed for result in read_in):
        raise typer.Exit(1)


def _conclude(result: Result) -> None:
    from headrace.runtime.tools.parity.report.text import report_text

    print(report_text([result]), end="")
    if not result.passed:
        raise typer.Exit(1)
