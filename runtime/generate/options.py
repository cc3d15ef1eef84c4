"""What a caller may ask of generation, and what holds where they ask nothing: the folder's own rules."""

from __future__ import annotations

import difflib
import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

import numpy as np

from headrace.errors import InputError, InputTooLongError, warn
from headrace.ir import Beams, Decoding

# As transformers' pipeline of text generation: the 20 tokens of its `generate` and the 16 of vLLM end in mid-sentence,
# and up to the end of the context a small model that never ends would repeat itself for minutes.
NEW_TOKENS = 256
# Below it, logits in float32 overflow when they are divided.
COLDEST = 1e-6
# As many alternatives as OpenAI's and vLLM's servers give.
ALTERNATIVES = 20
MOST_BIAS = 100.0
SEEDS = 1 << 63


@dataclass(frozen=True)
class GenerateOptions:
    """How one prompt is continued.

    Attributes:
        max_new_tokens: None up to the folder's max_length, else 256.
        min_new_tokens: nothing ends a text before; None up to the folder's min_length.
        temperature: 0 takes the likeliest token of each step.
        top_k: how many of the likeliest tokens are drawn from; 0 of all.
        top_p: the share of probability that the likeliest tokens must hold to be drawn from.
        min_p: the least probability, as a share of the likeliest token's.
        repetition_penalty: divides the positive logits of tokens of prompt and answer, multiplies the negative ones.
        presence_penalty: is taken off the logits of the answer's tokens.
        frequency_penalty: the same, for each time that a token came.
        n: answers to each prompt.
        seed: of what is drawn; None draws it as well.
        stop: strings that end a text, which is cut before them.
        stop_token_ids: tokens that end a text beside the model's own.
        logprobs: None for none, else how many alternatives to give beside each token's own.
        logit_bias: added to the logits of tokens, -100 to 100; a mapping is accepted.
        ignore_eos: whether the model's end tokens end nothing.
        choice: strings of which the text is one.
        json_schema: a JSON schema that the text satisfies; a mapping or a string is accepted, and kept as a string.
        beams: how many continuations are followed at once, 1 for none but the answer; None as many as the folder says.
        skip_special_tokens: whether the text leaves out the tokenizer's special tokens.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    n: int = 1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    choice: tuple[str, ...] = ()
    json_schema: str | None = None
    beams: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        """Bring the options into their form, and refuse what cannot be done.

        Raises:
            InputError: every option that is not as accepted.
        """
        for name in ("stop", "choice"):
            self._set(name, _strings(getattr(self, name)))
        self._set("stop_token_ids", _whole(self.stop_token_ids))
        self._set("logit_bias", _biases(self.logit_bias))
        self._set("json_schema", _schema(self.json_schema))
        for name in WHOLE | {"temperature", "top_p", "min_p", *PENALTIES}:
            self._set(name, _plain(getattr(self, name)))
        refused = [f"{name} is {reprlib.repr(value)}; {accepted}" for name, value, accepted in self._refused()]
        if refused:
            raise InputError(f"{'. '.join(refused)}.")

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether tokens that came count."""
        return self.repetition_penalty != 1 or bool(self.presence_penalty) or bool(self.frequency_penalty)

    @property
    def guided(self) -> bool:
        """Whether the text has a grammar to keep to."""
        return bool(self.choice) or self.json_schema is not None

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _refused(self) -> Iterable[tuple[str, Any, str]]:
        for name, (least, most, accepted) in ACCEPTED.items():
            value = getattr(self, name)
            if value is None and name in OPTIONAL:
                continue
            if not _is_number(value, name in WHOLE) or not least <= value <= most:
                yield name, value, f"{accepted} is accepted"
        if _is_number(self.temperature) and 0 < self.temperature < COLDEST:
            yield (
                "temperature",
                self.temperature,
                f"0 (the likeliest token) or {COLDEST} and above is accepted",
            )
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                yield name, getattr(self, name), "True or False is accepted"
        yield from self._refused_lists()
        yield from self._refused_pairs()

    def _refused_lists(self) -> Iterable[tuple[str, Any, str]]:
        for name in ("stop", "choice"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(one, str) and one for one in value):
                yield name, value, "one string or several, none of them empty, are accepted"
        if not isinstance(self.stop_token_ids, tuple) or not all(_is_id(one) for one in self.stop_token_ids):
            yield "stop_token_ids", self.stop_token_ids, "token ids, each an int of 0 and above, are accepted"
        bias = self.logit_bias
        if not isinstance(bias, tuple) or not all(map(_is_bias, bias)):
            yield (
                "logit_bias",
                bias,
                f"a mapping of token ids to numbers from {-MOST_BIAS:g} to {MOST_BIAS:g} is accepted",
            )
        if self.json_schema is not None and not _is_json(self.json_schema):
            yield "json_schema", self.json_schema, "a JSON schema is accepted, as a mapping or as its text"

    def _refused_pairs(self) -> Iterable[tuple[str, Any, str]]:
        """What is wrong of two options together."""
        least, most = self.min_new_tokens, self.max_new_tokens
        if isinstance(least, int) and isinstance(most, int) and least > most:
            yield "min_new_tokens", least, f"at most max_new_tokens, {most}, is accepted"
        if isinstance(self.n, int) and self.n > 1 and self.greedy:
            yield "n", self.n, "1 is accepted with temperature=0, at which all answers are the same"
        if self.choice and self.json_schema is not None:
            yield "choice", self.choice, "choice or json_schema is accepted, not both"
        if self.guided and self.min_new_tokens:
            yield "min_new_tokens", least, "0 is accepted with choice or json_schema, which say how long a text is"
        if self.guided and self.ignore_eos:
            yield "ignore_eos", True, "False is accepted with choice or json_schema, whose texts end"


# Each number's least and most, and what is accepted in words.
PENALTIES = ("presence_penalty", "frequency_penalty")
WHOLE = frozenset({"max_new_tokens", "min_new_tokens", "top_k", "n", "seed", "logprobs", "beams"})
OPTIONAL = frozenset({"max_new_tokens", "min_new_tokens", "seed", "logprobs", "beams"})
ACCEPTED: dict[str, tuple[float, float, str]] = {
    "max_new_tokens": (1, math.inf, "an int of 1 and above, or None"),
    "min_new_tokens": (0, math.inf, "an int of 0 and above, or None"),
    "temperature": (0, 1e6, "0 (the likeliest token) or a finite number above"),
    "top_k": (0, math.inf, "0 (all tokens) or an int of 1 and above"),
    "top_p": (math.ulp(0.0), 1, "a number above 0, up to 1"),
    "min_p": (0, 1, "a number from 0 to 1"),
    "repetition_penalty": (math.ulp(0.0), 1e6, "a finite number above 0 (1 is none)"),
    **dict.fromkeys(PENALTIES, (-2, 2, "a number from -2 to 2")),
    "n": (1, math.inf, "an int of 1 and above"),
    "beams": (1, math.inf, "an int of 1 and above, or None"),
    "seed": (-SEEDS, SEEDS - 1, "an int of 64 bits, or None"),
    "logprobs": (0, ALTERNATIVES, f"an int from 0 to {ALTERNATIVES}, or None"),
}


def defaults_of(decoding: Decoding) -> GenerateOptions:
    """What the folder asks for, where a caller asks for nothing.

    Raises:
        InputError: it asks for what no options can be.
    """
    try:
        return GenerateOptions(
            max_new_tokens=decoding.max_new_tokens,
            min_new_tokens=decoding.min_new_tokens,
            temperature=decoding.temperature,
            top_k=decoding.top_k,
            top_p=decoding.top_p,
            min_p=decoding.min_p,
            repetition_penalty=decoding.repetition_penalty,
            stop=decoding.stop,
        )
    except InputError as error:
        raise InputError(f"The folder's generation_config.json cannot be followed. {error} Mend that file.") from error


def read_options(decoding: Decoding, **given: Any) -> GenerateOptions:
    """The caller's options over the folder's; None leaves one to the folder.

    Raises:
        InputError: an option of no such name, one that is not as accepted, or a folder that asks for what is not done.
    """
    known = [field.name for field in fields(GenerateOptions)]
    if unknown := [name for name in given if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, 1)
        raise InputError(
            f"There is no option {unknown[0]!r}{f', but {near[0]!r}' if near else ''}; {', '.join(known)} are accepted."
        )
    asked = {name: value for name, value in given.items() if value is not None}
    defaults = defaults_of(decoding)
    if "max_new_tokens" in asked and "min_new_tokens" not in asked:
        # The folder's least is for texts as long as the folder has them.
        asked["min_new_tokens"] = _at_most(defaults.min_new_tokens, asked["max_new_tokens"])
    if asked.get("choice") or "json_schema" in asked:
        asked.setdefault("min_new_tokens", 0)  # the folder's least is for texts without a grammar
    made = GenerateOptions(**{name: asked.get(name, getattr(defaults, name)) for name in known})
    _require_served(decoding, made, asked)
    return made


def _at_most(least: int | None, most: Any) -> int | None:
    return least if least is None or not isinstance(most, int) else min(least, most)


def _require_served(decoding: Decoding, options: GenerateOptions, asked: Mapping[str, Any]) -> None:
    if decoding.unserved:
        raise InputError(
            f"The folder's generation_config.json asks for {', '.join(decoding.unserved)}, which is not served. Take "
            "it out of that file to go without."
        )
    if decoding.unserved_sampling and not options.greedy:
        warn(
            f"The folder's generation_config.json asks for {', '.join(decoding.unserved_sampling)}, which is not "
            "served: tokens are drawn without."
        )
    if decoding.unread:
        warn(f"The folder's generation_config.json holds {', '.join(decoding.unread)}, which Headrace does not read.")
    narrowing = [name for name in ("top_k", "top_p", "min_p") if name in asked]
    if options.greedy and narrowing:
        why = "temperature=0" if "temperature" in asked else "the folder draws no tokens, and temperature is not given"
        warn(f"{' and '.join(narrowing)} change nothing: {why}, so the likeliest token is taken. Pass temperature=1.")


def find_beams(options: GenerateOptions, decoding: Decoding, vocabulary: int) -> Beams | None:
    """The caller's beams, else the folder's; None where one continuation is followed.

    Args:
        vocabulary: how many tokens a continuation can begin with.

    Raises:
        InputError: more beams than the vocabulary has tokens, or options that are not served beside a beam search.
    """
    folder = decoding.beams or Beams(1)
    count = folder.count if options.beams is None else options.beams
    if count == 1:
        return None
    source = "beams" if options.beams else "the folder's num_beams"
    if count > vocabulary:
        raise InputError(
            f"{source} is {count}, and a text can begin with {vocabulary} tokens, the model's vocabulary. Pass fewer "
            "as beams=, 1 for none."
        )
    asked = {
        "temperature": options.temperature,
        "n": options.n - 1,
        "stop": options.stop,
        "logprobs": options.logprobs is not None,
        "choice": options.choice,
        "json_schema": options.json_schema,
    }
    if unserved := [name for name, value in asked.items() if value]:
        raise InputError(
            f"{' and '.join(unserved)} cannot be followed beside a beam search ({source} is {count}). Leave "
            f"{'it' if len(unserved) == 1 else 'them'} out, or pass beams=1."
        )
    return Beams(count, folder.length_penalty, folder.stop, folder.renormalize)


def find_lengths(options: GenerateOptions, decoding: Decoding, held: int, room: int | None) -> tuple[int, int]:
    """The least and the most new tokens of a text.

    Args:
        held: the tokens that the decoder holds before the first new one.
        room: the tokens that it can hold, None where nothing bounds them.

    Raises:
        InputTooLongError: no new token has room.
    """
    most, why = options.max_new_tokens, ""
    if most is None:
        most, why = NEW_TOKENS, ""
        if decoding.max_length is not None:
            most, why = decoding.max_length - held, f"the folder's max_length is {decoding.max_length}"
    if room is not None and room - held < most:
        most, why = room - held, f"the model reads at most {room}"
    if most < 1:
        raise InputTooLongError(
            f"The prompt has {held} tokens, which leaves no room for a new one: {why}. Shorten it"
            f"{', or pass max_new_tokens' * (room is None or room > held)}."
        )
    least = options.min_new_tokens
    if least is None:
        least = 0 if options.guided else max(0, decoding.min_length - held)
    return min(least, most), most


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def _is_number(value: Any, whole: bool = False) -> bool:
    kind = int if whole else Real
    return isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)


def _is_id(value: Any) -> bool:
    return _is_number(value, whole=True) and 0 <= value < 1 << 31


def _is_bias(pair: Any) -> bool:
    if not isinstance(pair, tuple) or len(pair) != 2:
        return False
    return _is_id(pair[0]) and _is_number(pair[1]) and abs(pair[1]) <= MOST_BIAS


def _is_json(text: Any) -> bool:
    try:
        return isinstance(json.loads(text), (dict, bool))
    except (TypeError, ValueError, RecursionError):
        return False


def _strings(given: Any) -> Any:
    if isinstance(given, str):
        return (given,)
    return tuple(given) if isinstance(given, (list, tuple)) else given


def _whole(given: Any) -> Any:
    if isinstance(given, np.ndarray):
        return tuple(given.tolist())
    return tuple(map(_plain, given)) if isinstance(given, (list, tuple, set, frozenset, range)) else given


def _biases(given: Any) -> Any:
    if isinstance(given, Mapping):
        return tuple((_plain(token), _plain(bias)) for token, bias in given.items())
    return given


def _schema(given: Any) -> Any:
    return json.dumps(given) if isinstance(given, Mapping) else given
