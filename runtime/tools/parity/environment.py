"""What two machines may differ in: libraries, device, driver, precision flags. Never a host's name or a path."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from headrace import __version__

LIBRARIES = ("torch", "transformers", "triton", "onnxruntime", "numpy")
# Variables that change what is computed; those with other values than these plain ones may hold paths.
VARIABLES = re.compile(r"(AMDGCN|CUBLAS|HIPBLASLT|MIOPEN|NVIDIA|ONEDNN|ORT_MIGRAPHX|PYTORCH|ROCBLAS|TORCH|TRITON)_?\w*")
PLAIN = re.compile(r"[\w.:,=-]{1,40}")
DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


@dataclass(frozen=True)
class Environment:
    """A machine, as far as it changes numbers."""

    device: str
    libraries: tuple[tuple[str, str], ...]
    flags: tuple[tuple[str, str], ...]

    def differences(self, other: Environment) -> list[tuple[str, str, str]]:
        """What the two differ in: its name, and the value of each; "" where one has none."""
        here, there = self._named(), other._named()
        names = [*here, *(name for name in there if name not in here)]
        pairs = [(name, here.get(name, ""), there.get(name, "")) for name in names]
        return [pair for pair in pairs if pair[1] != pair[2]]

    def _named(self) -> dict[str, str]:
        return {"device": self.device, **dict(self.libraries), **dict(self.flags)}


def environment(target: str) -> Environment:
    """This machine, as the target sees it."""
    libraries = [("headrace", __version__), ("python", platform.python_version()), *_installed()]
    on_gpu = target.partition(":")[0] in ("cuda", "rocm")
    device = _gpu() if on_gpu else _cpu()
    return Environment(device, tuple(libraries), tuple(_flags(on_gpu)))


def _installed() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _cpu() -> str:
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{named[0] if named else platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def _gpu() -> str:
    import torch

    found = torch.cuda.get_device_properties(0)
    kind = getattr(found, "gcnArchName", None) if torch.version.hip else f"sm{found.major}{found.minor}"
    return f"{found.name}, {kind}"


def _flags(on_gpu: bool) -> Iterator[tuple[str, str]]:
    import torch

    yield "float32 products", torch.get_float32_matmul_precision()
    if on_gpu:
        yield "runtime", f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        yield from _driver()
        products = torch.backends.cuda.matmul
        yield "TF32", str(products.allow_tf32)
        yield "bfloat16 sums in bfloat16", str(products.allow_bf16_reduced_precision_reduction)
        yield "float16 sums in float16", str(products.allow_fp16_reduced_precision_reduction)
    for name, value in sorted(os.environ.items()):
        if VARIABLES.fullmatch(name) and PLAIN.fullmatch(value):
            yield name, value


def _driver() -> Iterator[tuple[str, str]]:
    for path in DRIVERS:
        if path.is_file() and (found := re.search(r"\d+\.\d+(\.\d+)*", path.read_text())):
            yield "driver", found[0]
