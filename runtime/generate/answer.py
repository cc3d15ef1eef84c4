"""An answer as it grows: what its next row of logits is asked, and what its tokens make of it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError, non_finite
from headrace.ir import Decoding
from headrace.runtime.engine.sequence import Sequence as Growing
from headrace.runtime.generate.detokenizer import Vocabulary
from headrace.runtime.generate.generation import Generation, TokenLogprob
from headrace.runtime.generate.guided import Grammars, Matcher
from headrace.runtime.generate.options import GenerateOptions, find_lengths
from headrace.runtime.generate.row import Row
from headrace.runtime.generate.rules import Rules
from headrace.runtime.generate.stopping import FinishReason, Stopping, StopRules

Ids = NDArray[np.int64]
MASK = (1 << 64) - 1
# The first room for tokens: the most that may come is often far more than what comes.
GROWN = 256


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
    room: int | None = None
    tokenizer: Any = None

    @cached_property
    def grammars(self) -> Grammars:
        """What texts can keep to."""
        return Grammars(self.tokenizer, self.width, self.decoding.ends)

    @cached_property
    def vocabularies(self) -> tuple[Vocabulary, Vocabulary] | None:
        """The tokenizer as it decodes, with special tokens and without them."""
        return None if self.tokenizer is None else (Vocabulary(self.tokenizer, False), Vocabulary(self.tokenizer, True))


class Start:
    """A prompt, and what rules all that goes on from it.

    Attributes:
        held: the ids that the decoder begins with: the prompt, or the start of an encoder-decoder's target.
        tokens: how many the prompt has.
        least: so many tokens come before anything ends a text.
        most: so many end it.
        ends: tokens that end it.
        vocabulary: makes its text, None for a model without a tokenizer.
        plain: whether its rows take the likeliest token and ask for nothing else, at every place.
    """

    def __init__(self, model: Model, prompt: Ids, options: GenerateOptions, source: bool = False) -> None:
        """Work out what no token changes.

        Args:
            prompt: int64 [p]: what the encoder reads where `source` is set, else what is continued.

        Raises:
            InputTooLongError: no new token has room.
            InputError: nothing to begin with, options that name tokens which the head has no logits for, or stop
                strings of a model without a tokenizer.
        """
        self.options, self.tokens = options, len(prompt)
        self.held = np.array(model.decoding.start, np.int64) if source else prompt
        if not len(self.held):
            raise InputError(_nothing_to_begin_with(source))
        if options.stop and model.tokenizer is None:
            raise InputError(
                "stop needs a tokenizer, and the model has none. Pass one as tokenizer=, or stop_token_ids."
            )
        lengths = find_lengths(options, model.decoding, len(self.held), model.room)
        self.least, self.most = lengths
        self._rules = Rules(options, model.decoding, model.width, lengths, prompt if source else None)
        self.ends = (*(() if options.ignore_eos else model.decoding.ends), *options.stop_token_ids)
        held = model.vocabularies
        self.vocabulary = None if held is None else held[options.skip_special_tokens]
        asks = options.guided or options.penalised or options.logprobs is not None
        self.plain = options.greedy and not asks and self._rules.idle

    def row(self, new: Ids, seed: int = 0, matcher: Matcher | None = None) -> Row:
        """What the next token is asked for, after the tokens `new` of a text."""
        if matcher is not None:
            allowed, (biased, biases) = matcher.allowed(), self._rules.asked
        elif (forced := self._rules.forced(self.held, new)) is not None:
            allowed, (biased, biases) = forced, NOTHING
        else:
            allowed, (biased, biases) = None, self._rules.biases(self.held, new)
        return Row(self.options, seed, len(new), self.held, new, biased, biases, allowed)


class Answer:
    """One answer to one prompt."""

    def __init__(self, start: Start, *, seed: int = 0, index: int = 0, matcher: Matcher | None = None) -> None:
        """Begin with no token.

        Args:
            seed: of its noise.
            index: which of the prompt's answers it is.
            matcher: what the text keeps to, this answer's own.
        """
        self.start = start
        self._seed, self.index, self._matcher = seed, index, matcher
        rules = StopRules(start.ends, start.options.stop, start.least, start.most)
        self._stopping = Stopping(start.vocabulary, rules)
        self._logprobs: list[TokenLogprob] = []
        self._new = np.zeros(min(start.most, GROWN), np.int64)

    @property
    def new(self) -> Ids:
        """The tokens of the answer so far, int64 [place]."""
        return self._new[: self.place]

    @property
    def place(self) -> int:
        """How many they are."""
        return len(self._stopping.ids)

    @property
    def reason(self) -> FinishReason | None:
        """Why it ended, None before."""
        return self._stopping.reason

    @property
    def logprobs(self) -> Sequence[TokenLogprob]:
        """Of its tokens so far, in order; none where they were not asked for."""
        return self._logprobs

    @property
    def row(self) -> Row:
        """What its next token is asked for."""
        return self.start.row(self.new, self._seed, self._matcher)

    def push(self, token: int, logprob: TokenLogprob | None = None) -> FinishReason | None:
        """The next token; why the answer ends with it, None where it goes on."""
        if self.place == len(self._new):
            self._new = np.concatenate([self._new, np.zeros_like(self._new)])
        self._new[self.place] = token
        if logprob is not None:
            self._logprobs.append(logprob)
        self._stopping.push(token)
        if self._matcher is not None and self.reason is not FinishReason.STOP:
            self._matcher.advance(token)
            if self._matcher.complete:
                self._stopping.end()
        return self.reason

    @property
    def lasting(self) -> bool:
        """Whether another token may follow its next one."""
        return self.place + 1 < self.start.most

    def take(self) -> str:
        """What may be told of the text now and was not."""
        return self._stopping.take()

    def generation(self) -> Generation:
        """The answer, once it has ended."""
        assert self.reason is not None, "the answer goes on"
        known = tuple(self._logprobs) if self.start.options.logprobs is not None else None
        ids = tuple(self._stopping.ids)
        return Generation(self._stopping.text, ids, self.reason, self.start.tokens, known, self.index)


def take_token(sequence: Growing, token: int, known: TokenLogprob | None, sound: bool, dtype: str) -> None:
    """Give a sequence, whose request is an `Answer`, its next token; it fails where the token's score is not finite.

    Args:
        dtype: what the model runs in, for the message.
    """
    if not sound:
        sequence.fail(non_finite(f"The logits after {len(sequence.tokens)} tokens", dtype))
        return
    sequence.tokens.append(token)
    if (reason := sequence.request.push(token, known)) is not None:
        sequence.finished = reason.value


def begin_answers(model: Model, prompt: Ids, options: GenerateOptions, source: bool = False) -> list[Answer]:
    """The `n` answers to a prompt, before their first token; see `Start` for what is refused."""
    start, grammar = Start(model, prompt, options, source), model.grammars.read(options)
    seed = secrets.randbits(63) if options.seed is None else options.seed
    return [
        Answer(start, seed=seed_of(seed, index), index=index, matcher=None if grammar is None else grammar.begin())
        for index in range(options.n)
    ]


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
