"""One worker: python -m headrace.runtime.serve.workers.worker LINK LISTENING, two file descriptors that it inherits."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from typing import Any

from headrace.runtime.serve import journal
from headrace.runtime.serve.app import make_app
from headrace.runtime.serve.server import runner, server
from headrace.runtime.serve.workers.described import described
from headrace.runtime.serve.workers.link import Link, Message
from headrace.runtime.serve.workers.remote import Desk

# Seconds between two looks at whether it listens.
LOOK = 0.01


def main() -> None:
    """Serve until SIGTERM, or until the process that runs the models is gone."""
    link, listening = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    with runner() as ours:
        ours.run(_serve(link, listening))


async def _serve(end: socket.socket, listening: socket.socket) -> None:
    desk, told = Desk(), asyncio.get_running_loop().create_future()

    def heard(message: Message) -> None:
        if told.done():
            desk.heard(message)
        else:
            told.set_result(message[1])

    desk.link = await Link.over(end, heard, _orphaned)
    given = await told
    journal.begin(given["level"])
    models = {name: described(one) for name, one in given["models"].items()}
    app = make_app(models, given["limits"], keys=given["keys"], origins=given["origins"], runs=desk)
    serving = server(app, given["limits"])
    telling = asyncio.create_task(_tell(serving, desk))
    gc.freeze()  # what is there stays: to look through it again and again would make requests wait
    await serving.serve(sockets=[listening])
    telling.cancel()


async def _tell(serving: Any, desk: Desk) -> None:
    while not serving.started:
        await asyncio.sleep(LOOK)
    desk.link.post("ready")


def _orphaned() -> None:
    """What runs the models is gone, and nothing can be answered any more."""
    os._exit(1)


if __name__ == "__main__":
    main()
