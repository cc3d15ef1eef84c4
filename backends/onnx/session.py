"""A model file run by onnxruntime. Nothing here needs torch, nor onnx."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from headrace.backends.onnx import names
from headrace.backends.onnx.check.contents import require_contained
from headrace.backends.onnx.profiles import PROFILES
from headrace.errors import ArtifactError, InputError, TargetError, warn
from headrace.utils.forks import OfEachProcess

# What "auto" tries, best first, under the short names that `target="onnx:cuda"` takes.
PROVIDERS = {
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
HOST = PROVIDERS["cpu"]
# float32 means float32 (contract D1).
OPTIONS = {PROVIDERS["cuda"]: {"use_tf32": "0"}}
# Providers whose libraries may lie in packages of Python, where no system's loader looks.
NVIDIA = frozenset({PROVIDERS["tensorrt"], PROVIDERS["cuda"]})
# Providers that compile a graph for every shape, and take one dynamic dimension at most: they get fixed shapes, the
# batch rounded up to a power of two. So many are kept.
FIXED, KEPT = frozenset({PROVIDERS["migraphx"]}), 16


def find_providers(wish: str | None, device: int | None = None) -> tuple[str, ...]:
    """The providers to try in order: the one wished for, else every one that this onnxruntime was built with.

    Args:
        device: the number of the device that they shall run on, which leaves the host's out.

    Raises:
        TargetError: no such provider, or not in this onnxruntime.
    """
    built = onnxruntime.get_available_providers()
    if wish is None:
        found = tuple(name for name in PROVIDERS.values() if name in built and (device is None or name != HOST))
        if not found:
            raise TargetError(
                f"onnx:{device} names a device, and this onnxruntime ({onnxruntime.__version__}) has providers for the "
                'host alone. Use target="onnx", or for NVIDIA: pip install "headrace[gpu]".'
            )
        return found
    if device is not None and wish == "cpu":
        raise TargetError(f"onnx:cpu:{device} names a device, and that provider runs on the host. Leave it out.")
    if wish not in PROVIDERS:
        raise TargetError(f"There is no target 'onnx:{wish}'. Choose from {', '.join(f'onnx:{p}' for p in PROVIDERS)}.")
    if PROVIDERS[wish] not in built:
        raise TargetError(
            f"This onnxruntime ({onnxruntime.__version__}) was built without {PROVIDERS[wish]}; it has "
            f'{", ".join(built)}. For NVIDIA: pip install "headrace[gpu]".'
        )
    return (PROVIDERS[wish],)


class Session:
    """One model file on the best provider that takes it.

    A forked child opens the file again: the session of onnxruntime is no use there, whose threads and locks are
    those of the parent, and its end would wait for them.
    """

    def __init__(
        self, path: Path, providers: Sequence[str], mapped: bool = False, device: int | None = None
    ) -> None:  # fmt: skip
        """Load the file; each provider is tried in turn, and believed only when the session itself names it.

        Args:
            mapped: read weights that lie in a file of their own from there, as they are needed, rather than copy them
                to the order that the CPU multiplies fastest.
            device: the number of the providers' device, None for their first.

        Raises:
            ArtifactError: onnxruntime cannot read the file, or is too old to answer right; or the file reads others
                outside its folder, or holds machine code.
            TargetError: no provider took it.
        """
        try:
            require_contained(path)
        except (ValueError, IndexError, OSError) as error:
            raise _unreadable(path, error) from error
        self.path, self._device = path, device
        inner, provider = _opened(path, providers, mapped=mapped, device=device)
        _require_runtime(path, inner.get_modelmeta().custom_metadata_map.get(names.METADATA, "{}"))
        self.provider = provider
        self.inputs = {value.name: value.type for value in inner.get_inputs()}
        # Those that the file says what they are where nobody does.
        self.optional = frozenset(value.name for value in inner.get_overridable_initializers())
        self.outputs = tuple(value.name for value in inner.get_outputs())
        self._inner = OfEachProcess(lambda: _opened(path, (provider,), mapped=mapped, device=device)[0], inner)
        self._fixed = OfEachProcess(OrderedDict[tuple[int, int], onnxruntime.InferenceSession])

    def run(self, inputs: Mapping[str, NDArray[Any]], output: str) -> NDArray[Any]:
        """One output for a batch. Only that one leaves the device."""
        return self.run_for(inputs, (output,))[0]

    def run_for(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Several outputs for a batch, of one run."""
        if self.provider not in FIXED:
            given = [*self.inputs, *self.optional.intersection(inputs)]
            return _run(self._inner(), {name: inputs[name] for name in given}, outputs)
        batch, length = inputs[names.IDS].shape
        size = 1 << (batch - 1).bit_length()
        # A row again, rather than one of padding alone: every row then has a token.
        filled = {name: np.pad(inputs[name], _below(size - batch, inputs[name]), mode="edge") for name in self.inputs}
        return [found[:batch] for found in _run(self._for_shape(size, length), filled, outputs)]

    def copy(self, path: Path) -> None:
        """Copy the file, and the data beside it, which it knows by name."""
        shutil.copyfile(self.path, path)
        data = self.path.with_name(f"{self.path.name}_data")
        if data.is_file():
            shutil.copyfile(data, path.with_name(data.name))

    def _for_shape(self, batch: int, length: int) -> onnxruntime.InferenceSession:
        """A session whose dimensions are fixed; the least recently used goes where there are too many."""
        fixed = self._fixed()
        if (batch, length) not in fixed:
            shape = {names.BATCH: batch, names.SEQUENCE: length}
            fixed[batch, length], _ = _opened(self.path, (self.provider,), shape, device=self._device)
            if len(fixed) > KEPT:
                fixed.popitem(last=False)
        fixed.move_to_end((batch, length))
        return fixed[batch, length]


def _below(count: int, array: NDArray[Any]) -> list[tuple[int, int]]:
    return [(0, count), *[(0, 0)] * (array.ndim - 1)]


def _run(
    session: onnxruntime.InferenceSession, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]
) -> list[NDArray[Any]]:
    # No binding: it costs a call of Python for each of a decoder's pasts, which this hands over as they are.
    given = {name: np.ascontiguousarray(one) for name, one in inputs.items()}
    found: list[NDArray[Any]] = session.run([*outputs], given)
    return found


def _provider_options(name: str, device: int | None) -> dict[str, str]:
    placed = {"device_id": str(device)} if device is not None and name != HOST else {}
    return OPTIONS.get(name, {}) | placed


def _opened(
    path: Path,
    providers: Sequence[str],
    shape: Mapping[str, int] | None = None,
    mapped: bool = False,
    device: int | None = None,
) -> tuple[onnxruntime.InferenceSession, str]:
    refused = []
    if NVIDIA & set(providers):
        _load_libraries()
    for provider in providers:
        chosen = [(name, _provider_options(name, device)) for name in dict.fromkeys((provider, HOST))]
        try:
            session = onnxruntime.InferenceSession(str(path), _options(shape or {}, mapped), providers=chosen)
        except Exception as error:  # onnxruntime's exceptions share no class
            if provider == HOST:
                raise _unreadable(path, error) from error
            refused.append(f"{provider}: {_short(error)}")
            continue
        if (used := session.get_providers()[0]) == provider:
            if refused:
                message = f"The model runs on {provider}, since others that onnxruntime was built with did not take it"
                warn(f"{message} ({'; '.join(refused)}).")
            return session, provider
        refused.append(f"{provider}: the session fell back to {used}, its libraries or its device are missing")
    raise TargetError(f"No provider of onnxruntime took {path.name}: {'; '.join(refused)}.")


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


def _unreadable(path: Path, error: Exception) -> ArtifactError:
    return ArtifactError(f"onnxruntime {onnxruntime.__version__} cannot read {path}{_newer()}: {_short(error)}")


def _newer() -> str:
    """What an old onnxruntime may lack, beside its own reason."""
    needs = [f"{p.name} needs {'.'.join(map(str, p.runtime))}" for p in PROFILES.values() if p.runtime > _version()]
    return f" (of the profiles, {', '.join(needs)})" if needs else ""


def _require_runtime(path: Path, facts: str) -> None:
    profile = PROFILES.get(json.loads(facts).get("profile", ""))
    if profile is not None and profile.runtime > _version():
        least = ".".join(map(str, profile.runtime))
        raise ArtifactError(
            f"{path} is of the profile {profile.name}, which needs onnxruntime {least} or newer; this is "
            f"{onnxruntime.__version__}, which answers it wrongly or not at all. Upgrade onnxruntime, or export with "
            'profile="portable".'
        )


def _load_libraries() -> None:
    """Load CUDA and cuDNN from their packages, where they are installed; the session tells of what is missing."""
    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it did not find
            onnxruntime.preload_dlls()


def _options(shape: Mapping[str, int], mapped: bool) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    if mapped:
        options.add_session_config_entry("session.disable_prepacking", "1")
    for dimension, size in shape.items():
        options.add_free_dimension_override_by_name(dimension, size)
    options.log_severity_level = 3  # a fallback is told by the session itself
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit():
        options.intra_op_num_threads = int(threads)
    return options


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "it gives no reason"


class Executable:
    """Some outputs of a model file."""

    def __init__(self, session: Session, outputs: Sequence[str], keep: Any = None) -> None:
        """Check that the file has those outputs; `keep` is held as long as the executable, e.g. the file's folder.

        Raises:
            ArtifactError: it has not.
        """
        if lacking := [name for name in outputs if name not in session.outputs]:
            raise ArtifactError(f"{session.path} has no output {lacking[0]!r}; it has {', '.join(session.outputs)}.")
        self.calls = 0
        self._session, self._outputs, self._keep = session, tuple(outputs), keep

    @property
    def provider(self) -> str:
        """The provider in use, by the session's own word."""
        return self._session.provider

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> Any:
        """Run a batch: its output, or a tuple of several."""
        self.calls += 1
        given = dict(inputs)
        if names.LENGTHS in self._session.inputs:
            given[names.LENGTHS] = right_padded(inputs[names.PADDING])
        found = self._session.run_for(given, self._outputs)
        return found[0] if len(found) == 1 else tuple(found)

    def save(self, path: Path) -> None:
        """Copy the file, and the data beside it."""
        self._session.copy(path)


def right_padded(padding: NDArray[Any]) -> NDArray[np.int64]:
    """The lengths [batch] of sequences that are padded on the right.

    Raises:
        InputError: the padding lies elsewhere, which lengths cannot say.
    """
    lengths: NDArray[np.int64] = (padding != 0).sum(1).astype(np.int64)
    if not np.array_equal(padding != 0, np.arange(padding.shape[1]) < lengths[:, None]):
        raise InputError("This model takes lengths, so padding stands on the right; export with profile='std'.")
    return lengths
