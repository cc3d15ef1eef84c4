"""The server as an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route as Path
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.runtime.model import CompiledModel
from headrace.runtime.serve import openapi
from headrace.runtime.serve.endpoint import Endpoint
from headrace.runtime.serve.gate import Gate
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.metrics import CONTENT_TYPE, Metrics
from headrace.runtime.serve.refusals import Dialect, Refusal, written
from headrace.runtime.serve.routes import chat, completions, embeddings, labels, ranking, tei
from headrace.runtime.serve.served import Models, Runs

Answer = Callable[[Request], Awaitable[Response]]
ROUTES = (
    *embeddings.ROUTES, *completions.ROUTES, *chat.ROUTES, *ranking.ROUTES, *labels.ROUTES, *tei.ROUTES,
)  # fmt: skip


def make_app(
    models: Mapping[str, CompiledModel],
    limits: Limits | None = None,
    *,
    keys: Iterable[str] = (),
    origins: Iterable[str] = (),
    runs: Runs | None = None,
) -> ASGIApp:
    """An application that serves compiled models under these names.

    Args:
        keys: of which a request must bring one, where there are any.
        origins: pages of which browsers may ask; `*` stands for all.
        runs: what runs the models; None does so in this process.

    Raises:
        InputError: there is no model.
    """
    metrics = Metrics()
    served = Models(models, limits or Limits(), metrics, runs)
    endpoints = [Endpoint(route, served) for route in ROUTES]
    made = Starlette(
        routes=[*map(_path, endpoints), *_plain(metrics)],
        lifespan=_lifespan(served),
        exception_handlers={404: _unknown, 405: _unknown},
    )
    gated: ASGIApp = Gate(Direct(endpoints, made), metrics, keys)
    if allowed := list(origins):
        # Outside of the gate: a browser asks first whether it may, and brings no key for that.
        gated = CORSMiddleware(gated, allow_origins=allowed, allow_methods=["*"], allow_headers=["*"])
    return gated


class Direct:
    """Finds what takes a body by its path alone: to try each route's pattern takes as long as the rest of a request."""

    def __init__(self, endpoints: Iterable[Endpoint], others: ASGIApp) -> None:
        """`others` answers all else."""
        self._found = {one.route.path: one for one in endpoints if one.route.body is not None}
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        found = self._found.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (found or self._others)(scope, receive, send)


def _path(endpoint: Endpoint) -> Path:
    return Path(endpoint.route.path, endpoint, methods=[endpoint.route.method])


def _plain(metrics: Metrics) -> list[Path]:
    """What is asked by GET and is of no model."""
    described, page = openapi.describe(ROUTES), openapi.page(ROUTES)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def counted(request: Request) -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def document(request: Request) -> Response:
        return JSONResponse(described)

    async def docs(request: Request) -> Response:
        return HTMLResponse(page)

    found = {"/health": health, "/ping": health, "/metrics": counted, "/openapi.json": document, "/docs": docs}
    return [Path(path, _named(path, answer)) for path, answer in found.items()]


def _named(path: str, answer: Answer) -> Answer:
    async def named(request: Request) -> Response:
        request.scope["headrace_route"] = path
        return await answer(request)

    return named


async def _unknown(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    words = f"There is no route {request.method} {request.url.path[:200]}. GET /docs lists all."
    status, body = written(Refusal(status, words, "not_found"), Dialect.OPENAI)
    return JSONResponse(body, status, headers=getattr(error, "headers", None))


def _lifespan(served: Models) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def alive(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.to_thread(served.close)

    return alive
