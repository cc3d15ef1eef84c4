"""What one row of logits is asked, as the host knows it. Numpy alone: a model may run without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.generate.options import GenerateOptions

Ids = NDArray[np.int64]
NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Row:
    """One row of logits, as the host knows it.

    Attributes:
        options: of its request; what the sampler reads are temperature to frequency_penalty and logprobs.
        seed: of its answer: the noise of a token is a hash of it, the place and the token.
        place: how many new tokens came before.
        prompt: ids that count for the repetition penalty alone, int64 [p].
        new: ids of the answer so far, int64 [place].
        biased: ids whose logits something is added to, int64 [b], each once.
        biases: what is added, float32 [b]; minus infinity rules a token out.
        allowed: the tokens that a grammar or a rule lets through, a bit each: int32 [(V + 31) // 32]; None for all.
    """

    options: GenerateOptions
    seed: int = 0
    place: int = 0
    prompt: Ids = field(default_factory=lambda: NONE)
    new: Ids = field(default_factory=lambda: NONE)
    biased: Ids = field(default_factory=lambda: NONE)
    biases: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    allowed: NDArray[np.int32] | None = None

    @property
    def penalised(self) -> bool:
        """Whether tokens that came count."""
        return self.options.penalised
