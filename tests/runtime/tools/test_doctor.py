"""The doctor: what it finds, what it says is missing, and that it needs no torch to say so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.backends import cpu
from headrace.runtime.tools.cli.commands import doctor
from headrace.runtime.tools.cli.commands.doctor import Finding, Mark, examine, ranges, report, satisfies, works
from tests.command import BLOCKED, process

ROOT = Path(__file__).parents[3]
THINGS = (
    "python", "system", "cpu", "cores", "memory", "numpy", "rich", "safetensors", "tokenizers", "typer", "torch",
    "transformers", "onnxruntime", "C++ compiler", "GPU", "triton", "targets", "cache",
)  # fmt: skip


def named(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.thing: finding for finding in findings}


def test_everything_is_looked_at() -> None:
    findings = examine()
    assert tuple(finding.thing for finding in findings) == THINGS
    assert works(findings)
    text = report(findings)
    assert all(thing in text for thing in THINGS)
    assert max(map(len, text.splitlines())) < 130


def test_json_and_exit_code() -> None:
    ran = process("doctor", "--json")
    assert ran.code == 0
    assert [one["thing"] for one in json.loads(ran.out)] == list(THINGS)


def test_without_torch() -> None:
    """Also without its metadata: what an empty machine sees."""
    hide = "from importlib import metadata\nreal = metadata.version\n" + (
        "def version(name):\n"
        "    if name in ('torch', 'transformers'): raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
    )
    ran = process("doctor", before=BLOCKED + hide)
    assert ran.code == 0
    assert 'torch         pip install "headrace[torch]"' in ran.out
    assert "Headrace cannot work here" not in ran.out


def test_a_missing_base_library_exits_1() -> None:
    hide = "from importlib import metadata\nreal = metadata.version\n" + (
        "def version(name):\n"
        "    if name == 'numpy': raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
    )
    ran = process("doctor", before=hide)
    assert ran.code == 1
    assert 'pip install "numpy>=' in ran.out
    assert ran.out.endswith("Headrace cannot work here yet.\n")


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = named(examine())["C++ compiler"]
    assert found.mark is Mark.MISSING
    assert "apt-get install g++" in found.mend
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "CXX names no-such-compiler" in named(examine())["C++ compiler"].found


def test_compilers_are_those_that_the_target_takes() -> None:
    assert doctor.COMPILERS == cpu.COMPILERS


def test_versions_outside_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "2.5.0+cu121" if name == "torch" else "9.9")
    found = named(examine())
    assert found["torch"].mark is Mark.WRONG
    assert found["torch"].found.startswith("2.5.0+cu121; >=2.11,<2.15 is accepted")


def test_gpu_build_of_onnxruntime_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "1.23.0" if name == "onnxruntime-gpu" else None)
    assert named(examine())["onnxruntime"].mark is Mark.OK


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "deep" / "cache"))
    assert named(examine())["cache"].mark is Mark.OK
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "HEADRACE_CACHE" in named(examine())["cache"].mend
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize(
    ("version", "accepted", "expected"),
    [
        ("2.13.0+cpu", ">=2.11,<2.15", True),
        ("2.11", ">=2.11,<2.15", True),
        ("2.15.0", ">=2.11,<2.15", False),
        ("2.9.1", ">=2.11,<2.15", False),
        ("2.10.0.dev1", ">=2.9", True),
        ("1.26", "", True),
        ("6.0", "<6,>=5.17", False),
    ],
)
def test_satisfies(version: str, accepted: str, expected: bool) -> None:
    assert satisfies(version, accepted) is expected


def test_ranges_are_those_of_the_project() -> None:
    """In a checkout from pyproject.toml, installed from the package's metadata: the same."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = ranges()
    for line in [*project["dependencies"], *project["optional-dependencies"]["torch"]]:
        name = line.split(">=")[0]
        assert sorted(found[name].split(",")) == sorted(line.removeprefix(name).split(","))


def test_the_module_imports_without_torch() -> None:
    code = f"import sys\n{BLOCKED}\nimport headrace.runtime.tools.cli.commands.doctor, headrace.runtime.tools.cli"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_mends_are_told_apart_from_findings() -> None:
    findings: list[Any] = [Finding("a", Mark.OK, "fine"), Finding("b", Mark.MISSING, "none", "pip install b")]
    assert report(findings).endswith("To mend:\n  b  pip install b")
