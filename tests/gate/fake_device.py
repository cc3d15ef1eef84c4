# mypy: disable-error-code="import-not-found, import-untyped"
"""A GPU that is not here: enough of one for torch, Inductor and Triton to compile for it. Nothing can run on it.

It sets private names of torch and Triton, which is why it stands in tests and nowhere else. A process has one device,
put there before anything of torch._inductor is imported.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.backends.gpu.architecture import ARCHITECTURES, Architecture

# Major and minor version, compute units and gigabytes; what Inductor's heuristics ask for beside an architecture.
NUMBERS = {
    "gfx90a": (9, 0, 110, 64),
    "gfx942": (9, 4, 304, 192),
    "gfx950": (9, 5, 256, 288),
    "gfx1100": (11, 0, 48, 24),
    "gfx1201": (12, 0, 32, 16),
    "sm80": (8, 0, 108, 80),
    "sm90": (9, 0, 132, 141),
    "sm100": (10, 0, 148, 180),
}
GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace { C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>) }
"""


def install(name: str) -> Architecture:
    """Make torch and Triton believe in the one device."""
    assert "torch._inductor.compile_fx" not in sys.modules, "the device comes first"
    import torch

    architecture = ARCHITECTURES[name]
    hip = architecture.vendor == "hip"
    torch.version.hip, torch.version.cuda = ("7.2.0", None) if hip else (None, "13.0")
    properties = _properties(architecture)
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0, "is_initialized": True, "is_bf16_supported": True,
        "get_device_properties": properties, "get_device_capability": (properties.major, properties.minor),
        "get_device_name": properties.name, "get_arch_list": [name], "_exchange_device": 0, "memory_allocated": 0,
        "_maybe_exchange_device": 0, "_lazy_init": None, "init": None, "set_device": None, "synchronize": None,
        "current_stream": None, "is_current_stream_capturing": False, "set_rng_state": None,
        "get_rng_state": torch.get_rng_state(),
    }  # fmt: skip
    for function, answer in answers.items():
        setattr(torch.cuda, function, lambda *_, _answer=answer, **__: _answer)
    if not hasattr(torch._C, "_cuda_getCurrentRawStream"):
        torch._C._cuda_getCurrentRawStream = lambda index=0: 0  # type: ignore[misc]
    _guard()
    _no_initialising()
    _driver(architecture, properties)
    return architecture


def _properties(architecture: Architecture) -> SimpleNamespace:
    major, minor, units, memory = NUMBERS[architecture.name]
    hip = architecture.vendor == "hip"
    return SimpleNamespace(
        name=architecture.cards, major=major, minor=minor, multi_processor_count=units,
        warp_size=architecture.wave, total_memory=memory << 30, L2_cache_size=4 << 20,
        regs_per_multiprocessor=131072 if hip else 65536, max_threads_per_multi_processor=2048,
        max_threads_per_block=1024, shared_memory_per_block=min(architecture.local, 65536 if hip else 49152),
        shared_memory_per_block_optin=architecture.local, shared_memory_per_multiprocessor=architecture.local,
        clock_rate=2100000, memory_clock_rate=1300000, memory_bus_width=8192, is_integrated=0, is_multi_gpu_board=0,
        gcnArchName=architecture.name + (":sramecc+:xnack-" if architecture.name.startswith("gfx9") else ""),
        uuid="fake", pci_bus_id=0, pci_device_id=0, pci_domain_id=0,
    )  # fmt: skip


def _guard() -> None:
    """Register a device guard that does nothing: torch for CPUs has none for CUDA, and its own would look for a driver.

    Raises:
        RuntimeError: no C++ compiler is here.
    """
    import torch

    if torch._C._has_cuda:
        torch._C._ensureCUDADeviceGuardSet()
        return
    built = Path(tempfile.gettempdir()) / f"headrace-guard-{torch.__version__}-{os.getuid()}.so"
    if not built.exists():
        named = (os.environ.get("CXX"), "g++", "clang++", "c++")
        compiler = next((name for name in named if name and shutil.which(name)), None)
        if compiler is None:
            raise RuntimeError("The gate needs a C++ compiler, once: apt-get install g++")
        torch_folder = Path(torch.__file__).parent
        linked = [f"-I{torch_folder}/include", f"-L{torch_folder}/lib", "-lc10", f"-Wl,-rpath,{torch_folder}/lib"]
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            source, library = Path(folder) / "guard.cpp", Path(folder) / "guard.so"
            source.write_text(GUARD)
            command = [compiler, "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(library), *linked]
            subprocess.run(command, check=True)
            library.replace(built)
    ctypes.CDLL(str(built))


def _no_initialising() -> None:
    """Tensors that lie nowhere need no driver, where torch would look for one."""
    from torch._subclasses import fake_tensor

    fake_tensor.FakeTensorMode.avoid_device_init = property(lambda self: True)  # type: ignore[method-assign, assignment]
    # A build for CUDA makes a first tensor on the device.
    fake_tensor.init_gpu_context = lambda device: None  # type: ignore[assignment]


def _driver(architecture: Architecture, properties: SimpleNamespace) -> None:
    """Triton's driver of that vendor knows the target and can launch nothing; the other's is off."""
    import torch
    import triton
    from triton import backends
    from triton.backends.compiler import GPUTarget

    version: Any = int(architecture.name[2:]) if architecture.vendor == "cuda" else architecture.name
    target = GPUTarget(architecture.vendor, version, architecture.wave)

    class Driver:
        def __init__(self) -> None:
            limits = {"max_shared_mem": architecture.local, "multiprocessor_count": properties.multi_processor_count}
            self.utils = SimpleNamespace(get_device_properties=lambda device: limits)

        @staticmethod
        def is_active() -> bool:
            return True

        def get_current_target(self) -> Any:
            return target

        def get_active_torch_device(self) -> Any:
            return torch.device("cuda", 0)

        def get_device_interface(self) -> Any:
            return torch.cuda

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: Any) -> int:
            return 0

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"{architecture} is not here: {name} would launch")

    class Off:
        @staticmethod
        def is_active() -> bool:
            return False

    mine, other = ("amd", "nvidia") if architecture.vendor == "hip" else ("nvidia", "amd")
    backends.backends[mine] = dataclasses.replace(backends.backends[mine], driver=Driver)
    backends.backends[other] = dataclasses.replace(backends.backends[other], driver=Off)
    triton.runtime.driver.set_active(Driver())
