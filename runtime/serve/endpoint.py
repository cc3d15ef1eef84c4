"""A route: the form of its body, and what answers it, under a time limit and while its client is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.types import Receive, Scope, Send

from headrace.ir import Task
from headrace.runtime.serve.gate import Visit, answer
from headrace.runtime.serve.refusals import Dialect, Overloaded, Refusal, written
from headrace.runtime.serve.served import Models

# A body that is longer is read on a thread, so that the others need not wait.
LONG = 1 << 17
# So many mistakes of a body are named.
MISTAKES = 3
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Body(BaseModel):
    """What a request holds. What is not named here is refused: nothing that a client asks for is passed over."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


@dataclass(frozen=True)
class Events:
    """An answer in parts: each is an event of its own, and `[DONE]` comes after the last of a whole answer."""

    parts: AsyncGenerator[dict[str, Any], None]


Note = dict[str, Any]
Handler = Callable[[Models, Any, Note], Awaitable[Any]]


@dataclass(frozen=True)
class Route:
    """One route.

    Attributes:
        path: as clients have it.
        says: what it answers, a line for people.
        handler: gets the models, the body (the name in the path, of a route without one) and a dict for the log.
        body: its form; a route without one is asked by GET.
        dialect: how errors are written.
        tasks: those of which one answers, where that is known before the body is read.
    """

    path: str
    says: str
    handler: Handler
    body: type[Body] | None = None
    dialect: Dialect = Dialect.OPENAI
    tasks: tuple[Task, ...] = ()

    @property
    def method(self) -> str:
        """Of HTTP."""
        return "GET" if self.body is None else "POST"


class ClientGone(Exception):
    """The client left before it had its answer."""


class Endpoint:
    """A route of a server, as an ASGI application."""

    def __init__(self, route: Route, models: Models) -> None:
        """Answer by these models."""
        self.route, self._models, self._limits = route, models, models.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        note: Note = {}
        scope["headrace_route"], scope["headrace_note"] = self.route.path, note
        visit: Visit = scope["headrace_visit"]
        try:
            if self.route.tasks:
                self._models.require_room(self.route.tasks)
            async with asyncio.timeout(self._limits.timeout):
                asked = await self._asked(scope, receive)
                await _while_there(receive, self._answer(asked, note, send))
        except ClientGone:
            note["gone"] = True
        except Exception as error:
            if isinstance(error, Overloaded):
                await asyncio.sleep(self._models.spacing.seconds())
            if visit.status is None:
                await visit.refuse(error, self.route.dialect)
            else:  # amid its events: that is told too, and no [DONE]
                note["broken"] = True
                _, told = written(visit.refusal(error), self.route.dialect)
                await send({"type": "http.response.body", "body": _event(told)})

    async def _answer(self, asked: Any, note: Note, send: Send) -> None:
        found = await self.route.handler(self._models, asked, note)
        if not isinstance(found, Events):
            await answer(send, 200, found)
            return
        async with aclosing(found.parts) as parts:
            # What is wrong with the request shows before the first part: it is no event then.
            first = await anext(parts)
            await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
            await send({"type": "http.response.body", "body": _event(first), "more_body": True})
            async for part in parts:
                await send({"type": "http.response.body", "body": _event(part), "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _asked(self, scope: Scope, receive: Receive) -> Any:
        if self.route.body is None:
            return scope.get("path_params", {}).get("name")
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            words = f"The content type is {kind.decode('latin-1')!r:.100}; application/json is accepted."
            raise Refusal(415, words)
        raw = await self._read(receive, headers)
        if len(raw) > LONG:
            return await asyncio.to_thread(_parsed, self.route.body, raw)
        return _parsed(self.route.body, raw)

    async def _read(self, receive: Receive, headers: dict[bytes, bytes]) -> bytes:
        """The body of a request.

        Raises:
            Refusal: it is longer than accepted, or there is no room for it beside others.
            ClientGone: it breaks off.
        """
        most = self._limits.body
        words = f"The body is longer than {most} bytes, which are accepted at most. Send less at once."
        stated = headers.get(b"content-length", b"0")
        if not stated.isdigit() or int(stated) > most:
            raise Refusal(413, words)
        parts, size, more = list[bytes](), 0, True
        with self._models.bodies.held(int(stated) or most):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                parts.append(message.get("body", b""))
                size, more = size + len(parts[-1]), message.get("more_body", False)
                if size > most:
                    raise Refusal(413, words)
        return b"".join(parts)


def _event(part: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n\n"


def _parsed(form: type[Body], raw: bytes) -> Body:
    try:
        return form.model_validate_json(raw)
    except ValidationError as error:
        raise Refusal(400, f"The body is not as accepted. {_mistakes(error)}") from None


def _mistakes(error: ValidationError) -> str:
    """The first mistakes, without what was sent."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(map(str, one['loc']))[:100] or 'It'}: {one['msg'][:300]}" for one in found[:MISTAKES]]
    return "; ".join(told) + (f"; and {len(found) - MISTAKES} more." if len(found) > MISTAKES else ".")


async def _while_there(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do some work, and end it where the client leaves before.

    Raises:
        ClientGone: it did.
    """
    task, gone = asyncio.current_task(), False
    assert task is not None

    def leave(_: asyncio.Task[None]) -> None:
        nonlocal gone
        gone = True
        task.cancel()

    leaving = asyncio.create_task(_left(receive))
    leaving.add_done_callback(leave)
    try:
        await work
    except asyncio.CancelledError:
        if not gone:  # somebody else ends it
            raise
        task.uncancel()
        raise ClientGone from None
    finally:
        leaving.remove_done_callback(leave)
        leaving.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
