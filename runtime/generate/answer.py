"""An answer as it grows: what its next row of logits is asked, and what its tokens make of it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.ir import Decoding
from headrace.runtime.generate.detokenizer import Vocabulary
from headrace.runtime.generate.generation import Generation, TokenLogprob
from headrace.runtime.generate.guided import Matcher
from headrace.runtime.generate.options import GenerateOptions, find_lengths
from headrace.runtime.generate.row import Row
from headrace.runtime.generate.rules import Rules
from headrace.runtime.generate.stopping import FinishReason, Stopping, StopRules

Ids = NDArray[np.int64]
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Model:
    """What answers need to know of a model.

    Attributes:
        decoding: its folder's rules.
        width: how many tokens its head has logits for.
        room: how many tokens its decoder can hold, None where nothing bounds them.
        tokenizer: of transformers, a `PlainTokenizer`, or None.
    """

    decoding: Decoding
    width: int
    room: int | None
    tokenizer: object | None = None


class Answer:
    """One answer to one prompt.

    Attributes:
        options: its request's.
        index: which of the prompt's answers it is.
        held: the ids that the decoder begins with: the prompt, or the start of an encoder-decoder's target.
    """

    def __init__(
        self, model: Model, prompt: Ids, options: GenerateOptions, *, source: bool = False, index: int = 0,
        seed: int | None = None, vocabulary: Vocabulary | None = None, matcher: Matcher | None = None,
    ) -> None:  # fmt: skip
        """Begin with no token.

        Args:
            prompt: int64 [p]: what the encoder reads where `source` is set, else what is continued.
            index: which of the prompt's answers it is.
            seed: of its noise, see `seed_of`; None draws one.
            vocabulary: of the tokenizer, where a text is made.
            matcher: what the text keeps to, this answer's own.

        Raises:
            InputTooLongError: no new token has room.
            InputError: an encoder-decoder without a token to begin with.
        """
        self.options, self.index, self._matcher, self._prompt_tokens = options, index, matcher, len(prompt)
        self.prompt = prompt
        self.held = np.array(model.decoding.start, np.int64) if source else prompt
        if not len(self.held):
            raise InputError(_nothing_to_begin_with(source))
        least, most = find_lengths(options, model.decoding, len(self.held), model.room)
        self._rules = Rules(options, model.decoding, model.width, (least, most), prompt if source else None)
        ends = () if options.ignore_eos else model.decoding.ends
        stops = StopRules((*ends, *options.stop_token_ids), options.stop, least, most)
        self._stopping = Stopping(vocabulary, stops)
        self._seed = secrets.randbits(63) if seed is None else seed
        self._logprobs: list[TokenLogprob] = []
        # The tokens that the decoder holds, with room to grow: penalties and rules read them at every step.
        self._ids = np.concatenate([self.held, np.zeros(most, np.int64)])

    @property
    def new(self) -> Ids:
        """The tokens of the answer so far, int64 [place]."""
        return self._ids[len(self.held) : len(self.held) + self.place]

    @property
    def place(self) -> int:
        """How many they are."""
        return len(self._stopping.ids)

    @property
    def reason(self) -> FinishReason | None:
        """Why it ended, None before."""
        return self._stopping.reason

    @property
    def row(self) -> Row:
        """What its next token is asked for."""
        place, held = self.place, self._ids[: len(self.held) + self.place]
        if self._matcher is not None:
            allowed, (biased, biases) = self._matcher.allowed(), self._rules.asked
        elif (forced := self._rules.forced(place, len(held))) is not None:
            allowed, (biased, biases) = forced, NOTHING
        else:
            allowed, (biased, biases) = None, self._rules.biases(place, held)
        return Row(self.options, self._seed, place, self.held, self.new, biased, biases, allowed)

    def push(self, token: int, logprob: TokenLogprob | None = None) -> FinishReason | None:
        """The next token; why the answer ends with it, None where it goes on."""
        self._ids[len(self.held) + self.place] = token
        if logprob is not None:
            self._logprobs.append(logprob)
        self._stopping.push(token)
        if self._matcher is not None and self.reason is not FinishReason.STOP:
            self._matcher.advance(token)
            if self._matcher.complete:
                self._stopping.end()
        return self.reason

    def take(self) -> str:
        """What may be told of the text now and was not."""
        return self._stopping.take()

    def generation(self) -> Generation:
        """The answer, once it has ended."""
        assert self.reason is not None, "the answer goes on"
        known = tuple(self._logprobs) if self.options.logprobs is not None else None
        ids = tuple(self._stopping.ids)
        return Generation(self._stopping.text, ids, self.reason, self._prompt_tokens, known, self.index)


NOTHING = (np.empty(0, np.int64), np.empty(0, np.float32))


def seed_of(seed: int, index: int) -> int:
    """The seed of one of several answers, a signed number of 64 bits: the first one's is the request's own."""
    if not index:
        return seed
    x = (seed + index * 0x9E3779B97F4A7C15) & MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & MASK
    x ^= x >> 31
    return x - (x >> 63 << 64)


def _nothing_to_begin_with(source: bool) -> str:
    if source:
        return (
            "The model's generation config names no token that its decoder begins with. Add decoder_start_token_id to "
            "generation_config.json."
        )
    return "The prompt has no tokens: there is nothing to continue. Give a text, or the token that texts begin with."
