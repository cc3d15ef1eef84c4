"""What a start costs: the first compile, one with a warm cache, a saved model, beside peers; how it grows with depth.

    python benchmarks/startup.py [--rounds 3] [--model minilm | FOLDER] ... [--depth 2 --depth 12 --depth 36]
        [--task embed] [--shared 4]

Each start is a process of its own, from its first import to the first answer, and they take turns: cold (nothing is
cached, by torch neither), warm (the code is cached), saved (`headrace.load` of the target cpu), onnx (the same of the
target onnx, which needs no torch), and what is installed of sentence-transformers, transformers and onnxruntime
alone. Medians with the least and the most, of seconds by the clock and of the processor, children's included, of
one thread. `--shared` loads the saved model in so many processes at once and reads what they share of its file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]
# Prints what each stage of one start took: seconds by the clock, and of the processor.
PRELUDE = """
import json, os, sys, time, warnings
warnings.simplefilter("ignore")
spent, last = {}, [time.perf_counter(), 0.0]

def worked():
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system

def done(name):
    now = [time.perf_counter(), worked()]
    spent[name] = [now[0] - last[0], now[1] - last[1]]
    last[:] = now

folder, task = sys.argv[1:3]
text = "a short text"
"""
TORCH = """
import torch
torch.set_num_threads(1)
done("import torch")
"""
ANSWER = """
model.answer(task, [text]) if model.tokenizer is not None else model([[5, 6, 7]], task=task)
"""
COMPILE = f"""{TORCH}
import headrace
headrace.compile
done("import")
lowered = headrace.lower(folder, target="cpu", progress=False)
done("trace and prove")
model = lowered.compile(task=task, progress=False)
done("compile")
{ANSWER}"""
LOAD = f"""
import headrace
headrace.load
done("import")
model = headrace.load(folder)
done("load")
{ANSWER}"""
STARTS = {
    "cold": COMPILE,
    "warm": COMPILE,
    "saved": TORCH + LOAD,
    "onnx": LOAD,
    "sentence-transformers": f"""{TORCH}
from sentence_transformers import SentenceTransformer
done("import")
model = SentenceTransformer(folder, device="cpu")
done("load")
model.encode([text])
""",
    "transformers": f"""{TORCH}
from transformers import AutoModel, AutoTokenizer
done("import")
model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
done("load")
with torch.no_grad():
    model(**tokenizer([text], return_tensors="pt")).last_hidden_state.mean(1)
""",
    "onnxruntime": """
import numpy, onnxruntime, tokenizers
done("import")
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
(file,) = (name for name in os.listdir(folder) if name.endswith(".onnx"))
session = onnxruntime.InferenceSession(os.path.join(folder, file), options)
tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer", "tokenizer.json"))
done("load")
ids = numpy.array([tokenizer.encode(text).ids])
given = {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "position_ids": numpy.arange(ids.size)[None]}
session.run(None, {one.name: given.get(one.name, numpy.zeros_like(ids)) for one in session.get_inputs()})
""",
}
END = """
done("first answer")
print(json.dumps(spent))
"""
PEERS = {"sentence-transformers": "sentence_transformers", "transformers": "transformers", "onnxruntime": "onnxruntime"}
SAVE = """
import sys, headrace
folder, place, task, target = sys.argv[1:]
headrace.compile(folder, target=target, task=task, progress=False).save(place)
"""
# Loads a saved model, answers, and says once asked what of its file is whose.
HOLD = """
import sys, headrace
model = headrace.load(sys.argv[1])
model.answer(sys.argv[2], ["a short text"])
print("ready", flush=True)
input()
held = dict.fromkeys(("Rss", "Pss", "Shared_Clean", "Shared_Dirty", "Private_Clean", "Private_Dirty", "Anonymous"), 0)
inside = False
for line in open("/proc/self/smaps"):
    name, *values = line.split()
    if not name.endswith(":"):
        inside = line.rstrip().endswith(".pt2")
    elif inside and name[:-1] in held:
        held[name[:-1]] += int(values[0])
import json
print(json.dumps(held), flush=True)
input()
"""
Spent = dict[str, list[float]]


def environment(scratch: Path, cold: str | None = None) -> dict[str, str]:
    """That of a user who runs one thread; bytecode is kept, as it is of what is installed."""
    code, own = (cold, cold) if cold else (str(scratch / "code"), str(scratch / "inductor"))
    made = os.environ | {
        "HEADRACE_CODE_CACHE": code, "TORCHINDUCTOR_CACHE_DIR": own, "OMP_NUM_THREADS": "1",
        "XDG_STATE_HOME": str(scratch / "state"), "PYTHONPATH": str(HERE),
        "PYTHONPYCACHEPREFIX": str(scratch / "bytecode"), "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    made.pop("PYTHONDONTWRITEBYTECODE", None)
    return made


def start(kind: str, folder: Path, task: str, scratch: Path) -> Spent:
    """One start in a process of its own; a cold one finds no cache."""
    with tempfile.TemporaryDirectory(dir=scratch) as nothing:
        made = subprocess.run(
            [sys.executable, "-c", PRELUDE + STARTS[kind] + END, str(folder), task], cwd=scratch, check=True,
            env=environment(scratch, nothing if kind == "cold" else None), capture_output=True, text=True,
        )  # fmt: skip
    spent: Spent = json.loads(made.stdout.splitlines()[-1])
    return spent


def save(folder: Path, target: str, task: str, scratch: Path) -> Path:
    """The model compiled for a target, as a folder."""
    place = scratch / "saved" / target / folder.name
    command = [sys.executable, "-c", SAVE, str(folder), str(place), task, target]
    subprocess.run(command, env=environment(scratch), check=True, cwd=scratch)
    return place


def measure(folder: Path, saved: dict[str, Path], task: str, rounds: int, scratch: Path) -> dict[str, list[Spent]]:
    """Each kind of start, the kinds taking turns."""
    places = {"cold": folder, "warm": folder} | saved
    if task == "embed" and (folder / "tokenizer.json").exists():
        places |= {name: saved["onnx"] if name == "onnxruntime" else folder for name in PEERS if find_spec(PEERS[name])}
    for kind, place in places.items():
        if kind != "cold":
            start(kind, place, task, scratch)  # reads files and fills caches
    runs: dict[str, list[Spent]] = {kind: [] for kind in places}
    for turn in range(rounds):
        for kind in list(places) if turn % 2 == 0 else reversed(places):
            runs[kind].append(start(kind, places[kind], task, scratch))
    return runs


def show(name: str, runs: dict[str, list[Spent]]) -> None:
    """Each kind of start, and what it costs of the first peer's of the same round."""
    base = next((runs[peer] for peer in PEERS if peer in runs), runs["warm"])
    table = Table(
        title=f"{name}: seconds of the processor (least to most), by the clock, and of one peer's, one thread"
    )
    for column in ("", "processor", "clock", "ratio", "stages (processor)"):
        table.add_column(column)
    for kind, made in runs.items():
        clock, processor = ([sum(value[i] for value in run.values()) for run in made] for i in (0, 1))
        ratios = [_whole(run) / _whole(other) for run, other in zip(made, base, strict=True)]
        stages = ", ".join(f"{stage} {statistics.median(run[stage][1] for run in made):.2f}" for stage in made[0])
        table.add_row(kind, _spread(processor), _spread(clock), _spread(ratios), stages)
    Console(width=160).print(table)


def _whole(run: Spent) -> float:
    return sum(processor for _, processor in run.values())


def _spread(values: Iterable[float]) -> str:
    held = sorted(values)
    return f"{statistics.median(held):.2f} ({held[0]:.2f} to {held[-1]:.2f})"


def share(saved: Path, task: str, count: int, scratch: Path) -> None:
    """What processes that serve one saved model hold of its file, each and together."""
    command = [sys.executable, "-c", HOLD, str(saved), task]
    holding = [
        subprocess.Popen(command, env=environment(scratch), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    assert all(one.stdout is not None and one.stdin is not None for one in holding)
    lines = [one.stdout.readline() for one in holding]  # type: ignore[union-attr]
    assert lines == ["ready\n"] * count, lines
    for one in holding:
        print(file=one.stdin, flush=True)
    held = [json.loads(one.stdout.readline()) for one in holding]  # type: ignore[union-attr]
    for one in holding:
        one.communicate("\n")
    size = sum(file.stat().st_size for file in saved.glob("*.pt2"))
    print(f"{count} processes serve {saved.name}, whose file has {size / 2**20:.1f} MiB. In MiB, of the file:")
    for number, one in enumerate(held):
        print(f"  process {number}: " + ", ".join(f"{name} {kib / 1024:.1f}" for name, kib in one.items()))
    together = sum(one["Pss"] for one in held) / 1024
    print(f"  together {together:.1f} ({together * 2**20 / size:.2f} of the file)")


def write_decoder(place: Path, layers: int) -> Path:
    """A Qwen3 of random weights, all of one shape but for its depth."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(place)
    return place


def depths(wanted: list[int], task: str, rounds: int, scratch: Path) -> None:
    """The cold compile by depth, and the deepest one's share of the shallowest's."""
    folders = {depth: write_decoder(scratch / f"decoder{depth}", depth) for depth in wanted}
    runs: dict[int, list[float]] = {depth: [] for depth in wanted}
    stages: dict[int, Spent] = {}
    for turn in range(rounds):
        for depth in wanted if turn % 2 == 0 else reversed(wanted):
            stages[depth] = start("cold", folders[depth], task, scratch)
            runs[depth].append(stages[depth]["trace and prove"][1] + stages[depth]["compile"][1])
    for depth in wanted:
        parts = ", ".join(f"{stage} {spent[1]:.2f}" for stage, spent in stages[depth].items())
        print(f"{depth} layers, {task}: {_spread(runs[depth])} s of the processor to trace, prove, compile ({parts})")
    first, last = (statistics.median(runs[depth]) for depth in (wanted[0], wanted[-1]))
    print(f"{wanted[-1]} layers cost {last / first:.2f} of what {wanted[0]} do")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--depth", action="append", type=int, default=[])
    parser.add_argument("--task", default="embed")
    parser.add_argument("--shared", type=int, default=0, metavar="PROCESSES")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        for model in given.model:
            from headrace.examples.models import folder

            source = folder(model) if model == "minilm" else Path(model).resolve()
            saved = {"saved": save(source, "cpu", given.task, scratch)}
            if given.shared:
                share(saved["saved"], given.task, given.shared, scratch)
            if given.rounds:
                saved["onnx"] = save(source, "onnx", given.task, scratch)
                show(model, measure(source, saved, given.task, given.rounds, scratch))
        if given.depth:
            depths(given.depth, given.task, given.rounds, scratch)


if __name__ == "__main__":
    main()
