"""How many tokens a step may hold: what the user or the target said, and half of it once memory ran out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.backends.interface import Backend
from headrace.errors import OutOfMemoryError, warn
from headrace.ir import Layout
from headrace.runtime.engine.lane import Lane
from headrace.runtime.engine.padded_batch import Step
from headrace.runtime.engine.request import Asked
from headrace.runtime.places import Numbers


class Budget:
    """Of an engine's steps.

    Attributes:
        tokens: what the user said, padded tokens in a step at most; None leaves it to the target.
    """

    def __init__(self, tokens: int | None) -> None:
        """Nothing is halved yet."""
        self.tokens = tokens
        self._half: int | None = None

    def plan(self, lane: Lane, left: Numbers, asked: Asked, backend: Backend) -> Iterator[Step]:
        """Steps of the requests that are left, by their place in the caller's list."""
        own = {"fills": backend.fills_rows} if lane.program.form.layout is Layout.PACKED else {}
        steps = lane.batcher.plan(
            asked.lengths[left],
            lane.program,
            step_tokens=self._half or backend.step_tokens,
            batch_size=asked.batch_size,
            token_budget=None if self._half else self.tokens,
            **own,
        )
        return (replace(step, requests=left[step.requests]) for step in steps)

    def halve(self, step: Step, asked: Asked, error: OutOfMemoryError, most: int) -> None:
        """Take half the tokens a step from here on, once; afterwards, and for a request alone, give up.

        Args:
            most: tokens that a step of the target holds.

        Raises:
            OutOfMemoryError: says which request or how many tokens did not fit, and what to do.
        """
        if len(step.requests) == 1:
            request = step.requests[0]
            raise OutOfMemoryError(
                f"Request {asked.places.number(request)}, of {asked.lengths[request]} tokens, needs more memory than "
                f"is free though it ran alone: {error}. Shorten or split it, or free memory of the device."
            ) from error
        if self._half is not None:
            raise OutOfMemoryError(
                f"A step of {self._half} tokens, half of what was planned, needs more memory than is free: "
                f"{error}. Compile with a smaller token_budget, or free memory of the device."
            ) from error
        whole = self.tokens or most
        self._half = max(1, whole // 2)
        warn(
            f"A step of {whole} tokens needs more memory than is free ({error}); this model goes on with "
            f"{self._half}. Compile with token_budget={self._half} to begin so."
        )
