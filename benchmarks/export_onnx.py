"""Exporting a model folder to ONNX: ours beside transformers' own exporter, each in fresh processes, in turn.

    python benchmarks/export_onnx.py FOLDER [--runs 2] [--profile std]
    python benchmarks/export_onnx.py random:LAYERS:WIDTH   # a random BERT, to see what memory a large model takes

Both begin with what they import already imported, and end with files. Ours proves what the attention does and holds the
files against the program; theirs checks nothing, so ours is also shown without the checks. Memory is the most that the
process held of its own (anonymous pages), and with the pages of files that it had mapped, which the system may drop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BEGIN = """
import json, sys, threading, time, warnings
warnings.filterwarnings("ignore")
import logging; logging.disable(logging.WARNING)
import onnx, onnxruntime, onnxscript, torch, transformers, transformers.modeling_utils
import torch.onnx._internal.exporter._core
transformers.logging.disable_progress_bar()
folder, out, profile = sys.argv[1:4]
def clock(): return time.perf_counter(), time.process_time()
held = {"RssAnon": 0, "VmRSS": 0}
def watch():
    while True:
        for line in open("/proc/self/status"):
            name, _, rest = line.partition(":")
            if name in held:
                held[name] = max(held[name], int(rest.split()[0]) * 1024)
        time.sleep(0.02)
threading.Thread(target=watch, daemon=True).start()
def done(marks):
    laps = {name: [b - a for a, b in zip(one, other)] for name, (one, other) in marks.items()}
    print(json.dumps({"laps": laps, "own": held["RssAnon"], "resident": held["VmRSS"]}))
"""
OURS = """
import headrace
headrace.lower
from headrace.backends.onnx.check import verify
from headrace.backends.onnx.export import graph, weights
from headrace.runtime.artifact import export_onnx
a = clock()
lowered = headrace.lower(folder, target="reference")
b = clock()
checked = []
real = verify.verify
def timed(*given):
    one = clock(); found = real(*given); checked.append((one, clock())); return found
verify.verify = timed
lowered.export_onnx(out, profile=profile)
c = clock()
less = (c, tuple(x - y for x, y in zip(checked[0][1], checked[0][0])))
without = tuple(x - y for x, y in zip(*less))
done({"whole": (a, c), "whole without checks": (a, without), "load, trace, prove": (a, b), "write": (b, without),
      "checks": checked[0]})
"""
THEIRS = """
from transformers.exporters import OnnxExporter
from transformers.exporters.configs import OnnxConfig
a = clock()
config = transformers.AutoConfig.from_pretrained(folder)
kind = getattr(transformers, (config.architectures or ["AutoModel"])[0])
model = kind.from_pretrained(folder).eval()
b = clock()
ids = torch.full((2, 16), 5)
given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
exported = OnnxExporter().export(model, given, OnnxConfig(dynamic=True))
exported.save_pretrained(out)
c = clock()
done({"whole": (a, c), "load": (a, b), "export and write": (b, c)})
"""


def measured(code: str, folder: str, profile: str) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        command = [sys.executable, "-c", BEGIN + code, folder, str(out), profile]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            return {"failed": ran.stderr.strip().splitlines()[-1]}
        found = json.loads(ran.stdout.splitlines()[-1])
        files = sum(path.stat().st_size for path in out.rglob("*.onnx*") if path.is_file())
        return found | {"bytes": files}


def random_model(layers: int, width: int, where: Path) -> str:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, intermediate_size=4 * width
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(where)
    return str(where)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--profile", default="std")
    parser.add_argument("--ours-alone", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder
        if folder.startswith("random:"):
            layers, width = map(int, folder.split(":")[1:])
            command = "import sys, benchmarks.export_onnx as b, pathlib; b.random_model({}, {}, pathlib.Path({!r}))"
            subprocess.run([sys.executable, "-c", command.format(layers, width, scratch)], check=True)
            folder = scratch
        weights = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
        sides = {"headrace": OURS} | ({} if given.ours_alone else {"transformers": THEIRS})
        order = [name for run in range(given.runs) for name in (list(sides) if run % 2 == 0 else list(sides)[::-1])]
        found: dict[str, list[dict]] = {name: [] for name in sides}
        for name in order:
            found[name].append(measured(sides[name], folder, given.profile))
    print(f"{given.folder}: {weights / 1e6:.0f} MB of weights")
    for name, runs in found.items():
        if failed := [run["failed"] for run in runs if "failed" in run]:
            print(f"{name}: failed: {failed[0]}")
            continue
        laps = {
            lap: [statistics.median(run["laps"][lap][i] for run in runs) for i in (0, 1)] for lap in runs[0]["laps"]
        }
        shown = ", ".join(f"{lap} {wall:.1f} s ({cpu:.1f} CPU)" for lap, (wall, cpu) in laps.items())
        own, resident = (min(run[kind] for run in runs) for kind in ("own", "resident"))
        print(f"{name}: {shown}; {runs[0]['bytes']:,} bytes; peak of its own {own / 1e6:.0f} MB, {own / weights:.2f} x "
              f"weights, with mapped files {resident / 1e6:.0f} MB, {resident / weights:.2f} x")  # fmt: skip


if __name__ == "__main__":
    main()
