"""What every request passes first and last: its id, its key, and what is counted and noted of it."""

from __future__ import annotations

import hmac
import itertools
import logging
import re
import secrets
import time
from collections.abc import Iterable
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.runtime.serve.metrics import Metrics
from headrace.runtime.serve.refusals import Dialect, Refusal, refusal_of, written

log = logging.getLogger("headrace.serve")
# Open without a key, for who only asks whether the server lives.
OPEN = ("/health", "/ping")
ID = re.compile(rb"[\w.-]{1,64}")
# An id of ours is of the process, and then a number.
PROCESS, COUNT = secrets.token_hex(10), itertools.count()
# What is noted of a request whose client left before it was answered.
GONE = 499


class Gate:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, metrics: Metrics, keys: Iterable[str] = ()) -> None:
        """`keys` are those of which a request must bring one; none are needed where there are none."""
        self._app, self._metrics = app, metrics
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        visit = Visit(scope, headers, send)
        try:
            if self._keys and scope["path"] not in OPEN and not self._knows(headers):
                words = "The request brings no key that is known. Send the header: Authorization: Bearer KEY."
                raise Refusal(401, words, "invalid_api_key", {"www-authenticate": "Bearer"})
            await self._app(scope, receive, visit.send)
        except Exception as error:
            if visit.status is None:
                await visit.refuse(error)
        finally:
            self._note(visit, scope)

    def _knows(self, headers: dict[bytes, bytes]) -> bool:
        given = headers.get(b"authorization", b"")
        kind, _, key = given.partition(b" ")
        found = [hmac.compare_digest(key, known) for known in self._keys]  # all, so that the time tells nothing
        return kind.lower() == b"bearer" and any(found)

    def _note(self, visit: Visit, scope: Scope) -> None:
        seconds, status = time.monotonic() - visit.began, visit.status or GONE
        route = scope.get("headrace_route", "unknown")  # a path of a client's own would be a label each
        self._metrics.request(route, status, seconds)
        if not log.isEnabledFor(logging.INFO):
            return
        told: dict[str, Any] = {
            "id": visit.id,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
        }
        told |= {"ms": round(1000 * seconds, 2), "client": (scope.get("client") or ("",))[0]}
        log.info("request", extra=told | dict(scope.get("headrace_note", {})))


class Visit:
    """One request as its answer goes out.

    Attributes:
        id: the client's own, or one of ours.
        status: what was answered, None before.
    """

    def __init__(self, scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        """Begin the clock."""
        own = headers.get(b"x-request-id", b"")
        self.id = own.decode() if ID.fullmatch(own) else f"{PROCESS}{next(COUNT):012x}"
        self.began = time.monotonic()
        self.status: int | None = None
        self._send = send
        scope["headrace_visit"] = self

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self.id.encode())]
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, error: Exception, dialect: Dialect = Dialect.OPENAI) -> None:
        """Answer with what went wrong."""
        refusal = self.refusal(error)
        status, body = written(refusal, dialect)
        await answer(self.send, status, body, refusal.headers)

    def refusal(self, error: Exception) -> Refusal:
        """What went wrong as an answer; what is ours to mend is in the log."""
        refusal = refusal_of(error)
        if refusal.status in (500, 503):
            log.error("a request failed", extra={"id": self.id}, exc_info=error)
        return refusal


async def answer(send: Send, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    """A whole answer as JSON; arrays of numpy are lists of numbers."""
    encoded = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    own = {"content-type": "application/json", "content-length": str(len(encoded))} | (headers or {})
    pairs = [(name.encode(), value.encode()) for name, value in own.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": encoded})
