"""What Headrace needs and what is here, with the line that mends what is missing. Works without torch."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

from headrace.errors import TargetError
from headrace.examples import cache_folder
from headrace.runtime.tools.inspect.tables import aligned

# What the base needs, then what the extras bring.
BASE = ("numpy", "rich", "safetensors", "tokenizers", "typer")
OPTIONAL = {"torch": "torch", "transformers": "torch", "onnxruntime": "onnx"}
PYTHONS = ((3, 11), (3, 14))
# As in backends/cpu.py, which cannot be imported without torch; a test holds them together.
COMPILERS = ("g++", "clang++", "c++")
# What AMD's driver makes, the names that Triton is installed by (the last two for ROCm), and where torch for ROCm is.
KFD = Path("/dev/kfd")
TRITONS = ("triton", "triton-rocm", "pytorch-triton-rocm")
TRITON = "pip install triton (on a machine without a GPU too; torch for CUDA and for ROCm bring their own)"
ROCM_TORCH = "https://pytorch.org/get-started/locally, where ROCm is one of the choices"
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")
NUMBER = re.compile(r"\d+(?:\.\d+)*")


class Mark(StrEnum):
    """How a thing stands."""

    OK = "ok"
    MISSING = "missing"
    WRONG = "unsuitable"
    ABSENT = "not here"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `needed` things must be there for anything to work."""

    thing: str
    mark: Mark
    found: str
    mend: str = ""
    needed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def examine() -> list[Finding]:
    """Look at everything, in the order in which it is told."""
    return [*_machine(), *_libraries(), _compiler(), *_devices(), _cache()]


def works(findings: Sequence[Finding]) -> bool:
    """Whether the base can work."""
    return all(finding.mark is Mark.OK for finding in findings if finding.needed)


def report(findings: Sequence[Finding]) -> str:
    """The findings as a table, then the lines that mend."""
    lines = aligned([(finding.thing, finding.mark, finding.found) for finding in findings], indent=0)
    mends = [(finding.thing, finding.mend) for finding in findings if finding.mend]
    if mends:
        lines += ["", "To mend:", *aligned(mends)]
    if not works(findings):
        lines += ["", "Headrace cannot work here yet."]
    return "\n".join(lines)


def _machine() -> Iterator[Finding]:
    version, suits = platform.python_version(), PYTHONS[0] <= sys.version_info[:2] < PYTHONS[1]
    mend = "" if suits else "install Python 3.11, 3.12 or 3.13"
    yield Finding("python", Mark.OK if suits else Mark.WRONG, f"{version} ({sys.executable})", mend, needed=True)
    yield Finding("system", Mark.OK, f"{platform.system()} {platform.release()}, {platform.machine()}")
    name, flags = _processor()
    shown = f"{name}; {', '.join(flags)}" if flags else name
    yield Finding("cpu", Mark.OK, shown)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("cores", Mark.OK, f"{usable} of {os.cpu_count()} usable")
    yield Finding("memory", Mark.OK, _memory())


def _processor() -> tuple[str, list[str]]:
    """The processor's name, and those of its instruction sets that decide speed."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine(), []
    fields = dict(re.findall(r"^([^\t:]+)\s*: (.*)$", text, re.MULTILINE))
    has = set((fields.get("flags") or fields.get("Features") or "").split())
    return fields.get("model name", platform.machine()).strip(), [flag for flag in FLAGS if flag in has]


def _memory() -> str:
    try:
        page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
        return f"{page * pages / 2**30:.1f} GiB, {page * os.sysconf('SC_AVPHYS_PAGES') / 2**30:.1f} GiB free"
    except (ValueError, OSError, AttributeError):
        return "unknown"


def _libraries() -> Iterator[Finding]:
    accepted = ranges()
    for name in BASE:
        yield _library(name, accepted.get(name, ""), f'pip install "{name}{accepted.get(name, "")}"', needed=True)
    for name, extra in OPTIONAL.items():
        yield _library(name, accepted.get(name, ""), f'pip install "headrace[{extra}]"', needed=False)


def _library(name: str, accepted: str, mend: str, needed: bool) -> Finding:
    # onnxruntime-gpu is the same library by another name.
    version = next((found for found in map(_version, (name, f"{name}-gpu")) if found), None)
    wanted = f"{accepted or 'any version'} is accepted"
    if version is None:
        mark = Mark.ABSENT if name == "onnxruntime" else Mark.MISSING
        why = f"the target onnx needs it; {wanted}" if mark is Mark.ABSENT else wanted
        return Finding(name, mark, why, mend, needed)
    if not satisfies(version, accepted):
        return Finding(name, Mark.WRONG, f"{version}; {wanted}", mend, needed)
    return Finding(name, Mark.OK, f"{version} ({wanted})", needed=needed)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def ranges() -> dict[str, str]:
    """The accepted versions by library, e.g. `>=2.11,<2.15`: from the installed package, else from the checkout."""
    try:
        lines = metadata.requires("headrace") or []
    except metadata.PackageNotFoundError:
        import tomllib

        file = Path(__file__).resolve().parents[4] / "pyproject.toml"
        project = tomllib.loads(file.read_text())["project"] if file.is_file() else {}
        lines = sum(project.get("optional-dependencies", {}).values(), list(project.get("dependencies", [])))
    split = (re.match(r"([\w.-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)", line) for line in lines)
    # Built metadata lists the bounds in another order than pyproject.toml does.
    found = {match[1].lower(): sorted(match[2].replace(" ", "").split(",")) for match in split if match}
    return {name: ",".join(reversed(bounds)) for name, bounds in found.items() if bounds != [""]}


def satisfies(version: str, accepted: str) -> bool:
    """Whether a version lies within bounds such as `>=2.11,<2.15`; the numbers alone count."""
    have = _numbers(version)
    for bound in filter(None, (part.strip() for part in accepted.split(","))):
        sign, wanted = bound.rstrip("0123456789.* "), _numbers(bound)
        holds = {">=": have >= wanted, "<": have < wanted, "<=": have <= wanted, ">": have > wanted}
        if not holds.get(sign, True):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = NUMBER.search(version)
    numbers = tuple(map(int, found[0].split("."))) if found else ()
    return (*numbers, 0, 0, 0)[:3]


def _compiler() -> Finding:
    named = os.environ.get("CXX")
    found = next((path for name in ((named,) if named else COMPILERS) if (path := shutil.which(name))), None)
    if found is None:
        what = (
            f"CXX names {named}, which is not on the path" if named else "none is on the path; the target cpu needs one"
        )
        mend = "unset CXX, or set it to a compiler" if named else "apt-get install g++ (or dnf install gcc-c++)"
        return Finding("C++ compiler", Mark.MISSING, what, mend)
    return Finding("C++ compiler", Mark.OK, f"{found} ({_first_line([found, '--version'])})")


def _first_line(command: list[str]) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    return next(iter((ran.stdout or ran.stderr).splitlines()), "says nothing")


def _devices() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways
        if not isinstance(error, ModuleNotFoundError):
            yield Finding(
                "torch import", Mark.WRONG, str(error).splitlines()[0], 'pip install --force-reinstall "torch"'
            )
        return
    yield _gpu(torch)
    yield _triton()
    yield _targets()


def _targets() -> Finding:
    """Which targets run a model here; the lines before say what the others lack."""
    from headrace.backends import TARGETS, backend

    here = []
    for target in TARGETS:
        with suppress(TargetError):
            backend(target)
            here.append(target)
    others = ", ".join(target for target in TARGETS if target not in here)
    return Finding("targets", Mark.OK, ", ".join(here) + (f"; not here: {others}" if others else ""))


def _gpu(torch: Any) -> Finding:
    """The GPUs that torch sees, and whether a target runs on them; else what keeps torch from one that is there."""
    from headrace.backends import backend, preferred

    kind = "ROCm" if torch.version.hip else "CUDA"
    build = torch.version.hip or torch.version.cuda
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if names:
        try:
            backend(preferred())
        except TargetError as error:
            return Finding("GPU", Mark.WRONG, ", ".join(names), str(error))
        return Finding("GPU", Mark.OK, f"{', '.join(names)} ({kind} {build})")
    # The kernel's driver for AMD's GPUs makes this file.
    if KFD.exists() and not torch.version.hip:
        found = f"an AMD GPU's driver is here ({KFD}), and torch {torch.__version__} is not built for ROCm"
        return Finding("GPU", Mark.ABSENT, found, f"install torch for ROCm: {ROCM_TORCH}")
    if torch.version.hip:
        mend = (
            "see whether rocminfo lists one, and whether you are in the groups render and video" if KFD.exists() else ""
        )
        return Finding("GPU", Mark.ABSENT, f"none that torch sees, though it is built for ROCm {build}", mend)
    return Finding(
        "GPU", Mark.ABSENT, f"none that torch sees, though it is built for CUDA {build}" if build else "none"
    )


def _triton() -> Finding:
    version = next((found for found in map(_version, TRITONS) if found), None)
    if version is None:
        return Finding("triton", Mark.ABSENT, "the targets cuda and rocm need it, and so does --kernels-only", TRITON)
    return Finding("triton", Mark.OK, version)


def _cache() -> Finding:
    folder = cache_folder()
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
    base = next(path for path in (folder, *folder.parents) if path.is_dir())
    if not os.access(base, os.W_OK):
        return Finding("cache", Mark.WRONG, f"{folder} cannot be written", "set HEADRACE_CACHE to a folder of yours")
    return Finding("cache", Mark.OK, f"{folder}, {size / 10**6:.0f} MB")
