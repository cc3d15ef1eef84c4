"""The ONNX target: onnxruntime. Only what compiles needs torch and onnx."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.backends.onnx import names
from headrace.backends.onnx.past import PastExecutable
from headrace.backends.onnx.profiles import PROFILES
from headrace.backends.onnx.session import HOST, Executable, Session, find_providers
from headrace.ir import Layout, Program
from headrace.target import Target
from headrace.utils.scratch import Scratch, room_told

# A file of protocol buffers ends at 2 GiB; well before that, weights are better mapped from a file of their own.
EXTERNAL_FROM = 1 << 30
# Padded tokens in a step.
ON_HOST, ON_DEVICE = 2048, 16384


class Onnx:
    """Runs wherever onnxruntime does, on the first of its providers that takes the model."""

    name = "onnx"
    suffix = ".onnx"
    dtypes = ("float32",)
    libraries: tuple[str, ...] = ()
    runs_code = False
    layout = Layout.PADDED
    fills_rows = False
    ahead, pools, tensors = False, False, False

    def __init__(self, provider: str | None = None, device: int | None = None) -> None:
        """`provider` is one of `PROVIDERS`, None for the best; `device` is one of several, by its number."""
        self._providers, self._device = find_providers(provider, device), device
        self._sessions: dict[Path, Session] = {}

    def layout_of(self, program: Program) -> Layout:
        """The same for every program."""
        return self.layout

    @property
    def target(self) -> Target:
        """With the device that was asked for."""
        return Target(self.name, devices=() if self._device is None else (self._device,))

    @property
    def step_tokens(self) -> int:
        """A GPU wants larger batches than a CPU's caches."""
        return ON_HOST if self._providers[0] == HOST else ON_DEVICE

    def check(self, compiles: bool) -> None:
        """To compile, the exporter's libraries must be there."""
        if compiles:
            for library in ("onnx", "onnxscript", "torch"):
                importlib.import_module(library)

    def feed(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """As they are."""
        return inputs

    def fetch(self, output: NDArray[Any]) -> NDArray[np.float32]:
        """In float32."""
        return output.astype(np.float32, copy=False)

    def widest_row(self, dtype: str) -> int:
        """None: ONNX's operators take heads' keys and values."""
        return 0

    def cache_bytes(self) -> int:
        """Half of what the host has free."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2

    def resized(self, array: NDArray[Any] | None, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """A larger copy, zeros past what there was."""
        made = np.zeros(shape, dtype)
        if array is not None:
            made[: len(array)] = array
        return made

    def compile(self, program: Program) -> Executable | PastExecutable:
        """Write the program in the profile std, and load that."""
        from headrace.backends.onnx.export.graph import build
        from headrace.backends.onnx.export.weights import write

        folder = Scratch()
        path = folder.path / f"{program.signature.outputs[0].kind}.onnx"
        with room_told("The ONNX model"):
            write(build(program, PROFILES["std"], last=True), path, EXTERNAL_FROM)
        return _executable(Session(path, self._providers, device=self._device), program, folder)

    def load(self, path: Path, program: Program) -> Executable | PastExecutable:
        """Load a file, or take other outputs of one that is loaded."""
        if path not in self._sessions:
            self._sessions[path] = Session(path, self._providers, device=self._device)
        return _executable(self._sessions[path], program)


def _executable(session: Session, program: Program, keep: Any = None) -> Executable | PastExecutable:
    if program.form.layout is Layout.CACHED:
        return PastExecutable(session, program, keep)
    return Executable(session, _names(program), keep)


def _names(program: Program) -> list[str]:
    """What a file calls the program's outputs."""
    return [names.OUTPUTS[output.kind] for output in program.signature.outputs]
