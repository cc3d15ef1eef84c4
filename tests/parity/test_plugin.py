"""The fixture in a repository of a user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.parity.conftest import named

TEST = """
def test_ours(parity):
    parity({good!r}, "cuda", precisions=["float32"])

def test_damaged(parity):
    parity({bad!r})
"""
ROOT = Path(__file__).parents[2]


def test_in_another_repository(tmp_path: Path) -> None:
    """It skips where the target is missing, and fails with what is wrong; that it passes, test_bundles.py shows."""
    (tmp_path / "test_ours.py").write_text(TEST.format(good=str(named("bert-embed").folder), bad=str(tmp_path)))
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "headrace.runtime.tools.parity.plugin", str(tmp_path)],
        capture_output=True, text=True, env=environment, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert "1 failed, 1 skipped" in ran.stdout, ran.stdout
    assert "The target cuda needs" in ran.stdout
    assert "no parity bundle" in ran.stdout


def test_entry_point() -> None:
    """An installed Headrace brings the fixture by itself, under the name that `-p` would give it."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["pytest11"]
    assert points == {"headrace.runtime.tools.parity.plugin": "headrace.runtime.tools.parity.plugin"}


def test_the_package_is_the_command(tmp_path: Path) -> None:
    """`python -m headrace`, where no script is installed; without torch, a missing bundle is one line."""
    ran = subprocess.run(
        [sys.executable, "-m", "headrace", "parity", "report", str(tmp_path / "none.json")],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stderr.startswith("headrace: ")
    assert ran.stderr.count("\n") == 1
