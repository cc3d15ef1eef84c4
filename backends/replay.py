"""Rows of few tokens as captured graphs of the device: one launch in place of one a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.ir import OFFSETS, PER_TOKEN_OUTPUTS, Program

# The rows that the batcher makes; each is captured for so many tokens a sequence, on average, and more.
ROWS = (16, 32, 64, 128, 256, 512, 1024, 2048)
SHORT = 8


@dataclass(frozen=True)
class Capture:
    """One row's graph. It reads `inputs` and writes `output`, always the same memory."""

    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]
    output: Tensor


class Replays:
    """The captured rows of one program. One call at a time: they share their memory."""

    def __init__(self, run: Callable[..., Tensor], program: Program) -> None:
        """Capture every row.

        Args:
            run: the compiled program; takes its inputs by position, on the device.
        """
        self._names, self._captures = program.input_names, dict[int, Capture]()
        self._per_token = program.outputs[0].kind in PER_TOKEN_OUTPUTS
        pool = torch.cuda.graph_pool_handle()
        # The largest first: the others then fit in the memory that it took.
        for tokens in reversed(ROWS):
            self._captures[tokens] = self._capture(run, program, tokens, pool)

    def _capture(self, run: Callable[..., Tensor], program: Program, tokens: int, pool: Any) -> Capture:
        inputs = {name: torch.zeros((1, tokens), dtype=torch.int64, device="cuda") for name in self._names}
        inputs[OFFSETS] = torch.full((sequences(tokens) + 1,), tokens, dtype=torch.int32, device="cuda")
        inputs[OFFSETS][0] = 0
        if "position_ids" in inputs:
            inputs["position_ids"] += program.positions.offset
        given = [inputs[name] for name in self._names]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run(*given)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            output = run(*given)
        return Capture(graph, inputs, output)

    def fit(self, inputs: Mapping[str, Tensor]) -> bool:
        """Whether a capture holds that row."""
        tokens = inputs["input_ids"].shape[1]
        return tokens in self._captures and inputs[OFFSETS].shape[0] - 1 <= sequences(tokens)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Copy the inputs in, replay, and copy the output out, in the order of the current stream."""
        capture = self._captures[inputs["input_ids"].shape[1]]
        for name, held in capture.inputs.items():
            given = inputs[name]
            if name == OFFSETS and given.shape != held.shape:
                given = torch.cat([given, given[-1:].expand(held.shape[0] - given.shape[0])]).pin_memory()
            held.copy_(given, non_blocking=True)
        capture.graph.replay()
        kept = capture.output if self._per_token else capture.output[: inputs[OFFSETS].shape[0] - 1]
        return kept.clone()


def sequences(tokens: int) -> int:
    """How many sequences a captured row has, empty ones included."""
    return max(2, tokens // SHORT)
