"""The commands that write models to folders and look at what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.errors import InputError
from headrace.runtime.artifact.places import require_place
from headrace.runtime.engine.quantization_gate import cache_words, words
from headrace.runtime.tools.cli import console
from headrace.runtime.tools.cli.opening import Opening, several
from headrace.runtime.tools.cli.options import (
    Dtype,
    MaxLength,
    Model,
    Pooling,
    Prefill,
    Revision,
    Source,
    Target,
    Task,
    TokenBudget,
    Tokenizer,
    Tower,
    Trust,
    TrustCode,
)

Saved = Annotated[Path, typer.Argument(help="A folder that `headrace export` or `headrace compile` wrote.")]
Exported = Annotated[Path, typer.Argument(help="A folder that `headrace export` wrote.")]


def compile_(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    model: Model,
    out: Annotated[
        Path | None, typer.Argument(help="The folder to write; every other command takes it as a model.")
    ] = None,
    task: Task = None,
    target: Target = "auto",
    dtype: Dtype = None,
    max_length: MaxLength = None,
    prefill: Prefill = None,
    pooling: Pooling = None,
    tower: Tower = None,
    tokenizer: Tokenizer = None,
    revision: Revision = None,
    trust_remote_code: TrustCode = False,
    token_budget: TokenBudget = None,
    trust: Trust = False,
    quantize: Annotated[
        str | None,
        typer.Option(help="fp8 (cuda) or int8 (cpu) multiplies large layers in 8 bits; what it costs is printed."),
    ] = None,
    kv_cache_dtype: Annotated[
        str | None,
        typer.Option(help="fp8 keeps keys and values in 8 bits (reference, cuda, rocm); what it costs is printed."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Keep a quantised model whose answers fail the gate.")] = False,
    kernels_only: Annotated[
        bool,
        typer.Option(
            "--kernels-only",
            help="Only Headrace's own kernels, for an architecture that need not be here: rocm:gfx942.",
        ),
    ] = False,
) -> None:
    """Compile a model once and save it: starting from the saved folder needs no trace and no compiler."""
    opening = Opening(
        model, target, dtype, max_length, prefill, several(pooling), tokenizer, revision, trust_remote_code,
        token_budget, quantize, trust, tower, kv_cache_dtype=kv_cache_dtype,
    )  # fmt: skip
    if kernels_only and (quantize or kv_cache_dtype) is not None:
        option = "quantize" if quantize else "kv-cache-dtype"
        raise InputError(f"--kernels-only compiles the kernels of the model as it is. Leave --{option} out.")
    if kernels_only:
        from headrace.runtime.tools.cli.commands.kernels import compile_kernels

        compile_kernels(opening.lower(task), task, out)
        return
    if out is None:
        raise InputError("compile writes a folder: headrace compile MODEL OUT. Only --kernels-only does without one.")
    require_place(out)
    compiled = opening.compile(task, force)
    if compiled.quantized is not None:
        console.note(words(compiled.quantized))
    for lane in compiled.engine.lanes.values():
        if (kept := lane.program.form.quantized_caches) is not None:
            console.note(f"keys and values in {kept.dtype}: {cache_words(kept)}")
    folder = compiled.save(out)
    console.note(f"target {compiled.target}, {compiled.dtype}; wrote {folder}")


def export(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    model: Source,
    out: Annotated[Path, typer.Argument(help="The folder to write; Headrace and onnxruntime take it as it is.")],
    profile: Annotated[str, typer.Option(help="std, fast or portable.")] = "std",
    dtype: Annotated[str, typer.Option(help="Of the weights: float32, float16, int8 or int4.")] = "float32",
    task: Task = None,
    logits: Annotated[str, typer.Option(help="Of a model that generates: all tokens', or the last one's.")] = "all",
    force: Annotated[bool, typer.Option("--force", help="Keep a model whose answers fail the checks.")] = False,
    max_length: MaxLength = None,
    prefill: Prefill = None,
    pooling: Pooling = None,
    tower: Tower = None,
    tokenizer: Tokenizer = None,
    revision: Revision = None,
    trust_remote_code: TrustCode = False,
) -> None:
    """Write a model as ONNX with its tokenizer, labels and pooling, checked against the original."""
    opening = Opening(
        model, "reference", "float32", max_length, prefill, several(pooling), tokenizer, revision, trust_remote_code,
        tower=tower,
    )  # fmt: skip
    require_place(out)
    folder = (
        opening.trace(task)
        .lower("reference")
        .export_onnx(out, task=task, profile=profile, dtype=dtype, logits=logits, max_length=max_length, force=force)
    )
    console.note(f"profile {profile}, {dtype}; checked; wrote {folder}")


def inspect(folder: Saved) -> None:
    """What a saved model is: its attention, route, tasks, files. Loads nothing."""
    from headrace.runtime.tools.cli.commands.onnx import describe

    console.say(describe(folder))


def verify(
    folder: Exported, target: Annotated[str, typer.Option(help="onnx, or one provider: onnx:cuda ...")] = "onnx"
) -> None:  # fmt: skip
    """Whether an exported model answers here as it did where it was made. Exits 1 where it does not."""
    from headrace.runtime.tools.cli.commands.onnx import check_export

    passed = True
    for fine, what in check_export(folder, target):
        print(f"{'ok  ' if fine else 'FAIL'}  {what}")
        passed = passed and fine
    if not passed:
        raise typer.Exit(1)
