"""Why an export failed, in words of the model's own code: no symbol of torch's reaches a user."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch

from headrace.compat.torch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
from headrace.frontend.eager.signature import DECODED, Served
from headrace.frontend.export.fixed_length import fixed_length, innermost, passed_by
from headrace.frontend.export.loop_diagnosis import culprit

# What torch raises where code asks for a number or a size that only the values of a tensor say.
BY_VALUES = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)
# How torch writes the size of an input, and what it calls sizes that it has no name for.
SIZE = re.compile(r"L\['(\w+)'\]\.size\(\)\[(\d)\]")
SYMBOL = re.compile(r"\b(?:s|u|zuf|zf)\d+\b")
GUARD = re.compile(r"the generated guard ([^\n]+?)(?=Specializations|Constraints|\n|$)")
# One size between two bounds, and what has one size alone.
ALONE = re.compile(r"(\d+) <= (\w+) and \2 <= \1")
FIXED = re.compile(r"Specializations unexpectedly required \(([\w, ]+)\)")


def explain(
    error: Exception, served: Served, inputs: dict[str, torch.Tensor], longest: int | None, again: Callable[[], object]
) -> str:
    """The whole refusal.

    Args:
        longest: the longest sequence that the model takes.
        again: exports once more, which fails again.
    """
    chain = list(_chain(error))
    lines = (innermost(passed_by(one.__traceback__)) for one in reversed(chain))
    if any(isinstance(one, BY_VALUES) for one in chain):
        where = next((line for line in lines if line is not None), "its code")
        why = f"{where} decides by what a tensor holds, and one graph has to do for all texts"
    else:
        why = culprit(served, inputs, longest, fixed_length(again, longest))
    said = _gist(error)
    return (
        f"The model's code cannot be exported with a dynamic batch and sequence: {why}.{said} (HEADRACE_DEBUG=4 shows "
        "torch's whole message.)"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _gist(error: Exception) -> str:
    """What torch.export says, where that can be said in words: of violated constraints the first, or its first line."""
    message = str(error).strip()
    if guard := GUARD.search(message):
        bounds = SIZE.sub(_named, guard[1]).strip()
        alone = ALONE.fullmatch(bounds)
        said = f"the graph is right only where {f'{alone[2]} is {alone[1]}' if alone else bounds}"
    elif fixed := FIXED.search(message):
        said = f"the code takes one size of {fixed[1]} alone"
    else:
        said = next((line.strip() for line in message.splitlines() if line.strip()), error.__class__.__name__)
        said = said.partition(" For more information, run with TORCH_LOGS")[0]
    return "" if SYMBOL.search(said) or "L['" in said else f" torch.export says: {said}"


def _named(size: re.Match[str]) -> str:
    if size[2] == "0":
        return "batch"
    return "target" if size[1] in DECODED else "sequence"
