"""A request while tokens are made for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.ir import OutputKind
from headrace.runtime.cache.store import Held


@dataclass(eq=False)
class Sequence:
    """One text that grows.

    Attributes:
        number: of the request, as `submit` returned it.
        tokens: of the prompt, then those that were made.
        prompt: how many of them are the prompt's.
        held: what it holds of the caches; None while it waits.
        request: what the caller asked for, which the engine hands on.
        source: of an encoder-decoder, what its encoder reads.
        kinds: what is answered of a text that does not grow; empty where tokens are made.
        answer: that, a row a kind, once it is over.
        finished: why no more are made; None while some are.
        error: what ended it, to be raised where its caller waits.
        others: sequences of the same answer, which are over when it is.
    """

    number: int
    tokens: list[int]
    prompt: int
    held: Held | None = None
    request: Any = None
    source: Any = None
    kinds: tuple[OutputKind, ...] = ()
    answer: dict[OutputKind, NDArray[np.float32]] = field(default_factory=dict)
    finished: str | None = None
    error: Exception | None = None
    others: list[Sequence] = field(default_factory=list)

    def fail(self, error: Exception) -> None:
        """It is over, by an error that is its caller's to hear and no other's."""
        self.finished, self.error = "error", error

    @property
    def left(self) -> int:
        """Tokens that are yet to run."""
        return len(self.tokens) - (self.held.count if self.held else 0)

    @property
    def made(self) -> list[int]:
        """The tokens past the prompt."""
        return self.tokens[self.prompt :]
