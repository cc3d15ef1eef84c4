"""Rows of a program for some requests: each alone, or all together as a target runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace import graphs
from headrace.backends.interface import Backend
from headrace.ir import PER_TOKEN_OUTPUTS, Layout, Program
from headrace.runtime.engine import packed_batch, padded_batch
from headrace.runtime.state.model_state import state_class
from headrace.runtime.text.encoded import Encoded, Tokens
from headrace.runtime.tools.parity.record.exact import exact_output
from headrace.runtime.tools.parity.rule import Array

Run = Callable[[Mapping[str, NDArray[Any]]], Any]
# All requests go in one step where padding is exact: what leaks from one to another must have the chance to.
STEP_TOKENS = 1 << 17


def alone(program: Program, requests: Sequence[Encoded], run: Callable[[dict[str, Tensor]], Tensor]) -> list[Array]:
    """The output for each request of a padded program, alone and unpadded: [tokens, width], or [width]."""
    found = []
    for request in requests:
        inputs = padded_batch.assemble(Tokens.of([request]), request.length, program)
        output = run({name: torch.from_numpy(array) for name, array in inputs.items()})
        found.append(output[0].double().numpy())
    return found


def together(program: Program, requests: Sequence[Encoded], run: Run) -> list[Array]:
    """The output for each request, run together as the program's layout has it."""
    batcher: Any = packed_batch if program.form.layout is Layout.PACKED else padded_batch
    per_token = program.signature.outputs[0].kind in PER_TOKEN_OUTPUTS
    tokens = Tokens.of(requests)
    found: list[Array] = [np.empty(0)] * len(requests)
    for step in batcher.plan(tokens.lengths, program, step_tokens=STEP_TOKENS):
        output = np.asarray(run(batcher.assemble(tokens.take(step.requests), step.length, program)))
        for request, rows in zip(step.requests, batcher.rows(step, tokens.lengths, output, per_token), strict=True):
            found[request] = rows.astype(np.float64)
    return found


def on_target(program: Program, backend: Backend) -> Run:
    """The program compiled for a target."""
    executable, state = backend.compile(program), state_class(program)(program)
    return lambda inputs: backend.fetch(state.step(executable, backend.feed(inputs)))


def in_float64(program: Program) -> Run:
    """The program interpreted in float64 here."""
    return lambda inputs: exact_output(program, _tensors(inputs)).numpy()


def interpreted(program: Program) -> Run:
    """The program interpreted in its own dtype here."""
    return lambda inputs: graphs.run(program.graph, _tensors(inputs))[0][0].double().numpy()


def _tensors(inputs: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}


def columns(rows: Sequence[Array], program: Program) -> list[list[Array]]:
    """The tapped rows of each request, node by node."""
    ends = np.cumsum([tap.width for tap in program.nodes.taps])[:-1]
    split = [np.split(one, ends, axis=1) for one in rows]
    return [[one[place] for one in split] for place in range(len(program.nodes.taps))]
