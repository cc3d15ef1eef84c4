"""The server under load, beside the list API in the same run: latency, throughput, overload, memory.

    python benchmarks/serve.py [MODEL] [--target cpu] [--clients 64] [--requests 10000] [--memory 0]

MODEL embeds, and may be what `headrace compile` wrote; else it is MiniLM with its real weights. Each client sends a
text of its own, waits for the answer, and sends the next. Throughput is compared over wall time, and over the processor
time of the process that embeds: clients on the same cores take from the first and not from the second. The list API
answers as many texts a call as there are clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.examples import folder

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
# So long a client that is told to come again waits where nothing else is said.
AGAIN = 0.05
# Requests of each client of a crowd.
WAVES = 5


def main() -> None:
    given = _arguments()
    source = given.model or str(folder("minilm"))
    saved = (Path(source) / "headrace.json").is_file()
    model = headrace.load(source) if saved else headrace.compile(source, target=given.target)
    texts = prose(given.requests)
    print(f"{model.target}, {model.dtype}; {len(texts)} texts, {given.clients} clients, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as scratch:
        saved = str(model.save(Path(scratch) / "model"))
        beside_the_list(saved, model, texts, given)
        overloaded(saved, texts, given)
        if given.memory:
            flat(saved, given)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--parts", type=int, default=4, help="in which list and server take turns")
    parser.add_argument("--memory", type=int, default=0, help="requests over which memory is watched; 0 leaves it out")
    return parser.parse_args()


def prose(count: int) -> list[str]:
    """Texts of 3 to 150 words, most of them short, from the documentation that every Python brings."""
    from pydoc_data.topics import topics

    chance, words = random.Random(7), [word for text in topics.values() for word in text.split()]
    found = []
    for _ in range(count):
        length = min(150, max(3, round(chance.lognormvariate(2.8, 0.8))))
        begin = chance.randrange(len(words) - length)
        found.append(" ".join(words[begin : begin + length]))
    return found


@dataclass
class Measured:
    """Some requests.

    Attributes:
        seconds: of each that was answered.
        wall: of all together.
        processor: what the process that embeds took.
        refused: how often a client was told to come again.
    """

    seconds: list[float] = field(default_factory=list)
    wall: float = 0.0
    processor: float = 0.0
    refused: int = 0

    def at(self, percent: float) -> float:
        """A percentile of the latencies, in milliseconds."""
        return 1000 * float(np.percentile(self.seconds, percent))


class Server:
    """`headrace serve` as a process of its own."""

    def __init__(self, saved: str, *options: str) -> None:
        command = [sys.executable, "-m", "headrace.runtime.tools.cli", "serve", saved, "--port", "0", *options]
        self.process = subprocess.Popen([*command, "--log-level", "error"], stderr=subprocess.PIPE, text=True)
        said = ""
        while not (found := re.search(r"http://([\d.]+):(\d+)", said)):
            assert self.process.stderr is not None
            said = self.process.stderr.readline()
            assert said, "the server ended"
        self.host, self.port = found[1], int(found[2])

    @property
    def processor(self) -> float:
        """Seconds of processor time so far."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS

    @property
    def resident(self) -> float:
        """MiB in memory."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE / (1 << 20)


@contextmanager
def serving(saved: str, *options: str) -> Iterator[Server]:
    made = Server(saved, *options)
    try:
        yield made
    finally:
        made.process.terminate()
        made.process.wait()


class Client:
    """One connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._streams: Any = None

    async def open(self) -> None:
        """Connect, which is no part of a request's time."""
        self._streams = await asyncio.open_connection(self._server.host, self._server.port)

    async def ask(self, body: bytes) -> tuple[int, bytes]:
        """The status and body of an answer."""
        reader, writer = self._streams
        lines = ("POST /embed HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(body)}")
        writer.write("\r\n".join((*lines, "", "")).encode() + body)
        told = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(re.search(rb"content-length: (\d+)", told)[1])  # type: ignore[index]
        return int(told.split(None, 2)[1]), await reader.readexactly(length)

    def close(self) -> None:
        self._streams[1].close()


async def load(
    server: Server, bodies: list[bytes], clients: int, seen: Callable[[int, bytes], None] | None = None,
    again: float = AGAIN,
) -> Measured:  # fmt: skip
    """Ask all, so many at once; who is told to come again does after so many seconds."""
    found, left = Measured(), iter(enumerate(bodies))

    async def work(client: Client) -> None:
        for place, body in left:
            while True:
                began = time.perf_counter()
                status, answer = await client.ask(body)
                if status != 429:
                    break
                found.refused += 1
                await asyncio.sleep(again)
            assert status == 200, answer
            found.seconds.append(time.perf_counter() - began)
            if seen is not None:
                seen(place, answer)
        client.close()

    connected = [Client(server) for _ in range(clients)]
    for client in connected:
        await client.open()
    began, processor = time.perf_counter(), server.processor
    await asyncio.gather(*map(work, connected))
    found.wall, found.processor = time.perf_counter() - began, server.processor - processor
    return found


def listed(model: Any, texts: list[str], clients: int) -> tuple[Measured, np.ndarray[Any, Any]]:
    """The same texts by the list API, so many a call."""
    found, rows, processor = Measured(), [], time.process_time()
    began = time.perf_counter()
    for begin in range(0, len(texts), clients):
        rows.append(model.embed(texts[begin : begin + clients], normalize=True, truncate=True, progress=False))
    found.wall, found.processor = time.perf_counter() - began, time.process_time() - processor
    return found, np.concatenate(rows)


def beside_the_list(saved: str, model: Any, texts: list[str], given: argparse.Namespace) -> None:
    """Turn by turn, so that what else the machine does meets both."""
    by_list, by_server, worst = Measured(), Measured(), 0.0
    parts = [texts[place :: given.parts] for place in range(given.parts)]
    listed(model, texts[:256], given.clients)
    with serving(saved) as server:
        asyncio.run(load(server, bodies_of(texts[:256]), given.clients))
        for part in parts:
            one, wanted = listed(model, part, given.clients)
            got: dict[int, np.ndarray[Any, Any]] = {}
            two = asyncio.run(
                load(server, bodies_of(part), given.clients, lambda at, answer: got.update({at: vector(answer)}))  # noqa: B023
            )
            worst = max(worst, *(float(abs(got[at] - row).max()) for at, row in enumerate(wanted)))
            for total, more in ((by_list, one), (by_server, two)):
                total.wall += more.wall
                total.processor += more.processor
            by_server.seconds += two.seconds
    count = len(texts)
    print(f"answers differ from the list API's by {worst:.1e} at most")
    for name, one in (("list API", by_list), ("server", by_server)):
        print(f"{name:9} {count / one.wall:8.1f} texts/s of wall time, {count / one.processor:8.1f} of processor time")
    print(
        f"the server's throughput is {by_list.wall / by_server.wall:.2f} of the list API's by wall time, "
        f"{by_list.processor / by_server.processor:.2f} by processor time"
    )
    print(f"latency at {given.clients} clients: p50 {by_server.at(50):.1f} ms, p99 {by_server.at(99):.1f} ms")


def overloaded(saved: str, texts: list[str], given: argparse.Namespace) -> None:
    """Ten times the clients, at a queue of one and a half times those that were served well.

    Together they ask ten times as often as is answered: they come again whatever they are told, so that the load stays.
    """
    bodies = bodies_of(texts[: max(256, len(texts) // 4)])
    # A crowd's first requests come all at once: what counts is how it goes on.
    waves = bodies * -(-WAVES * 10 * given.clients // len(bodies))
    with serving(saved, "--queue", str(given.clients * 3 // 2)) as server:
        asyncio.run(load(server, bodies[:256], given.clients))
        calm = asyncio.run(load(server, bodies, given.clients))
        again = given.clients * calm.wall / len(bodies)
        crowd = asyncio.run(load(server, waves, 10 * given.clients, again=again))
    print(
        f"overload: {10 * given.clients} clients, {crowd.refused} times 429; p99 of what was accepted "
        f"{crowd.at(99):.1f} ms, {crowd.at(99) / calm.at(99):.2f} of {calm.at(99):.1f} ms at {given.clients} clients; "
        f"throughput {calm.wall / len(bodies) * len(waves) / crowd.wall:.2f} of theirs"
    )


def flat(saved: str, given: argparse.Namespace) -> None:
    """Memory of the server over many requests of short texts."""
    body = bodies_of(["a cat"])
    with serving(saved) as server:
        for part in range(11):
            asyncio.run(load(server, body * (given.memory // 10 if part else 2000), given.clients))
            print(f"after {part * (given.memory // 10):7} requests: {server.resident:.1f} MiB")


def bodies_of(texts: list[str]) -> list[bytes]:
    return [json.dumps({"inputs": text, "truncate": True}).encode() for text in texts]


def vector(answer: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(json.loads(answer)[0], np.float32)


if __name__ == "__main__":
    main()
