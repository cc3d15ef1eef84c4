"""vLLM's offline embedding, in a process and a Python of its own: its wheel asks for a torch of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embedding.timing import ONE, Row
from embedding.workload import Shape

WHERE = "HEADRACE_BENCH_VLLM"
WORKER = Path(__file__).with_name("vllm_worker.py")
# It compiles and captures before it answers; past so many seconds it is left out.
PATIENCE = 300
# Token ids are held against the tokenizer.
VOCABULARY = 30000


def rows(config: Any, shape: Shape, lengths: list[int]) -> Iterator[Row]:
    """One row, or a line that says why there is none."""
    if (command := _command()) is None:
        print(f"vLLM is left out: {WHERE} names neither a Python that has it nor a folder of packages.", flush=True)
        return
    arguments, environment = command
    with tempfile.TemporaryDirectory() as folder:
        _write_model(Path(folder), config, shape)
        asked = json.dumps({"model": folder, "lengths": lengths, "one": ONE})
        try:
            done = subprocess.run(
                [*arguments, str(WORKER)], input=asked, env=environment, capture_output=True, text=True, check=True,
                timeout=PATIENCE,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"vLLM is left out: it gave no result within {PATIENCE} s.", flush=True)
            return
        except subprocess.CalledProcessError as error:
            print(f"vLLM is left out, it ended with code {error.returncode}: {error.stderr.strip()[-600:]}", flush=True)
            return
    found = json.loads(done.stdout.splitlines()[-1])
    yield Row(
        f"vLLM {found['version']}, offline embed", found["rate"], first=found["first"],
        latencies=[tuple(pair) for pair in found["latencies"]],
    )  # fmt: skip


def _command() -> tuple[list[str], dict[str, str]] | None:
    """The interpreter that has vLLM, and its environment; None where none was named."""
    named = Path(os.environ.get(WHERE, ""))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Its scheduler in this process, nothing sent home, nothing asked of a hub.
    environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    if os.environ.get(WHERE) and named.is_file():
        return [str(named)], environment
    if os.environ.get(WHERE) and named.is_dir():
        return [sys.executable], environment | {"PYTHONPATH": str(named)}
    return None


def _write_model(folder: Path, config: Any, shape: Shape) -> None:
    """A configuration, from which vLLM draws weights, and a tokenizer, which it wants though it is given ids."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    config.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    written |= {"architectures": [shape.architecture], "position_embedding_type": "absolute"}
    (folder / "config.json").write_text(json.dumps(written))
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w1", eos_token="w2").save_pretrained(
        folder
    )
