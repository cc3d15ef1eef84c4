"""Compiled code, loaded: a library, and the weights that it reads where they lie."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

import torch
from torch import Tensor

from headrace.backends.inductor.memory import Memory, map_file
from headrace.compat.torch_code import CodeRunner
from headrace.errors import ArtifactError
from headrace.utils.forks import Guard
from headrace.utils.scratch import Scratch

# In a package, where the weights lie, and the tensors that the compiler made.
INDEX, CONSTANTS = "weights.json", "constants.pt"
# The folders of the libraries that this process has loaded, by what lies in them.
_loaded: dict[str, Scratch] = {}
_loading = Guard()


class Runner:
    """Compiled code with weights of its own."""

    def __init__(self, files: Mapping[str, bytes], memory: Memory) -> None:
        """Load code.

        Args:
            files: the code's, by name.
            memory: weights by the names that the code has for them; the code reads them where they lie.
        """
        with _loading.lock:
            library = _unpacked(files)
        self._runner = CodeRunner(str(library), 1)
        known = {**torch.load(io.BytesIO(files[CONSTANTS]), weights_only=True), **memory.weights}
        names = self._runner.get_constant_names_to_original_fqns()
        held = {name: known[source] for name, source in names.items()}
        self._runner.update_constant_buffer(held, use_inactive=False, validate_full_updates=True, user_managed=True)
        self.memory, self._held = memory, held

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for inputs in the graph's order."""
        outputs: list[Tensor] = self._runner.run(list(inputs))
        return outputs


def read_package(package: Path) -> Runner:
    """Load what `packages.write_package` wrote.

    Raises:
        ArtifactError: it is something else.
    """
    try:
        with zipfile.ZipFile(package) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        return Runner(files, map_file(package, json.loads(files.pop(INDEX))))
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"{package} is no compiled code of this version: {error}. Compile the model again."
        ) from error


def _unpacked(files: Mapping[str, bytes]) -> Path:
    """The library of some code, in the folder that it was first loaded from: a process then has it once."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
    library = next(name for name in files if name.endswith(".so"))
    held = _loaded.get(digest.hexdigest())
    if held is None or not (held.path / library).exists():  # as after a fork whose parent has ended
        held = Scratch()
        for name, content in files.items():
            (held.path / PurePath(name).name).write_bytes(content)
        _loaded[digest.hexdigest()] = held
    return held.path / library
