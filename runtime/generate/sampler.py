"""A step's logits to the next token of each answer, on the device; only the chosen tokens leave it."""

from __future__ import annotations

from itertools import repeat

from torch import Tensor

from headrace.errors import non_finite
from headrace.runtime.engine.sequence import Sequence
from headrace.runtime.generate.answer import Answer
from headrace.runtime.generate.batch import SamplingBatch, batched
from headrace.runtime.generate.generation import TokenLogprob
from headrace.runtime.generate.sampling import Sampled, sample

PLAIN = SamplingBatch()  # the likeliest token of every row


class Sampler:
    """Chooses by what each answer asks for. A sequence's request is its `Answer`."""

    def __init__(self, dtype: str) -> None:
        """`dtype` is what the model runs in, for messages."""
        self._dtype = dtype

    def __call__(self, logits: Tensor, sequences: list[Sequence]) -> None:
        """Give each sequence its next token; logits [1, w, vocabulary], a row each."""
        answers: list[Answer] = [sequence.request for sequence in sequences]
        rows = logits[0]
        found = sample(rows, PLAIN if all(answer.start.plain for answer in answers) else self._batch(answers, rows))
        # NaN is the largest of all numbers to argmax, so that a row which holds one shows it here.
        finite = rows.gather(1, found.ids[:, None])[:, 0].isfinite().tolist()
        for sequence, answer, token, known, sound in zip(
            sequences, answers, found.ids.tolist(), _known(found, len(sequences)), finite, strict=True
        ):
            if not sound:
                sequence.fail(non_finite(f"The logits after {len(sequence.tokens)} tokens", self._dtype))
                continue
            sequence.tokens.append(token)
            own = known if answer.start.options.logprobs is not None else None
            if (reason := answer.push(token, own and _as_asked(own, answer))) is not None:
                sequence.finished = reason.value

    @staticmethod
    def _batch(answers: list[Answer], rows: Tensor) -> SamplingBatch:
        return batched([answer.row for answer in answers], rows.shape[1], rows.device)


def _known(found: Sampled, count: int) -> list[TokenLogprob | None]:
    if found.logprobs is None:
        return [None] * count
    tops = repeat(()) if found.top_ids is None or found.top_logprobs is None else zip(
        found.top_ids.tolist(), found.top_logprobs.tolist(), strict=True
    )  # fmt: skip
    return [
        TokenLogprob(token, own, tuple(zip(*top, strict=True)) if top else ())
        for token, own, top in zip(found.ids.tolist(), found.logprobs.tolist(), tops, strict=False)
    ]


def _as_asked(known: TokenLogprob, answer: Answer) -> TokenLogprob:
    """With as many alternatives as this answer asks for: another of the step may ask for more."""
    return TokenLogprob(known.token_id, known.logprob, known.top[: answer.start.options.logprobs])
