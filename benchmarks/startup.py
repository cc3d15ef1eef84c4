"""What a start costs: the first compile, one with a warm cache, a saved model, and how that grows with depth.

    python benchmarks/startup.py [--rounds 3] [--model minilm | FOLDER] ... [--depth 2 --depth 12 --depth 36] [--peer]

Each start is a process of its own, from the import of torch to the first answer, and they take turns: cold (nothing
cached, torch's own cache neither), warm (the code is cached), saved (`headrace.load`) and, with `--peer`,
sentence-transformers. Medians of seconds by the clock and of the processor, its children's included, of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
# Prints what each stage of one start took: seconds by the clock, and of the processor.
START = """
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

kind, folder, task = sys.argv[1:4]
texts = ["a short text"] if os.path.exists(os.path.join(folder, "tokenizer.json")) or kind == "saved" else [[5, 6, 7]]
import torch
torch.set_num_threads(1)
done("import torch")
if kind == "peer":
    from sentence_transformers import SentenceTransformer
    done("import")
    model = SentenceTransformer(folder, device="cpu")
    done("load")
    model.encode(texts)
else:
    import headrace
    done("import")
    if kind == "saved":
        model = headrace.load(folder)
        done("load")
    else:
        lowered = headrace.lower(folder, target="cpu", progress=False)
        done("trace and prove")
        model = lowered.compile(task=task, progress=False)
        done("compile")
    model(texts if model.tokenizer is not None else [[5, 6, 7]], task=task)
done("first answer")
print(json.dumps(spent))
"""


def start(kind: str, folder: Path, task: str, scratch: Path) -> dict[str, list[float]]:
    """One start in a process of its own; a cold one finds no cache."""
    with tempfile.TemporaryDirectory(dir=scratch) as nothing:
        code, own = (scratch / "code", scratch / "inductor") if kind != "cold" else (Path(nothing) / "code", nothing)
        environment = os.environ | {
            "HEADRACE_CODE_CACHE": str(code), "TORCHINDUCTOR_CACHE_DIR": str(own), "OMP_NUM_THREADS": "1",
            "XDG_STATE_HOME": str(scratch / "state"), "PYTHONPATH": str(HERE),
        }  # fmt: skip
        made = subprocess.run(
            [sys.executable, "-c", START, kind, str(folder), task], env=environment, check=True, capture_output=True,
            text=True, cwd=scratch,
        )  # fmt: skip
    spent: dict[str, list[float]] = json.loads(made.stdout.splitlines()[-1])
    return spent


def measure(folder: Path, task: str, rounds: int, scratch: Path, peer: bool) -> dict[str, Any]:
    """Medians of each kind of start, the kinds taking turns."""
    os.environ["XDG_STATE_HOME"] = str(scratch / "state")
    start("warm", folder, task, scratch)  # fills the cache
    saved = scratch / "saved" / folder.name
    script = "import sys, headrace; headrace.compile(sys.argv[1], target='cpu', task=sys.argv[3]).save(sys.argv[2])"
    environment = os.environ | {"HEADRACE_CODE_CACHE": str(scratch / "code"), "PYTHONPATH": str(HERE)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(folder), str(saved), task], env=environment, check=True
    )
    kinds = {"cold": folder, "warm": folder, "saved": saved} | ({"peer": folder} if peer else {})
    runs: dict[str, list[dict[str, list[float]]]] = {kind: [] for kind in kinds}
    for turn in range(rounds):
        for kind in list(kinds) if turn % 2 == 0 else reversed(kinds):
            runs[kind].append(start(kind, kinds[kind], task, scratch))
    return runs


def show(name: str, runs: dict[str, Any]) -> None:
    for kind, made in runs.items():
        stages = {stage: [[run[stage][i] for run in made] for i in (0, 1)] for stage in made[0]}
        whole = [[sum(value[i] for value in run.values()) for run in made] for i in (0, 1)]
        print(f"{name}, {kind}: {_spread(whole[1])} s of the processor, {_spread(whole[0])} s by the clock")
        for stage, (clock, processor) in stages.items():
            print(f"  {stage:16} {statistics.median(processor):7.2f} {statistics.median(clock):7.2f}")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def write_decoder(place: Path, layers: int) -> Path:
    """A Qwen3 of random weights, all of one shape but for its depth."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(place)
    return place


def depths(wanted: list[int], rounds: int, scratch: Path) -> None:
    """The cold compile by depth, and the deepest one's share of the shallowest's."""
    folders = {depth: write_decoder(scratch / f"decoder{depth}", depth) for depth in wanted}
    runs: dict[int, list[float]] = {depth: [] for depth in wanted}
    stages: dict[int, Any] = {}
    for turn in range(rounds):
        for depth in wanted if turn % 2 == 0 else reversed(wanted):
            stages[depth] = start("cold", folders[depth], "embed", scratch)
            runs[depth].append(stages[depth]["trace and prove"][1] + stages[depth]["compile"][1])
    for depth in wanted:
        parts = ", ".join(f"{stage} {spent[1]:.2f}" for stage, spent in stages[depth].items())
        print(f"{depth} layers: {_spread(runs[depth])} s of the processor to trace, prove and compile ({parts})")
    first, last = (statistics.median(runs[depth]) for depth in (wanted[0], wanted[-1]))
    print(f"{wanted[-1]} layers cost {last / first:.2f} of what {wanted[0]} do")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--depth", action="append", type=int, default=[])
    parser.add_argument("--peer", action="store_true", help="sentence-transformers beside it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        for model in given.model:
            from headrace.examples.models import folder

            source = folder(model) if model == "minilm" else Path(model).resolve()
            show(model, measure(source, "embed", given.rounds, scratch, given.peer))
        if given.depth:
            depths(given.depth, given.rounds, scratch)


if __name__ == "__main__":
    main()
