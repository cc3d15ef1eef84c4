"""What goes wrong, as an answer: a status and words, and nothing of how the server is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headrace.errors import (
    HeadraceError,
    InputError,
    InputTooLongError,
    OutOfMemoryError,
    TargetError,
    TaskNotEnabledError,
)


class Dialect(StrEnum):
    """Whose clients ask: each reads errors of its own form."""

    OPENAI = "openai"
    TEI = "tei"


@dataclass
class Refusal(Exception):
    """A request that is not answered.

    Attributes:
        status: of HTTP.
        words: what was met, what is accepted and what to do.
        code: for programs.
        headers: that come with it.
    """

    status: int
    words: str
    code: str = "invalid_request"
    headers: dict[str, str] = field(default_factory=dict)


class Overloaded(Refusal):
    """The queue is full."""

    def __init__(self, held: int, seconds: float) -> None:
        """`held` requests wait or run, and are done in about so many seconds."""
        whole = max(1, math.ceil(seconds))  # HTTP knows no parts of a second; OpenAI's clients read the other header
        words = f"The server is overloaded: {held} requests wait or run. Try again in {whole} s."
        again = {"retry-after": str(whole), "retry-after-ms": str(max(1, math.ceil(1000 * seconds)))}
        super().__init__(429, words, "overloaded", again)


# The first class that an error is of says its status and code.
KINDS: tuple[tuple[type[Exception], int, str], ...] = (
    (TaskNotEnabledError, 400, "task_not_enabled"),
    (InputTooLongError, 400, "context_length_exceeded"),
    (InputError, 400, "invalid_request"),
    (OutOfMemoryError, 503, "out_of_memory"),
    (TargetError, 501, "not_implemented"),
    (HeadraceError, 500, "internal_error"),
)
TYPES = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
# As text-embeddings-inference names what its clients may react to.
TEI_TYPES = {413: "validation", 422: "validation", 429: "overloaded", 401: "unauthorized", 404: "not_found"}


def refusal_of(error: Exception) -> Refusal:
    """An error as an answer. What is none of Headrace's own says nothing of itself: the log has it."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, TimeoutError):
        return Refusal(504, "The answer took longer than the server allows. Ask for less at once.", "timeout")
    for kind, status, code in KINDS:
        if isinstance(error, kind):
            return Refusal(status, str(error), code)
    return Refusal(500, "The server failed; its log has the reason, under the request's id.", "internal_error")


def written(refusal: Refusal, dialect: Dialect) -> tuple[int, dict[str, Any]]:
    """The status and the body of a refusal, as clients of a dialect read them."""
    if dialect is Dialect.OPENAI:
        kind = TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
        return refusal.status, {
            "error": {"message": refusal.words, "type": kind, "param": None, "code": refusal.code},
        }
    status = 413 if refusal.code == "context_length_exceeded" else 422 if refusal.status == 400 else refusal.status
    return status, {"error": refusal.words, "error_type": TEI_TYPES.get(status, "backend"), "code": refusal.code}
