"""How soon an exported model answers where there is no torch: import, load, first answer, each in a fresh process.

    python benchmarks/startup.py OUT [--python PYTHON] [--runs 10] [--text "a text"]

OUT is what `headrace export` wrote; PYTHON one with headrace's base packages and onnxruntime alone, else this one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

MEASURE = """
import sys, time
begin, cpu = time.perf_counter(), time.process_time()
def lap(): return round(time.perf_counter() - begin, 4), round(time.process_time() - cpu, 4)
import headrace
headrace.load
imported = lap()
model = headrace.load(sys.argv[1])
loaded = lap()
model.embed(sys.argv[2]) if "embed" in model.tasks else model([[5, 6, 7]])
answered = lap()
import json
held = sorted({name.split(".")[0] for name in sys.modules} & {"torch", "transformers", "onnx", "onnxscript"})
print(json.dumps({"import": imported, "load": loaded, "first answer": answered, "held": held}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--text", default="A headrace carries water to the wheel.")
    given = parser.parse_args()
    command = [given.python, "-c", MEASURE, given.folder, given.text]
    processes = (subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(given.runs))
    runs = [json.loads(process.stdout) for process in processes]
    print(f"{given.runs} fresh processes; seconds since the process's first line, wall (CPU)")
    for step in ("import", "load", "first answer"):
        walls, cpus = zip(*(run[step] for run in runs), strict=True)
        print(
            f"{step:14} least {min(walls):.3f} ({min(cpus):.3f}), median {statistics.median(walls):.3f} "
            f"({statistics.median(cpus):.3f})"
        )
    print(f"of torch, transformers, onnx and onnxscript loaded: {', '.join(runs[0]['held']) or 'none'}")


if __name__ == "__main__":
    main()
