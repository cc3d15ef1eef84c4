"""The command `headrace` as tests run it: in a process of its own, and what a run leaves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REFERENCE = ("--target", "reference")

# Run first, it leaves no torch and no transformers to be imported.
BLOCKED = """
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


class Ran:
    """What one run of the command left."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def answers_text(self) -> str:
        assert self.code == 0, self.err
        return self.out

    @property
    def answers(self) -> list[dict[str, Any]]:
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]


def process(*arguments: str, before: str = "") -> Ran:
    """The command in a process of its own, after some code."""
    code = f"import sys\n{before}\nfrom headrace.runtime.tools.cli import main\nmain(sys.argv[1:])"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("TRANSFORMERS_VERBOSITY")  # what tests/conftest.py sets no user has
    ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=env, check=False)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def refused(ran: Ran, *words: str) -> None:
    """Exit code 2, nothing on stdout, and one line on stderr that holds the words."""
    assert ran.code == 2, ran.err
    assert not ran.out
    assert re.fullmatch(r"headrace: [^\n]+\n", ran.err), ran.err
    for word in words:
        assert word in ran.err
