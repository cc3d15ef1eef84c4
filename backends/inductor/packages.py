"""Ahead-of-time compiled code, and packages: files of code with the weights of one model.

Code holds no weights and depends on none, so that it serves every model of the same graph, and the cache may keep it.
torch by itself puts the weights into the library. No process ever gives that back, since its thread-local variables
and unique symbols keep it where it is, so every model that was loaded and deleted would leave its weights behind. And
no two processes would share them.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor, fx

from headrace.backends.inductor.fingerprint import fingerprint
from headrace.backends.inductor.memory import Memory, map_file
from headrace.backends.inductor.weights import Parts, name_weights, stand_in
from headrace.compat.torch import CodeRunner, compile_code
from headrace.errors import ArtifactError
from headrace.utils.code_cache import fetch
from headrace.utils.forks import Guard
from headrace.utils.scratch import Scratch

INDEX, CONSTANTS = "weights.json", "constants.pt"
# Code that leaves its weights outside, and names them.
OUTSIDE = {
    "aot_inductor.package": True,
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.package_constants_on_disk_format": "pickle_weights",
}
# The folders of the libraries that this process has loaded, by what lies in them.
_loaded: dict[str, Scratch] = {}
_loading = Guard()


class Code:
    """A library and what it reads beside it: files by name, and the tensors that the compiler made."""

    def __init__(self, content: bytes) -> None:
        """Take what `compile_module` made."""
        self.content = content

    def files(self) -> dict[str, bytes]:
        """The files by their names."""
        with zipfile.ZipFile(io.BytesIO(self.content)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def compile_module(
    module: fx.GraphModule, example: tuple[Any, ...], stacks: Mapping[str, Parts], label: str
) -> tuple[Code, dict[str, Parts]]:
    """Compile a module, or take what was compiled from a like one.

    Args:
        module: with its weights as attributes; its graph is changed.
        example: inputs, in the graph's order.
        stacks: the attributes that stand for several weights, in one tensor each, and those weights.
        label: of the code, for people.

    Returns:
        The code and the weights that it takes, by name, as `compose` makes them.
    """
    weights = name_weights(module, stacks)
    key = fingerprint(module, weights, OUTSIDE)
    return Code(fetch(key, label, lambda: _compiled(module, example, weights))), weights


def _compiled(module: fx.GraphModule, example: tuple[Any, ...], weights: Mapping[str, Parts]) -> bytes:
    for name, parts in weights.items():
        module.register_buffer(name, stand_in(parts), persistent=False)
    made: Any = compile_code(module, example, OUTSIDE)
    code = [Path(file) for file in made if isinstance(file, str) and Path(file).suffix in (".so", ".json")]
    (held,) = (file for file in made if isinstance(file, Mapping))
    constants = {name: value.detach() for name, (value, _) in held.items() if name not in weights}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in code:
            archive.write(file, file.name)
        with archive.open(CONSTANTS, "w") as file_:
            torch.save(constants, file_)
    return content.getvalue()


def write_package(package: Path, code: Code, memory: Memory) -> None:
    """Write weights and code to one file: the weights first, where pages begin, and an archive of the rest."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        for name, content in code.files().items():
            files.writestr(name, content)
        files.writestr(INDEX, json.dumps(memory.index()))
    with package.open("wb") as file:
        memory.write(file)
        file.write(archive.getbuffer())


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
    """Load what `write_package` wrote.

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
