"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str, typer.Argument(help="A model folder, a hub id, or what `headrace compile` or `headrace export` wrote.")
]
Source = Annotated[str, typer.Argument(help="A model folder or a hub id.")]
Texts = Annotated[
    list[str] | None,
    typer.Argument(help="Texts, or image, WAV or .npy files; without any, lines of --input or standard input."),
]
Input = Annotated[Path | None, typer.Option("--input", "-i", help="Read texts from this file's lines.")]
Plain = Annotated[bool, typer.Option("--plain", help="Take every line as a text, even where it is JSON.")]
Target = Annotated[str, typer.Option(help="auto, cpu, cuda, rocm, onnx or reference (slow, needs no compiler).")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or float64; else the target's own.")]
MaxLength = Annotated[int | None, typer.Option(help="Tokens a text at most.")]
Truncate = Annotated[bool | None, typer.Option("--truncate/--no-truncate", help="Cut longer texts, or refuse them.")]
TokenBudget = Annotated[
    int | None, typer.Option(min=1, help="Tokens in a step at most, padding included; else the target's own.")
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Texts in a step at most; else packed by tokens.")]
Prompt = Annotated[str | None, typer.Option(help="A prompt's name in the folder, or its text.")]
Prefill = Annotated[str | None, typer.Option(help="single_pass opens token-level tasks to causal models.")]
Tower = Annotated[str | None, typer.Option(help="Of a folder with a Router: query, document ...")]
Pooling = Annotated[list[str] | None, typer.Option(help="cls, last, mean, max ...; given twice, concatenated.")]
Tokenizer = Annotated[str | None, typer.Option(help="The folder of the tokenizer, where the model's has none.")]
Revision = Annotated[str | None, typer.Option(help="Of a hub id.")]
TrustCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run a saved model that is not of your own saving: it is a program.")
]
Parallel = Annotated[
    str | None,
    typer.Option(help="How the devices of a target such as cuda:0-1 share the work: data (else), or tensor."),
]
Task = Annotated[str | None, typer.Option(help="The task to decide for; else the model's default.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
