"""A step's logits to the next token of each answer, on the device; only the chosen tokens leave it."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.runtime.engine.sequence import Sequence
from headrace.runtime.generate.answer import Answer, take_token
from headrace.runtime.generate.batch import SamplingBatch, batched
from headrace.runtime.generate.beam_group import BeamGroup
from headrace.runtime.generate.generation import TokenLogprob
from headrace.runtime.generate.row import Row
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
            self.finish(self._chosen(logits[0], sequences))

    def begin(self, logits: Tensor, sequences: list[Sequence]) -> Chosen | None:
        """The likeliest tokens, on their way to the host; None where a sequence is asked for something else."""
        if not all(isinstance(one.request, Answer) and one.request.start.plain for one in sequences):
            return None
        return self._chosen(logits[0], sequences)

    def finish(self, chosen: Chosen) -> None:
        """Wait for the tokens, and give each sequence its own, but for those that are over by now."""
        ids, scored = chosen.read()
        for sequence, token, own, sound in zip(
            chosen.sequences, ids.long().tolist(), chosen.known(), scored.isfinite().tolist(), strict=True
        ):
            if not sequence.finished:
                take_token(sequence, token, own, sound, self._dtype)

    def _chosen(self, scores: Tensor, sequences: list[Sequence]) -> Chosen:
        answers: list[Answer] = [sequence.request for sequence in sequences]
        rows = None if all(answer.start.plain for answer in answers) else [answer.row for answer in answers]
        asked = PLAIN if rows is None else batched(rows, scores.shape[1], scores.device)
        return Chosen(sequences, rows, sample(scores, asked), scores)


class Chosen:
    """A step's tokens while they are copied to the host.

    Attributes:
        sequences: whose they are.
        ids: int64 [w], on the device.
    """

    def __init__(self, sequences: list[Sequence], rows: list[Row] | None, found: Sampled, scores: Tensor) -> None:
        """Begin to copy. `rows` are what each was asked for, None where nothing was."""
        self.sequences, self.ids = sequences, found.ids
        self._rows, self._found = rows, found
        # NaN is the largest of all numbers to argmax, so that a row which holds one shows it here.
        highest = scores.gather(1, found.ids[:, None])[:, 0]
        both = torch.stack([found.ids.double(), highest.double()])  # one copy for both
        self._copy, self._done = both, None
        if both.is_cuda:
            self._copy = torch.empty(both.shape, dtype=both.dtype, pin_memory=True)
            self._copy.copy_(both, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    @property
    def lasting(self) -> list[int]:
        """The places of the sequences that another token follows, unless this one ends them; all before it are read."""
        return [place for place, one in enumerate(self.sequences) if one.request.lasting]

    def read(self) -> Tensor:
        """Ids and their scores, float64 [2, w], once they are there."""
        if self._done is not None:
            self._done.synchronize()
        return self._copy

    def known(self) -> list[TokenLogprob | None]:
        """What each row asked to know of its token."""
        if self._rows is None:
            return [None] * len(self.sequences)
        host = Sampled(self.ids.cpu(), *(None if one is None else one.cpu() for one in self._found[1:]))
        return known_logprobs(host, self._rows)
