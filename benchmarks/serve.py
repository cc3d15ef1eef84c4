"""The server under load, beside the list API in the same run: latency, throughput, overload, memory.

    python benchmarks/serve.py [MODEL] [--target cpu] [--clients 64] [--requests 10000] [--memory 0]
    python benchmarks/serve.py --shape bert-base --target cuda --tokens 16 --clients 256 --workers 8 --requests 200000
    python benchmarks/serve.py --shape bert-base --target cuda --texts 32 --clients 32 --workers 8 --requests 4000

MODEL embeds, and may be what `headrace compile` wrote; else it is MiniLM with its real weights, or with --shape random
weights of a real shape. Each client sends a text of its own, or several with --texts, waits for the answer, and sends
the next (`load.py`, in processes of their own). Throughput is compared over wall time, and over the processor time of
the processes that embed: clients on the same cores take from the first and not from the second. The list API answers as
many texts a call as the clients send at once.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import re
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.examples import folder

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
# Requests of each client of a crowd.
WAVES = 5
LOAD = Path(__file__).with_name("load.py")


def main() -> None:
    given = _arguments()
    model, texts = _model(given), _texts(given)
    print(
        f"{model.target}, {model.dtype}; {len(texts)} requests of {given.texts} texts, {given.clients} clients in "
        f"{given.processes} processes, {given.workers} workers, {os.cpu_count()} cores"
    )
    with tempfile.TemporaryDirectory() as scratch:
        saved = str(model.save(Path(scratch) / "model"))
        load = Load(given, Path(scratch))
        if "list" in given.only:
            beside_the_list(saved, model, texts, load)
        if "overload" in given.only:
            overloaded(saved, texts, load)
        if given.memory:
            flat(saved, load)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--shape", help="random weights of bert-base, or another shape of embedding/workload.py")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--processes", type=int, default=1 if (os.cpu_count() or 1) < 8 else 4, help="of the clients")
    parser.add_argument("--workers", type=int, default=0, help="of the server")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--texts", type=int, default=1, help="of each request")
    parser.add_argument("--base64", action="store_true", help="ask for vectors as base64, by OpenAI's route")
    parser.add_argument("--tokens", type=int, default=0, help="of each text; 0 takes prose of mixed lengths")
    parser.add_argument("--ids", action="store_true", help="send token ids in place of texts")
    parser.add_argument("--parts", type=int, default=4, help="in which list and server take turns")
    parser.add_argument("--only", nargs="*", default=["list", "overload"], choices=["list", "overload"])
    parser.add_argument("--memory", type=int, default=0, help="requests over which memory is watched; 0 leaves it out")
    return parser.parse_args()


def _model(given: argparse.Namespace) -> Any:
    if given.shape:
        return _shaped(given.shape, given.target)
    source = given.model or str(folder("minilm"))
    saved = (Path(source) / "headrace.json").is_file()
    return headrace.load(source) if saved else headrace.compile(source, target=given.target).warm()


def _shaped(name: str, target: str) -> Any:
    """Random weights of a shape, in bfloat16 on a GPU, and a tokenizer that reads `words`."""
    import torch
    import transformers
    from embedding.workload import SHAPES
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    shape, vocabulary = SHAPES[name], ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words()]
    library = Tokenizer(models.WordPiece({word: at for at, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, model_max_length=512, mask_token="[MASK]", **special
    )
    torch.manual_seed(0)
    dtype = torch.bfloat16 if target.startswith(("cuda", "rocm")) else torch.float32
    config = getattr(transformers, shape.config)(**shape.sizes)
    module = transformers.AutoModel.from_config(config, dtype=dtype).eval()
    return headrace.compile(module, target=target, tokenizer=tokenizer, pooling=shape.pooling).warm()


def words() -> list[str]:
    """The same 20,000 words each time."""
    chance = random.Random(3)
    return sorted({"".join(chance.choices(string.ascii_lowercase, k=chance.randint(3, 9))) for _ in range(20_000)})


def _texts(given: argparse.Namespace) -> list[list[Any]]:
    """The texts of each request."""
    drawn, known, count = random.Random(7), words(), given.requests * given.texts
    if given.ids:
        chance = np.random.default_rng(0)
        texts = [chance.integers(5, 20_000, given.tokens or 16).tolist() for _ in range(count)]
    elif given.tokens:
        texts = [" ".join(drawn.choices(known, k=given.tokens - 2)) for _ in range(count)]
    else:
        texts = prose(count)
    return [texts[begin : begin + given.texts] for begin in range(0, count, given.texts)]


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
        processor: what the processes that embed took, of which `workers` those that read and write; `clients` is what
            those of the clients did.
        refused: how often a client was told to come again.
    """

    seconds: list[float] = field(default_factory=list)
    wall: float = 0.0
    processor: float = 0.0
    workers: float = 0.0
    clients: float = 0.0
    refused: int = 0

    def at(self, percent: float) -> float:
        """A percentile of the latencies, in milliseconds."""
        return 1000 * float(np.percentile(self.seconds, percent))

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.seconds) / self.wall


class Server:
    """`headrace serve` as a process of its own, with those that it starts."""

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
    def _processes(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [self.process.pid, *map(int, children)]

    @property
    def processor(self) -> tuple[float, float]:
        """Seconds of processor time so far: of the process that runs the model, and of its workers together."""
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self._processes]
        one, *workers = [(int(stat[11]) + int(stat[12])) / TICKS for stat in stats]
        return one, sum(workers)

    @property
    def resident(self) -> float:
        """MiB in memory."""
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._processes) * PAGE / (1 << 20)


@contextmanager
def serving(saved: str, *options: str) -> Iterator[Server]:
    made = Server(saved, *options)
    try:
        yield made
    finally:
        made.process.terminate()
        made.process.wait()


@dataclass
class Load:
    """Clients, in processes of their own."""

    given: argparse.Namespace
    scratch: Path

    @property
    def options(self) -> tuple[str, ...]:
        """Of the server."""
        return ("--workers", str(self.given.workers)) if self.given.workers else ()

    def __call__(
        self, server: Server, texts: list[list[Any]], clients: int, again: str = "told", ramp: float = 0.0
    ) -> Measured:
        """Send all, so many at once; who is told to come again does so as it is told, or after so many seconds.

        Args:
            ramp: seconds in which the clients begin, one after another.
        """
        bodies, count = self.scratch / "bodies", min(self.given.processes, clients)
        bodies.write_text("".join(f"{self._body(text)}\n" for text in texts))
        command = [sys.executable, str(LOAD), server.host, str(server.port), str(bodies), "--again", again]
        command += ["--ramp", str(ramp)]
        command += ["--path", "/v1/embeddings" if self.given.ids or self.given.base64 else "/embed"]
        started = [
            subprocess.Popen(
                [*command, "--clients", str(len(range(part, clients, count))), "--part", str(part), str(count),
                 "--answers", str(self.scratch / f"answers{part}")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for part in range(count)
        ]  # fmt: skip
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n", "the clients do not connect"
        found, began, processor = Measured(), time.perf_counter(), server.processor
        for one in started:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        for one in started:
            told = json.loads(one.communicate()[0])
            found.seconds += told["seconds"]
            found.refused += told["refused"]
            found.clients += told["processor"]
            found.wall = max(found.wall, told["wall"])
        one, workers = (after - before for after, before in zip(server.processor, processor, strict=True))
        found.processor, found.workers = one + workers, workers
        assert len(found.seconds) == len(texts), f"{len(found.seconds)} of {len(texts)} were answered"
        assert time.perf_counter() - began >= found.wall
        return found

    def answers(self, count: int) -> np.ndarray[Any, Any]:
        """The vectors of the last load, of so many requests, in the order of its texts."""
        lines = [line for path in self.scratch.glob("answers*") for line in path.read_bytes().splitlines()]
        found = {int(place): _vectors(body) for place, _, body in (line.partition(b" ") for line in lines)}
        return np.concatenate([found[place] for place in range(count)])

    def _body(self, texts: list[Any]) -> str:
        given = texts if len(texts) > 1 else texts[0]
        if self.given.ids or self.given.base64:
            cuts = {} if self.given.ids else {"truncate": True}
            return json.dumps({"input": given, "encoding_format": "base64", "normalize": True} | cuts)
        return json.dumps({"inputs": given, "truncate": True})


def _vectors(answer: bytes) -> np.ndarray[Any, Any]:
    found = json.loads(answer)
    if isinstance(found, dict):
        return np.stack([np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in found["data"]])
    return np.asarray(found, np.float32)


def listed(model: Any, requests: list[list[Any]], clients: int) -> tuple[Measured, np.ndarray[Any, Any]]:
    """The same texts by the list API, those of so many requests a call."""
    found, rows, processor = Measured(), [], time.process_time()
    texts, most = [text for request in requests for text in request], clients * len(requests[0])
    began = time.perf_counter()
    for begin in range(0, len(texts), most):
        rows.append(model.embed(texts[begin : begin + most], normalize=True, truncate=True, progress=False))
    found.wall, found.processor = time.perf_counter() - began, time.process_time() - processor
    return found, np.concatenate(rows)


def beside_the_list(saved: str, model: Any, texts: list[list[Any]], load: Load) -> None:
    """Turn by turn, so that what else the machine does meets both."""
    clients = load.given.clients
    by_list, by_server, worst = Measured(), Measured(), 0.0
    parts = [texts[place :: load.given.parts] for place in range(load.given.parts)]
    first = texts[: 4 * clients]
    listed(model, first, clients)
    with serving(saved, *load.options) as server:
        load(server, first, clients)
        for part in parts:
            one, wanted = listed(model, part, clients)
            two = load(server, part, clients)
            worst = max(worst, float(np.abs(load.answers(len(part)) - wanted).max()))
            for total, more in ((by_list, one), (by_server, two)):
                total.wall += more.wall
                total.processor += more.processor
                total.workers += more.workers
                total.clients += more.clients
            by_server.seconds += two.seconds
    count = sum(map(len, texts))
    print(f"answers differ from the list API's by {worst:.1e} at most")
    for name, one in (("list API", by_list), ("server", by_server)):
        print(f"{name:9} {count / one.wall:8.1f} texts/s of wall time, {count / one.processor:8.1f} of processor time")
    print(
        f"the server's throughput is {by_list.wall / by_server.wall:.2f} of the list API's by wall time, "
        f"{by_list.processor / by_server.processor:.2f} by processor time; the clients took "
        f"{by_server.clients / by_server.wall:.2f} cores"
    )
    own = by_server.processor - by_server.workers
    told = (
        ("list API", by_list.processor),
        ("model's process", own),
        ("workers", by_server.workers),
        ("clients", by_server.clients),
    )
    print("processor time a text: " + ", ".join(f"{name} {1e6 * seconds / count:.1f} us" for name, seconds in told))
    print(f"latency at {clients} clients: p50 {by_server.at(50):.1f} ms, p99 {by_server.at(99):.1f} ms")


def overloaded(saved: str, texts: list[list[Any]], load: Load) -> None:
    """Ten times the clients, at a queue of those that were served well.

    They begin as fast as requests were answered, and ask for several answers each. Clients that come again as they are
    told; then ones that come again in the time of an answer, whatever they are told: together they ask ten times as
    often as is answered. The last come again at once.
    """
    clients = load.given.clients
    some = texts[: max(256, len(texts) // 4)]
    waves = (some * -(-WAVES * 10 * clients // len(some)))[: max(len(some), WAVES * 10 * clients)]
    with serving(saved, "--queue", str(clients), *load.options) as server:
        calm = load(server, some[:256], clients)
        again = {"as told": "told", "in the time of an answer": str(clients / calm.rate), "at once": "0"}
        for name, seconds in again.items():
            calm = load(server, some, clients)  # again each time: what else the machine does changes
            crowd = load(server, waves, 10 * clients, seconds, ramp=10 * clients / calm.rate)
            print(f"{clients} clients: {calm.rate:.1f} requests/s, p50 {calm.at(50):.1f} ms, p99 {calm.at(99):.1f} ms")
            print(
                f"{10 * clients} clients that come again {name}: {crowd.refused} times 429; p99 of what was accepted "
                f"{crowd.at(99):.1f} ms, {crowd.at(99) / calm.at(99):.2f} of the calm one; throughput "
                f"{crowd.rate / calm.rate:.2f} of the calm one",
                flush=True,
            )


def flat(saved: str, load: Load) -> None:
    """Memory of the server over many requests of short texts."""
    with serving(saved, *load.options) as server:
        for part in range(11):
            load(server, [["a cat"]] * (load.given.memory // 10 if part else 2000), load.given.clients)
            print(f"after {part * (load.given.memory // 10):7} requests: {server.resident:.1f} MiB", flush=True)


if __name__ == "__main__":
    main()
