"""Clients of a server, in a process of their own, by the standard library alone: python benchmarks/load.py --help

Each client keeps a connection, sends a body, waits for the answer, and sends the next. The process says "ready" once
all are connected, begins when it reads a line, and ends with what it measured as JSON. `serve.py` starts several.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Who is told to come again and is not told when waits so many seconds.
AGAIN = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("bodies", type=Path, help="a file of JSON, a body a line")
    parser.add_argument("--path", default="/embed")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="take the bodies at I, I + N, ...")
    parser.add_argument("--ramp", type=float, default=0.0, help="seconds in which the clients begin, one after another")
    parser.add_argument("--again", default="told", help="seconds after a 429; told: as Retry-After says")
    parser.add_argument("--answers", type=Path, help="where to write each answer, behind its body's place")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(Load(given).run())), flush=True)


@dataclass
class Load:
    """What the clients share.

    Attributes:
        seconds: of each request that was answered, its last attempt alone.
        refused: how often one was told to come again.
    """

    given: argparse.Namespace
    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    left: int = 0

    async def run(self) -> dict[str, object]:
        """Send all."""
        begin, step = self.given.part
        listed = [(at, self._request(line)) for at, line in enumerate(self.given.bodies.read_bytes().splitlines())]
        self.bodies: Iterator[tuple[int, bytes]] = iter(listed[begin::step])
        self.answers = self.given.answers.open("wb") if self.given.answers else None
        loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        made = [
            (await loop.create_connection(lambda: Client(self), self.given.host, self.given.port))[1]
            for _ in range(self.given.clients)
        ]
        print("ready", flush=True)
        sys.stdin.readline()
        began, processor, self.left = time.perf_counter(), time.process_time(), len(made)
        for place, client in enumerate(made):
            loop.call_later(self.given.ramp * place / len(made), client.next)
        await self.over.wait()
        if self.answers:
            self.answers.close()
        return {
            "seconds": self.seconds,
            "refused": self.refused,
            "wall": time.perf_counter() - began,
            "processor": time.process_time() - processor,
        }

    def _request(self, body: bytes) -> bytes:
        lines = (f"POST {self.given.path} HTTP/1.1", "host: x", "content-type: application/json")
        return "\r\n".join((*lines, f"content-length: {len(body)}", "", "")).encode() + body

    def done(self) -> None:
        """One client has no more to send."""
        self.left -= 1
        if not self.left:
            self.over.set()


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, load: Load) -> None:
        self._load, self._came, self._waits = load, b"", False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._waits:
            sys.exit(f"the server hung up: {error}")

    def next(self) -> None:
        """Send one more."""
        found = next(self._load.bodies, None)
        self._waits = found is not None
        if found is None:
            self._load.done()
            return
        self._place, self._body = found
        self._send()

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._body)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._came = came = self._came + data if self._came else data
        head = came.find(b"\r\n\r\n")
        if head < 0:
            return
        told = came[:head].lower()
        if len(came) < head + 4 + int(_header(told, b"content-length") or 0):
            return
        self._came, status = b"", int(told[9:12])
        if status == 429:
            self._load.refused += 1
            asyncio.get_running_loop().call_later(self._again(told), self._send)
            return
        self._load.seconds.append(time.perf_counter() - self._began)
        assert status == 200, came
        if self._load.answers:
            self._load.answers.write(b"%d %s\n" % (self._place, came[head + 4 :]))
        self.next()

    def _again(self, told: bytes) -> float:
        if self._load.given.again != "told":
            return float(self._load.given.again)
        if parts := _header(told, b"retry-after-ms"):
            return float(parts) / 1000
        return float(_header(told, b"retry-after") or AGAIN)


def _header(told: bytes, name: bytes) -> bytes:
    _, found, rest = told.partition(b"\r\n" + name + b":")
    return rest.partition(b"\r\n")[0].strip() if found else b""


if __name__ == "__main__":
    main()
