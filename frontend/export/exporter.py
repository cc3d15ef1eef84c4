"""Export a model's code with a dynamic batch and sequence."""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes

from headrace import debug, graphs
from headrace.compat.torch import brief_traces, without_stacks
from headrace.errors import TraceError
from headrace.frontend.capture.attention import capture
from headrace.frontend.capture.flatten import flatten
from headrace.frontend.eager.borrowed import borrowed
from headrace.frontend.eager.signature import Served
from headrace.frontend.export.errors import explain
from headrace.frontend.export.runtime_asserts import BrokenAssertion, broken_assertion, holds_to
from headrace.frontend.export.silence import prints_silenced
from headrace.frontend.export.workarounds import FlatRows, any_length
from headrace.ir import SEQUENCE, TARGET, Axis, Input

# Bounds at or below this would be the sample's own length.
LEAST = 7
# Bounds that are tried: at a table's whole length, slicing it takes another way than below.
BOUNDS = 4


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
    # Whoever reads the generated code sees which line of the model each part of it is of.
    stacks = nullcontext() if debug.level() >= debug.CODE else without_stacks()
    with (
        capture(served.model, additive),
        shifting,
        stacks,
        torch.no_grad(),
        prints_silenced(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # torch.export warns of its own deprecations
        try:
            return _within_bounds(served, inputs, given, bound)
        except Exception as error:
            options: dict[str, Any] = {"kwargs": inputs, "dynamic_shapes": _dimensions(given, bound), "strict": False}
            again = partial(_traced, served, **options)
            raise TraceError(explain(error, served, inputs, bound, again)) from error


def _within_bounds(
    served: Served, inputs: dict[str, Tensor], given: tuple[Input, ...], bound: int | None
) -> ExportedProgram:
    """Export as far as the code goes one way: where it takes another past some length, up to there."""
    todo, tried, first = [bound], list[int | None](), None
    while todo:
        tried.append(todo.pop(0))
        try:
            return _exported(served, inputs, given, tried[-1])
        except Exception as error:
            debug.say(debug.CODE, f"torch.export: {error}")
            first = first or error
            closer = _proven_bounds(error, _dimensions(given, tried[-1]))
            todo += [one for one in closer if one not in (*tried, *todo) and one > LEAST][: BOUNDS - len(tried)]
    assert first is not None
    raise first


def _proven_bounds(error: Exception, shapes: dict[str, dict[int, Dim]]) -> tuple[int, ...]:
    """The longest sequence up to which what the export assumes of sizes holds, where a bound is all that it asks."""
    if isinstance(error, BrokenAssertion):
        # Under a bound of the first length that breaks, the export may prove what it could not without.
        return () if error.holds_to is None else (error.holds_to + 1, error.holds_to)
    refined: Any
    try:
        refined = refine_dynamic_shapes_from_suggested_fixes(getattr(error, "msg", ""), shapes)
    except Exception:  # it suggests no other shapes
        return ()
    before, after = ({dim for one in each.values() for dim in one.values()} for each in (shapes, refined))
    bounds = {getattr(dim, "max", None) for dim in after - before}
    bound = bounds.pop() if len(bounds) == 1 else None
    return (bound,) if isinstance(bound, int) and bound < sys.maxsize - 1 else ()


def _exported(
    served: Served, inputs: dict[str, Tensor], given: tuple[Input, ...], bound: int | None
) -> ExportedProgram:
    """Export with every guard on sizes proven, else with those left in the graph that hold at every size tried."""
    options: dict[str, Any] = {"kwargs": inputs, "dynamic_shapes": _dimensions(given, bound), "strict": False}
    with suppress(Exception):
        return _traced(served, **options)
    try:
        return _asserting(served, options, given, bound)
    except BrokenAssertion:
        # What is decided by whether a part of a text is one token long is how memory is laid out, mostly.
        for otherwise in (FlatRows, any_length):
            with otherwise(), suppress(Exception):
                return _asserting(served, options, given, bound)
        raise


def _asserting(served: Served, options: dict[str, Any], given: tuple[Input, ...], bound: int | None) -> ExportedProgram:
    flat = _traced(served, **options, prefer_deferred_runtime_asserts_over_guards=True)
    along = next(iter(free_axes(given)), SEQUENCE)
    if broken := broken_assertion(flat, bound if along == SEQUENCE else None, along):
        raise BrokenAssertion(broken, holds_to(flat) if along == SEQUENCE else None)
    return flat


def _traced(served: Served, **options: Any) -> ExportedProgram:
    """The functional graph, without what the model writes into its own buffers for the next run: each begins anew."""
    with borrowed(served.model), brief_traces():
        exported = torch.export.export(served, (), **options)
    return graphs.drop_mutations(flatten(exported))


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
