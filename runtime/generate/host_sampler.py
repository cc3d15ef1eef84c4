"""A step's logits to the next token of each answer, in numpy: where onnxruntime runs a model, torch need not be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.engine.sequence import Sequence
from headrace.runtime.generate.answer import Answer, take_token
from headrace.runtime.generate.host_sampling import choose


class HostSampler:
    """Chooses by what each answer asks for. A sequence's request is its `Answer`, or has a beam to go on with."""

    def __init__(self, dtype: str) -> None:
        """`dtype` is what the model runs in, for messages."""
        self._dtype = dtype

    def __call__(self, logits: NDArray[Any], sequences: list[Sequence]) -> None:
        """Give each sequence its next token; logits float32 [1, w, vocabulary], a row each."""
        for scores, sequence in zip(logits[0], sequences, strict=True):
            answer = sequence.request
            if not isinstance(answer, Answer):
                answer.arrive(sequence, scores)
                continue
            token, known = (int(scores.argmax()), None) if answer.start.plain else choose(scores, answer.row)
            # NaN is the largest of all numbers to argmax.
            take_token(sequence, token, known, bool(np.isfinite(scores[token])), self._dtype)
