"""What a GPU target will do with a program, and why: decided from the program, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headrace.backends.gpu.architecture import Architecture
from headrace.backends.gpu.cuda_graphs import LONGEST, SHORT_ROWS, capturable
from headrace.backends.gpu.device import current
from headrace.backends.gpu.stepping import ROOMS
from headrace.backends.inductor.precision import PRECISION
from headrace.backends.interface import Choice
from headrace.backends.kernels.linear_activation.match import activations
from headrace.backends.kernels.linear_activation.op import FEW
from headrace.backends.kernels.tuning import PRODUCTS, family
from headrace.ir import AttentionType, CacheKind, Layout, Program, State


def plan(program: Program, target: str, architecture: Architecture | None, padded: str) -> tuple[Choice, ...]:
    """The decisions about a program of one task.

    Args:
        program: LOWERED, in the layout that it will run in.
        architecture: the one that was asked for; None is the device that is here.
        padded: what attends in padded programs.
    """
    return tuple(_choices(program, target, architecture, padded))


def _choices(program: Program, target: str, architecture: Architecture | None, padded: str) -> Iterator[Choice]:
    if architecture is not None:
        yield Choice(
            "architecture",
            f"{architecture} ({architecture.cards}): waves of {architecture.wave}, {architecture.local:,} bytes of "
            "local memory a program",
            "it was asked for; kernels compile for it anywhere, the rest of the program where it is",
        )
    if program.nodes.attention:
        yield _attention(program, padded)
    yield from _activations(program, architecture)
    yield from _graphs(program)
    if (quantized := program.form.quantized) is not None:
        yield Choice(
            "products in 8 bits",
            f"{quantized.layers} of {quantized.among} linear layers, by torch._scaled_mm",
            f"{quantized.scheme} was asked for: a scale for each row, found as it comes, and for each output",
        )
    yield Choice(
        "products",
        f"a library's, float32_matmul_precision={PRECISION}",
        "any other setting rounds float32 to TF32 (NVIDIA), XF32 or bfloat16 (AMD) before it multiplies",
    )


def _attention(program: Program, padded: str) -> Choice:
    kinds = ", ".join(sorted({f"{spec.type} {spec.mask}" for spec in program.nodes.attention}))
    if program.form.layout is Layout.PADDED:
        return Choice("attention", padded, f"the program is padded; {kinds}, by the mask that the graph computes")
    return Choice(
        "attention",
        f"Headrace's Triton kernel, for all {len(program.nodes.attention)}",
        f"one source serves CUDA and ROCm and takes every mask; {kinds} here",
    )


def _activations(program: Program, architecture: Architecture | None) -> Iterator[Choice]:
    """The layers that a kernel of ours computes with their activation."""
    name = architecture.name if architecture else family(current()) if torch.cuda.is_available() else ""
    count = sum(1 for _ in activations(program.graph.graph)) if program.form.layout is Layout.PACKED else 0
    if count and name in PRODUCTS:
        yield Choice(
            "activations",
            f"in the kernel of the product before them, {count}; below {FEW:,} tokens a library's product, then they",
            f"it is tuned for {name}, and neither the product nor half a gated one is written and read again",
        )


def _graphs(program: Program) -> Iterator[Choice]:
    """What is captured as graphs of the device, launched at once, and what is not."""
    if program.form.layout is Layout.PADDED:
        yield Choice("captured in graphs", "nothing", _padded_why(program))
    elif not capturable(program.graph):
        why = "an operator may wait for the device: another library's, or one that shapes its answer by data"
        if any(cache.kind is CacheKind.ROW for cache in program.form.caches):
            why = "what goes on from a state asks the device how long each sequence of a step is"
        yield Choice("captured in graphs", "nothing", why)
    elif program.form.layout is Layout.CACHED:
        yield Choice(
            "captured in graphs",
            f"steps of one token a sequence, of up to {ROOMS[-1]} sequences",
            "decoding consists of them, and launching their kernels one by one costs more than the kernels",
        )
    else:
        yield Choice(
            "captured in graphs",
            f"rows of up to {SHORT_ROWS[-1]:,} tokens; longer ones, up to {LONGEST:,}, when they come again",
            "launching kernel by kernel costs more than computing a short row",
        )
    if program.decision.route is not None and program.decision.route.state is State.ENCODER_DECODER:
        yield from _halves(program)


def _padded_why(program: Program) -> str:
    reason = program.form.layout_why.rstrip(".") or "it is padded"
    return f"{reason}; so it runs padded, in other shapes at each step, and a captured graph holds for one shape alone"


def _halves(program: Program) -> Iterator[Choice]:
    """The parts of an encoder-decoder, by what they have to do with a captured graph."""
    crossing = [spec for spec in program.nodes.attention if spec.type is AttentionType.ENCODER_DECODER]
    if not crossing:
        yield Choice(
            "not captured", "the decoder and its cross attention", "this task reads the encoder alone: they do not run"
        )
        return
    yield Choice(
        "not captured",
        f"the encoder, and the decoder with its {len(crossing)} cross attentions",
        "queries come from the target and keys from the text, of two lengths that vary each by itself: a graph "
        "would be needed for each pair of them",
    )
