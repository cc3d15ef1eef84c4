"""Programs compiled for a GPU, on a sample: code for every size.

A packed program's rows of few tokens, where launching costs more than computing, are captured as graphs of the device
besides. Nothing is compiled ahead of time: packages of graphs with operators of ours crash where torch 2.11 loads them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from headrace import debug, graphs, sample
from headrace.backends.gpu.code import Code, compiler_options, in_pythons_words
from headrace.backends.gpu.cuda_graphs import Replays, Run, capturable
from headrace.backends.gpu.device import current, on_host
from headrace.backends.gpu.memory import memory_told, ran_out
from headrace.backends.gpu.passes.scaled_products import ScaleProducts
from headrace.backends.gpu.readback import Host
from headrace.backends.inductor.compile import Decompositions, quiet
from headrace.backends.inductor.precision import exact
from headrace.backends.interface import WarmsUp
from headrace.backends.kernels.tuning import family
from headrace.compat.torch import ConstraintViolationError, mark_dynamic, oblivious_sizes, specialized_floats
from headrace.graphs.passes import run_graph_passes
from headrace.ir import Program
from headrace.utils.forks import Guard
from headrace.utils.scratch import room_told

Sample = Callable[[], dict[str, Tensor]]
# A graph is compiled for rows up to here, or up to the longest request where that is longer.
LONGEST = 1 << 16
# Tokens and sequences of the row that a packed graph is compiled and its kernels are tuned on: as full as rows are.
SAMPLE = (16384, 129)
# Sequences and rows of each in the batches that a padded graph is compiled on: where its code asks whether a size is
# one, torch makes a graph of its own for a batch of one, of any length.
BATCHES = ((4, 64), (1, 64))


class OfGraph:
    """What is compiled anew from the graph that it saves; one call at a time."""

    _run: Callable[..., Any]

    def __init__(self, program: Program) -> None:
        """Keep the graph, which is on the device."""
        self.calls = 0
        self._exported, self._names = program.graph, program.signature.input_names
        self._guard = Guard()

    def __call__(self, inputs: Mapping[str, Tensor]) -> Any:
        """Run on torch's current device."""
        raise NotImplementedError

    def _exactly(self, *given: Tensor) -> Sequence[Tensor]:
        return exactly(self._run, *given)

    def save(self, path: Path) -> None:
        """Write the graph and its weights."""
        graphs.save(on_host(self._exported), path)


class Padded(OfGraph):
    """A padded program, compiled for any batch, fed from the host."""

    def __init__(self, program: Program, decompositions: Decompositions) -> None:
        """Compile on a sample.

        Args:
            program: padded, its graph on the device.
        """
        super().__init__(program)
        with quiet(), exact(), torch.no_grad():
            module = graphs.flat_module(program.graph.run_decompositions(dict(decompositions)))
            run_graph_passes(module.graph, (ScaleProducts(),))
            samples = [partial(sample_batch, program, *size) for size in BATCHES]
            self._run = _compiled(module, program, samples)

    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, Tensor]) -> Any:
        """Copy the inputs to the device and run: the output, or a tuple of several."""
        self.calls += 1
        given = [moved(inputs[name]) for name in self._names]
        with self._guard.lock, exact(), memory_told():
            return alone(self._run(*given))


class Packed(OfGraph):
    """A packed program, compiled for any row; those of few tokens are captured as they come."""

    def __init__(self, program: Program, step_tokens: int) -> None:
        """Compile on a sample.

        Args:
            program: packed, its graph on the device.
        """
        super().__init__(program)
        longest = max(step_tokens, program.facts.limits.length or 0, LONGEST)
        with quiet(), exact(), torch.no_grad():
            self._run = compiled_kernels(program, partial(sample_row, program, *SAMPLE), longest)
            self._replays = (
                Replays(self._exactly, program, short_kernels(program)) if capturable(program.graph) else None
            )

    def __call__(self, inputs: Mapping[str, Tensor]) -> Any:
        """Copy the inputs to the device, run, and copy what is made back, without waiting for any of it."""
        self.calls += 1
        with self._guard.lock, memory_told():
            made = self._replays(inputs) if self._replays else None
            return alone(made or [Host(one) for one in self._kernel_by_kernel(inputs)])

    @torch.no_grad()
    def warm_up(self) -> None:
        """Capture the short rows."""
        if self._replays is not None:
            with self._guard.lock, memory_told(), debug.stage("capture"):
                self._replays.capture_short()

    def _kernel_by_kernel(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """A row that is not captured; where it finds no memory, once more without that of the captured ones."""
        given = [moved(inputs[name]) for name in self._names]
        try:
            return self._exactly(*given)
        except RuntimeError as error:
            if not (self._replays and ran_out(error) and self._replays.give_back()):
                raise
        return self._exactly(*given)


class Placed:
    """An executable of one device among several, which each call makes torch's current one."""

    def __init__(self, made: OfGraph, placed: Callable[[], AbstractContextManager[Any]]) -> None:
        """`placed` makes the device current."""
        self._made, self._placed = made, placed
        self.calls = 0

    def __call__(self, inputs: Mapping[str, Tensor]) -> Any:
        """Run on the device."""
        self.calls += 1
        with self._placed():
            return self._made(inputs)

    def warm_up(self) -> None:
        """As of what it places, where that does anything."""
        if isinstance(self._made, WarmsUp):
            with self._placed():
                self._made.warm_up()

    def save(self, path: Path) -> None:
        """Write the graph and its weights."""
        self._made.save(path)


@torch.no_grad()
def exactly(run: Run, *given: Tensor) -> Sequence[Tensor]:
    """Run it in full precision. What is captured needs that not set again, which takes longer than to replay it."""
    with exact():
        return run(*given)


def alone(outputs: Sequence[Any]) -> Any:
    """The one output of a program, or a tuple of several."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def moved(given: Tensor) -> Tensor:
    """On the device, copied from pinned memory while that computes."""
    return given.pin_memory().to("cuda", non_blocking=True)


def compiled_kernels(program: Program, made: Sample, longest: int) -> Code:
    """A program with our kernels for its operators, compiled for rows of up to `longest` on what `made` makes."""
    inputs = made()
    with debug.stage("code"):
        return Code(_kernels(program), program, [inputs[name] for name in program.signature.input_names], longest)


def short_kernels(program: Program) -> Run | None:
    """A program for rows of few tokens: launches alone, which are captured. None where they were not measured."""
    from headrace.backends.kernels.pipeline import short_rows

    module = short_rows(program, family(current()))
    return None if module is None else partial(exactly, in_pythons_words(module).forward)


def _kernels(program: Program) -> fx.GraphModule:
    # Here: a padded program needs none of our kernels, nor Triton.
    from headrace.backends.gpu.pipeline import compiler_passes
    from headrace.backends.kernels.pipeline import with_kernels

    module = graphs.flat_module(with_kernels(program, family(current())))
    run_graph_passes(module.graph, compiler_passes())
    return module


def _compiled(module: fx.GraphModule, program: Program, samples: Sequence[Sample]) -> Any:
    """One graph for every batch; its first calls, on samples, compile it."""
    # Its `forward`: calling the module itself, torch walks the traceback of what is raised inside, under its own
    # compiler, whose complaint about that then takes the place of an error such as memory that ran out.
    run = in_pythons_words(module).forward
    compiled = torch.compile(run, fullgraph=True, dynamic=True, options=compiler_options(program))
    # Numbers of our functions are constants. Else torch makes an input of each, and begins again where one cannot be.
    # One is a size as any other, where nothing asks for it; torch by itself compiles anew for it.
    with specialized_floats(), oblivious_sizes():
        for made in samples:
            try:
                with unlogged("torch._guards"), room_told("The compiled model"):
                    compiled(*_free(program, made(), LONGEST))
            except ConstraintViolationError:
                # A guard that torch cannot prove for every size, such as those of experts' routing: calls check it.
                compiled(*_free(program, made(), None))
    return compiled


@contextmanager
def unlogged(name: str) -> Iterator[None]:
    """Without what a module of torch logs of an error that is handled here."""
    logger = logging.getLogger(name)
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def _free(program: Program, inputs: dict[str, Tensor], longest: int | None) -> list[Tensor]:
    """The inputs in order, their free sizes but ones marked: bounded by `longest`, or as far as the guards allow."""
    for given in program.signature.inputs:
        for place, axis in enumerate(given.axes):
            if axis.size is None and inputs[given.name].shape[place] != 1:
                # A bound lets Inductor choose its index width once, where a guard would compile again for long rows.
                mark_dynamic(inputs[given.name], place, None if longest is None else (1, longest + 1))
    return [inputs[name] for name in program.signature.input_names]


def sample_row(program: Program, tokens: int, count: int) -> dict[str, Tensor]:
    """A row of sequences of like length, on the device."""
    return {name: value.cuda() for name, value in sample.even_row(program, tokens, count).items()}


def sample_batch(program: Program, count: int, length: int) -> dict[str, Tensor]:
    """A batch of sequences of that length, or as long as the program allows, on the device."""
    limits = program.facts.limits, program.facts.target_limits
    real, target = (
        torch.ones((count, min(length, limit.length or length) if limit else length), dtype=torch.bool)
        for limit in limits
    )
    return {name: value.cuda() for name, value in sample.batch(program, real, target).items()}
