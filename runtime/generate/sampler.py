"""A step's logits to the next token of each answer, on the device; only the chosen tokens leave it."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.errors import non_finite
from headrace.runtime.engine.sequence import Sequence
from headrace.runtime.generate.answer import Answer
from headrace.runtime.generate.batch import SamplingBatch, batched
from headrace.runtime.generate.beam_group import BeamGroup
from headrace.runtime.generate.sampling import Sampled, known_logprobs, sample

PLAIN = SamplingBatch()  # the likeliest token of every row


class Sampler:
    """Chooses by what each answer asks for. A sequence's request is its `Answer`."""

    def __init__(self, dtype: str) -> None:
        """`dtype` is what the model runs in, for messages."""
        self._dtype = dtype

    def __call__(self, logits: Tensor, sequences: list[Sequence]) -> None:
        """Give each sequence its next token; logits [1, w, vocabulary], a row each."""
        alone = [place for place, sequence in enumerate(sequences) if isinstance(sequence.request, Answer)]
        for place, sequence in enumerate(sequences):
            if isinstance(sequence.request, BeamGroup):
                sequence.request.arrive(sequence, logits[0, place])
        if len(alone) < len(sequences):
            logits, sequences = logits[:, alone], [sequences[place] for place in alone]
        if sequences:
            self._choose(logits[0], sequences)

    def _choose(self, scores: Tensor, sequences: list[Sequence]) -> None:
        answers: list[Answer] = [sequence.request for sequence in sequences]
        rows = None if all(answer.start.plain for answer in answers) else [answer.row for answer in answers]
        asked = PLAIN if rows is None else batched(rows, scores.shape[1], scores.device)
        found = sample(scores, asked)
        # NaN is the largest of all numbers to argmax, so that a row which holds one shows it here.
        highest = scores.gather(1, found.ids[:, None])[:, 0]
        ids, scored = torch.stack([found.ids.double(), highest.double()]).cpu()  # one wait for the device
        known = [None] * len(answers) if rows is None else known_logprobs(_on_host(found), rows)
        for sequence, answer, token, own, sound in zip(
            sequences, answers, ids.long().tolist(), known, scored.isfinite().tolist(), strict=True
        ):
            if not sound:
                sequence.fail(non_finite(f"The logits after {len(sequence.tokens)} tokens", self._dtype))
                continue
            sequence.tokens.append(token)
            if (reason := answer.push(token, own)) is not None:
                sequence.finished = reason.value


def _on_host(found: Sampled) -> Sampled:
    return Sampled(found.ids.cpu(), *(None if one is None else one.cpu() for one in found[1:]))
