"""Processes that compile the same model at once: one compiles, and all answer alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = 20
# Notes each compilation in a file that all of them write to, and prints its answer.
SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import headrace
from headrace.backends.inductor import packages
from tests.tiny import build

def noted(*args, _compile=packages.compile_code, **options):
    with open(sys.argv[1], "a") as file:
        file.write("x")
    return _compile(*args, **options)

packages.compile_code = noted
model = headrace.compile(build("bert"), target="cpu", task="embed")
print(json.dumps([row.tolist() for row in model([[5, 6, 7], [8]])]))
"""


@pytest.mark.slow(reason="tests/headrace/utils/test_code_cache.py has four processes ask for what takes no compiler")
def test_twenty_processes_that_compile_one_model(tmp_path: Path) -> None:
    environment = os.environ | {
        "HEADRACE_CODE_CACHE": str(tmp_path / "code"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "OMP_NUM_THREADS": "1",
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "made")],
            env=environment, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(COUNT)
    ]  # fmt: skip
    said = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * COUNT, [err[-500:] for _, err in said if err]
    answers = [json.loads(out.splitlines()[-1]) for out, _ in said]
    assert all(answer == answers[0] for answer in answers)
    assert (tmp_path / "made").read_text() == "x"
    # The model's, and the C++ of ours that is in it.
    assert [path.suffix for path in (tmp_path / "code").iterdir()] == [".code"] * 2
