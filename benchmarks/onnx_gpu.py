"""Exported models on an NVIDIA GPU by onnxruntime-gpu, beside target="cuda": python benchmarks/onnx_gpu.py [FOLDER ...]

For each model folder, and for random weights of BERT-base's shape: float16 in the profiles std and fast on the CUDA
provider. Which provider ran each node comes from onnxruntime's own profile; the oracle is the eager model in float32 on
each request alone, or the vectors that lie beside the model in wanted.npz (written by --record, on any machine). Rates
count real tokens, token ids in, vectors out on the host. A step that fails is printed, and the next one runs.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headrace

WANTED = "wanted.npz"
PASSES, PROVEN, RATED = 3, 64, 4096


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """A part whose failure leaves the others running."""
    begin = time.perf_counter()
    try:
        yield
    except Exception as error:
        print(f"  FAILED {name}: {type(error).__name__}: {str(error)[:600]}")
        traceback.print_exc(limit=-2)
    print(f"  [{name}: {time.perf_counter() - begin:.1f} s]", flush=True)


def draw(count: int, longest: int, vocabulary: int) -> list[list[int]]:
    """Token ids of lengths as texts have them: median 94."""
    random = np.random.default_rng(7)
    lengths = np.clip(np.exp(random.normal(4.5, 0.8, count)).round(), 8, longest).astype(int)
    return [random.integers(5, vocabulary, length).tolist() for length in lengths]


def unit(vectors: Any) -> np.ndarray:
    """Rows at unit length, float64."""
    rows = np.asarray(vectors, np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@torch.inference_mode()
def eager(folder: Path, requests: list[list[int]], dtype: torch.dtype, device: str) -> np.ndarray:
    """The mean of the rows of each request alone, by Hugging Face's eager model."""
    import transformers

    torch.backends.cuda.matmul.allow_tf32 = False
    model = transformers.AutoModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval().to(device)
    rows = [model(torch.tensor([own], device=device)).last_hidden_state[0].float().mean(0).cpu() for own in requests]
    return unit(np.stack(rows))


def record(folder: Path) -> None:
    """Write the oracle's vectors beside the model."""
    requests = draw(PROVEN, 256, 30000)
    vectors = eager(folder, requests, torch.float32, "cpu")
    flat, lengths = np.concatenate(requests), [len(own) for own in requests]
    np.savez_compressed(folder / WANTED, ids=flat, lengths=lengths, vectors=vectors.astype(np.float32))


def proven(folder: Path) -> tuple[list[list[int]], np.ndarray]:
    """Requests, and the oracle's vectors."""
    if not (folder / WANTED).is_file():
        requests = draw(PROVEN, 256, 30000)
        return requests, eager(folder, requests, torch.float32, "cuda")
    held = np.load(folder / WANTED)
    ends = np.cumsum(held["lengths"])
    requests = [own.tolist() for own in np.split(held["ids"], ends[:-1])]
    return requests, unit(held["vectors"])


def apart(found: Any, wanted: np.ndarray) -> str:
    """How far directions lie apart."""
    distance = 1 - (unit(found) * wanted).sum(1)
    return f"1 - cosine: worst {distance.max():.2e}, mean {distance.mean():.2e}"


@contextlib.contextmanager
def native_errors(path: Path) -> Iterator[None]:
    """What native code says on standard error goes to a file."""
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def placement(file: Path, feed: dict[str, Any]) -> None:
    """Which provider runs which nodes, by the session's profile, and whether a session forbidden the CPU opens."""
    import onnxruntime

    def options() -> Any:
        made = onnxruntime.SessionOptions()
        made.log_severity_level = 3
        return made

    with tempfile.TemporaryDirectory() as scratch:
        told = options()
        told.enable_profiling, told.profile_file_prefix = True, f"{scratch}/run"
        told.log_severity_level = 0
        with native_errors(Path(scratch) / "log"):
            session = onnxruntime.InferenceSession(str(file), told, providers=["CUDAExecutionProvider"])
            session.run(None, feed)
            events = json.loads(Path(session.end_profiling()).read_text())
        log = (Path(scratch) / "log").read_text(errors="replace").splitlines()
    nodes = {
        (event["name"], event["args"]["provider"], event["args"]["op_name"])
        for event in events
        if event.get("cat") == "Node" and "provider" in event.get("args", {})
    }
    for provider, count in collections.Counter(provider for _, provider, _ in nodes).items():
        print(f"    {provider} ran {count} nodes")
    on_host = collections.Counter(op for _, provider, op in nodes if provider == "CPUExecutionProvider")
    copies = collections.Counter(op for _, _, op in nodes if op.startswith("Memcpy"))
    print(f"    on the CPU: {dict(on_host) or 'none'}; copies: {dict(copies) or 'none'}")
    chosen = [line for line in log if "Force fallback to CPU" in line]
    lacking = [line.split("] ", 1)[-1][:160] for line in log if "kernel not found" in line.lower()]
    print(f"    shape arithmetic that onnxruntime itself keeps on the CPU, by its log: {len(chosen)} nodes")
    print(f"    nodes without a CUDA kernel, by its log: {len(lacking)} {sorted(set(lacking))[:8]}")
    attentions = sorted({event["name"] for event in events if "Attention" in str(event.get("args", {}).get("op_name"))})
    print(f"    attention nodes: {len(attentions)}")
    strict = options()
    strict.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        onnxruntime.InferenceSession(str(file), strict, providers=["CUDAExecutionProvider"]).run(None, feed)
        print("    a session that is forbidden to fall back to the CPU: opens and runs")
    except Exception as error:
        print(f"    a session that is forbidden to fall back to the CPU is refused: {str(error).splitlines()[0][:300]}")


def feed_of(file: Path, requests: list[list[int]]) -> dict[str, Any]:
    """A padded batch as a model file's inputs."""
    import onnxruntime

    width = max(map(len, requests))
    ids, mask = np.zeros((len(requests), width), np.int64), np.zeros((len(requests), width), np.int64)
    for row, own in enumerate(requests):
        ids[row, : len(own)], mask[row, : len(own)] = own, 1
    known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0, "sequence_lengths": mask.sum(1)}
    names = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"]).get_inputs()
    return {value.name: known[value.name] for value in names}


def rate(run: Callable[[], Any], tokens: int) -> str:
    """Real tokens a second, by the median of passes after one that is not timed."""
    times = []
    for _ in range(PASSES + 1):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return f"{tokens / statistics.median(times[1:]) / 1e3:,.0f} ktok/s"


def latency(run: Callable[[], Any]) -> str:
    """Of one short request."""
    times = []
    for _ in range(120):
        begin = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - begin))
    return f"{statistics.median(times[20:]):.2f} ms"


def served(model: Any, requests: list[list[int]], wanted: np.ndarray, many: list[list[int]]) -> None:
    """Parity and rates of one model, whatever runs it."""
    print(f"    parity: {apart(model(requests, task='embed'), wanted)}")
    tokens = sum(map(len, many))
    print(f"    rate: {rate(lambda: model(many, task='embed'), tokens)}; 16 tokens alone: "
          f"{latency(lambda: model([many[0][:16]], task='embed'))}", flush=True)  # fmt: skip


def measure(folder: Path, name: str, work: Path) -> None:
    """Every line of one model."""
    print(f"\n### {name}", flush=True)
    with step("oracle"):
        requests, wanted = proven(folder)
        print(f"    Hugging Face's own float16: {apart(eager(folder, requests, torch.float16, 'cuda'), wanted)}")
    many = draw(RATED, 256, 30000)
    lowered = headrace.lower(folder, target="reference", pooling="mean")
    for profile in ("std", "fast"):
        print(f"  {profile}, float16")
        with step("export"):
            out = lowered.export_onnx(work / f"{name}-{profile}", profile=profile, dtype="float16", task="embed")
            (file,) = (out / "onnx").glob("*.onnx")
        with step("placement"):
            placement(file, feed_of(file, requests[:8]))
        with step("serve"):
            model = headrace.load(out, target="onnx:cuda")
            print(f"    provider by the session's own word: {model.engine.lane('embed').executable.provider}")
            served(model, requests, wanted, many)
            del model
    for dtype in ("float16", "bfloat16"):
        print(f'  target="cuda", {dtype}')
        with step("serve"):
            compiled = headrace.compile(folder, target="cuda", dtype=dtype, pooling="mean", progress=False)
            served(compiled, requests, wanted, many)


def random_bert(where: Path) -> Path:
    """BERT-base's shape."""
    import transformers

    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False).save_pretrained(where)
    return where


def main() -> None:
    """Every folder, then the random one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--record", action="store_true", help="write the oracle's vectors beside each model, and end")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.record:
        for folder in asked.folders:
            record(folder)
        return
    import onnxruntime

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, onnxruntime "
          f"{onnxruntime.__version__} with {', '.join(onnxruntime.get_available_providers())}", flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        for folder in asked.folders:
            with step(folder.name):
                measure(folder, folder.name, work)
        with step("bert-base"):
            measure(random_bert(work / "bert"), "bert-base", work)


if __name__ == "__main__":
    main()
