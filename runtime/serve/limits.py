"""What a server takes at most."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from headrace.errors import InputError
from headrace.runtime.serve.refusals import Refusal
from headrace.runtime.text.validate import counts

WHOLE = ("queue", "body", "texts", "characters")


@dataclass(frozen=True)
class Limits:
    """The limits of one server.

    Attributes:
        queue: requests that wait or run, of each task of each model; one more is told to come again.
        wait: seconds that a request may have to wait for those before it, as fast as they are answered; where it would
            wait longer it is told to come again. None bounds that by `timeout` alone.
        delay: seconds that a request waits for others to share its batch.
        body: bytes of a request's body.
        texts: texts of a request.
        characters: characters of a text.
        timeout: seconds that a request may take, from its first byte to its last answer.
        grace: seconds that requests have to end once the server is told to.
    """

    queue: int = 512
    delay: float = 0.002
    body: int = 16 << 20
    texts: int = 2048
    characters: int = 1_000_000
    timeout: float = 300.0
    grace: float = 30.0
    wait: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no limit.

        Raises:
            InputError: a count below one, or seconds below zero.
        """
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name in WHOLE and not counts(value):
                raise InputError(f"{name} is {value!r}; an int of 1 and above is accepted.")
            if value is not None and not value >= 0:
                raise InputError(f"{name} is {value!r}; 0 seconds and above are accepted.")

    @property
    def longest_wait(self) -> float:
        """Seconds: who would wait longer is not answered in time."""
        return self.timeout if self.wait is None else min(self.wait, self.timeout)

    @staticmethod
    def require_some(texts: list[Any]) -> None:
        """Refuse no texts at all.

        Raises:
            Refusal: there are none.
        """
        if not texts:
            raise Refusal(400, "There is nothing to answer: the list of texts is empty. Give one text or more.")

    def require(self, texts: list[str]) -> None:
        """Refuse more texts, or longer ones, before anything reads them.

        Raises:
            Refusal: there are none, or they are too many or too long.
        """
        self.require_some(texts)
        if len(texts) > self.texts:
            raise Refusal(
                413, f"The request has {len(texts)} texts; at most {self.texts} are accepted. Send them in parts."
            )
        if max(map(len, texts)) <= self.characters:
            return
        longest = max(range(len(texts)), key=lambda place: len(texts[place]))
        raise Refusal(
            413,
            f"Text {longest} has {len(texts[longest])} characters; at most {self.characters} are accepted. Shorten or "
            "split it.",
        )

    def require_answers(self, count: int) -> None:
        """Refuse to make more answers than texts would be accepted.

        Raises:
            Refusal: they are more.
        """
        if count > self.texts:
            raise Refusal(413, f"The request asks for {count} answers; at most {self.texts} are made. Ask for fewer.")
