"""Texts that keep to a grammar: one of a set of strings, or a JSON schema. A mask of tokens for each step."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.backends.onnx.names import IDS
from headrace.errors import InputError, missing_library
from headrace.runtime.generate.options import GenerateOptions
from headrace.runtime.generate.rules import as_bits

Bits = NDArray[np.int32]


class Matcher(Protocol):
    """One text in its grammar, as far as it has come."""

    @property
    def complete(self) -> bool:
        """Whether the text satisfies it and nothing can be added."""

    def allowed(self) -> Bits:
        """The tokens that may come, int32 [(width + 31) // 32], a bit each; end tokens where it is satisfied."""

    def advance(self, token: int) -> None:
        """One of them came."""


class Grammar(Protocol):
    """What the texts of a request keep to."""

    def begin(self) -> Matcher:
        """A text without a token."""


class Grammars:
    """A model's tokens as grammars are written in them; one a model, used from any thread."""

    def __init__(self, tokenizer: Any, width: int, ends: tuple[int, ...]) -> None:
        """Read nothing yet: what a library needs of a vocabulary takes it a while.

        Args:
            tokenizer: of transformers with a tokenizer.json, or a `PlainTokenizer`; None for a model without.
            width: how many tokens the head has logits for.
            ends: tokens that end a text.
        """
        self._tokenizer, self._width, self._ends = tokenizer, width, ends
        self._read: Any = None

    def read(self, options: GenerateOptions) -> Grammar | None:
        """What the texts of a request keep to; None where they are free.

        Raises:
            InputError: a grammar that no text of these tokens keeps to.
            TargetError: the library for JSON schemas is not installed.
        """
        if not options.guided:
            return None
        if self._tokenizer is None:
            raise InputError("choice and json_schema need a tokenizer, and the model has none. Pass one as tokenizer=.")
        if options.json_schema is None:
            return Choices(options.choice, self._tokenizer, self._width, self._ends)
        if self._read is None:
            self._read = _read_vocabulary(self._tokenizer, self._width, self._ends)
        return JsonGrammar(options.json_schema, self._read, as_bits(self._ends, self._width))


class Choices:
    """A set of strings, as a trie of the tokens that the tokenizer makes of each."""

    def __init__(self, choices: Sequence[str], tokenizer: Any, width: int, ends: tuple[int, ...]) -> None:
        """Build the trie.

        Raises:
            InputError: a string whose tokens read as another, or that has none; or one that begins another, of a
                model without an end token to tell them apart.
        """
        self.width, self.ends = width, ends
        self.root: dict[int, Any] = {}
        self.whole: set[int] = set()  # nodes at which a choice ends, by identity: they live as long as the root
        for text in dict.fromkeys(choices):
            node = self.root
            for token in _tokens(tokenizer, text, width):
                node = node.setdefault(token, {})
            if id(node) in self.whole:
                raise InputError(f"The choice {text!r} has the tokens of another. Leave one out.")
            self.whole.add(id(node))
        if not ends and any(children for children in _nodes(self.root) if id(children) in self.whole):
            raise InputError(
                f"Of the choices {reprlib.repr(list(choices))}, one begins another, and the model names no end token "
                "that would tell them apart. Leave one out."
            )

    def begin(self) -> Choice:
        """At the root."""
        return Choice(self)


class Choice:
    """One text that becomes one of the strings."""

    def __init__(self, choices: Choices) -> None:
        """Begin at the root."""
        self._choices, self._node = choices, choices.root

    @property
    def complete(self) -> bool:
        """Whether no string goes on from here."""
        return not self._node

    def allowed(self) -> Bits:
        """What goes on, and the end where a string is whole."""
        ends = self._choices.ends if id(self._node) in self._choices.whole else ()
        return as_bits((*self._node, *ends), self._choices.width)

    def advance(self, token: int) -> None:
        """One token further."""
        self._node = self._node[token]


class JsonGrammar:
    """A JSON schema, by llguidance."""

    def __init__(self, schema: str, vocabulary: Any, ends: Bits) -> None:
        """Read the schema.

        Args:
            vocabulary: as the library reads it.

        Raises:
            InputError: the library cannot follow it.
        """
        from llguidance import LLMatcher

        self.ends, self._vocabulary, self._matcher = ends, vocabulary, LLMatcher
        self._grammar = LLMatcher.grammar_from_json_schema(schema)
        if wrong := LLMatcher.validate_grammar(self._grammar, vocabulary):
            raise InputError(f"json_schema cannot be followed: {' '.join(wrong.split())[:400]}")

    def begin(self) -> JsonMatcher:
        """A text without a token."""
        return JsonMatcher(self._matcher(self._vocabulary, self._grammar, log_level=0), self.ends)


class JsonMatcher:
    """One text that becomes JSON."""

    def __init__(self, matcher: Any, ends: Bits) -> None:
        """Begin with no token."""
        self._matcher, self._ends = matcher, ends

    @property
    def complete(self) -> bool:
        """Whether nothing can be added."""
        return bool(self._matcher.is_stopped())

    def allowed(self) -> Bits:
        """What the matcher lets through."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.int32)
        self._require()
        return bits | self._ends if self._matcher.is_accepting() else bits

    def advance(self, token: int) -> None:
        """One token further."""
        self._matcher.consume_token(token)
        self._require()

    def _require(self) -> None:
        if self._matcher.is_error():
            raise InputError(f"json_schema cannot be followed further: {self._matcher.get_error()[:400]}")


def _read_vocabulary(tokenizer: Any, width: int, ends: tuple[int, ...]) -> Any:
    """A tokenizer as llguidance reads it."""
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise missing_library(error, "json_schema") or error from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not ends:
        lacks = "no tokenizer.json" if backend is None else "no end token, which ends a JSON text"
        raise InputError(f"json_schema cannot be followed: the model has {lacks}.")
    try:
        return LLTokenizer(backend.to_str(), n_vocab=width, eos_token=list(ends))
    except ValueError as error:
        raise InputError(
            f"json_schema cannot be followed: llguidance does not read this tokenizer ({error}). Leave it out, or give "
            "the texts that may come as choice."
        ) from error


def _tokens(tokenizer: Any, text: str, width: int) -> list[int]:
    ids = [int(one) for one in tokenizer([text], add_special_tokens=False)[IDS][0]]
    if not ids or max(ids) >= width or str(tokenizer.decode(ids, skip_special_tokens=True)) != text:
        raise InputError(
            f"The choice {text!r} cannot be written in the model's tokens, which read as "
            f"{str(tokenizer.decode(ids, skip_special_tokens=True))!r}. Write it as that."
        )
    return ids


def _nodes(node: dict[int, Any]) -> Any:
    yield node
    for child in node.values():
        yield from _nodes(child)
