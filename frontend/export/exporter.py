"""Export a model's code with a dynamic batch and sequence."""

from __future__ import annotations

import re
import warnings
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from headrace import debug
from headrace.errors import TraceError
from headrace.frontend.capture.attention import capture
from headrace.frontend.capture.flatten import flatten
from headrace.frontend.eager.signature import Served
from headrace.frontend.export.loop_diagnosis import culprit
from headrace.frontend.export.runtime_asserts import broken_assertion
from headrace.frontend.export.workarounds import any_length
from headrace.ir import SEQUENCE, TARGET, Axis, Input

# Bounds at or below this would be the sample's own length.
LEAST = 7
# How torch.export writes the length of the text.
SIZE = r"L\['input_ids'\]\.size\(\)\[1\]"


def export(
    served: Served, inputs: dict[str, Tensor], given: tuple[Input, ...], config: Any, additive: bool
) -> ExportedProgram:
    """The graph of one forward.

    Args:
        given: the inputs with their axes.
        additive: whether masks are traced in the form that a model's own code adds to its scores.

    Raises:
        TraceError: the code can't be exported so.
    """
    bound = _bound(config)
    shifting = any_length() if served.makes_target else nullcontext()
    with capture(served.model, additive), shifting, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export warns of its own deprecations
        try:
            return _exported(served, inputs, given, bound)
        except Exception as error:
            debug.say(debug.CODE, f"torch.export: {error}")
            for named in _bounds_in(str(error), config):
                with suppress(Exception):
                    return _exported(served, inputs, given, named)
            said = f"torch.export says: {_gist(error)} (HEADRACE_DEBUG=4 shows its whole message.)"
            raise TraceError(
                "The model's code cannot be exported with a dynamic batch and sequence: "
                f"{culprit(served, inputs, bound)}. {said}"
            ) from error


def _gist(error: Exception) -> str:
    """The line of torch.export's message that says most: of violated constraints, the first of them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [error.__class__.__name__]
    guard = next((line.split("the generated guard ")[1] for line in lines if "the generated guard " in line), None)
    return f"the graph is right only where {re.sub(SIZE, 'sequence', guard)}" if guard else lines[0]


def _exported(
    served: Served, inputs: dict[str, Tensor], given: tuple[Input, ...], bound: int | None
) -> ExportedProgram:
    """Export with every guard on sizes proven, else with those left in the graph that hold at every size tried."""
    options: dict[str, Any] = {"kwargs": inputs, "dynamic_shapes": _dimensions(given, bound), "strict": False}
    flat: ExportedProgram
    with suppress(Exception):
        flat = flatten(torch.export.export(served, (), **options))
        return flat
    exported = torch.export.export(served, (), **options, prefer_deferred_runtime_asserts_over_guards=True)
    flat = flatten(exported)
    along = next(iter(free_axes(given)), SEQUENCE)
    if broken := broken_assertion(flat, bound if along == SEQUENCE else None, along):
        raise ValueError(broken)
    return flat


def free_axes(given: tuple[Input, ...]) -> list[Axis]:
    """The axes but the batch's whose size each call brings."""
    return [axis for one in given for axis in one.axes[1:] if axis.size is None]


def _dimensions(given: tuple[Input, ...], bound: int | None) -> dict[str, dict[int, Dim]]:
    """The symbolic sizes of each input. Inputs that share an axis share its symbol."""
    free = {axis for one in given for axis in one.axes if axis.size is None}
    symbols = {axis: Dim(axis.name, min=axis.least, max=bound if axis in (SEQUENCE, TARGET) else None) for axis in free}
    return {
        one.name: {place: symbols[axis] for place, axis in enumerate(one.axes) if axis.size is None} for one in given
    }


def _bound(config: Any) -> int | None:
    """A model that slices a position table bounds its sequence, and the export wants the bound said beforehand."""
    longest = getattr(config.get_text_config(), "max_position_embeddings", None) if config is not None else None
    return longest if isinstance(longest, int) and longest > LEAST else None


def _bounds_in(message: str, config: Any) -> tuple[int, ...]:
    """The bounds of a sequence that a violated constraint and the config both name: a table's length, or one less.

    At the whole length, slicing the table takes another path than below it.
    """
    numbers = {int(number) for number in re.findall(r"\b\d+\b", message)}
    held = [value for value in vars(config.get_text_config()).values() if type(value) is int] if config else []
    longest = max((number for number in numbers if number > LEAST and number in held), default=None)
    return (longest, longest - 1) if longest is not None else ()
