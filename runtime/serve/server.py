"""The process: a socket, an event loop, and an end in good order."""

from __future__ import annotations

import asyncio
import math
import socket
from contextlib import closing

import uvicorn
from starlette.types import ASGIApp

from headrace.errors import InputError
from headrace.runtime.serve.limits import Limits

# Clients that wait to be heard.
BACKLOG = 2048


def bound(host: str, port: int, shared: bool = False) -> socket.socket:
    """A socket of that address, at which nobody listens yet; port 0 takes a free one.

    Args:
        shared: whether other sockets of this user may have the same address: connections are dealt out among them.

    Raises:
        InputError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        made.bind((host, port))
    except (OSError, OverflowError) as error:
        made.close()
        raise InputError(f"{host}:{port} cannot be listened at: {error}. Choose another --host or --port.") from error
    return made


def server(app: ASGIApp, limits: Limits) -> uvicorn.Server:
    """What runs an application until it is told to end: `run(sockets=[...])`."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # the gate notes each request
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=math.ceil(limits.grace),
        timeout_keep_alive=75,
        lifespan="on",
    )
    return uvicorn.Server(config)


def runner() -> asyncio.Runner:
    """What runs a coroutine on the loop that uvicorn would choose."""
    return asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None, access_log=False).get_loop_factory())


def several(host: str, port: int, count: int) -> list[socket.socket]:
    """So many sockets of one address, which share its connections; errors as of `bound`."""
    with closing(bound(host, port)) as alone:  # refuses an address that another server has
        port = alone.getsockname()[1]
    return [bound(host, port, shared=True) for _ in range(count)]


def run(app: ASGIApp, waiting: socket.socket, limits: Limits) -> None:
    """Serve until SIGTERM or SIGINT: what is under way has `limits.grace` seconds to end, and nothing new begins."""
    with closing(waiting):
        server(app, limits).run(sockets=[waiting])
