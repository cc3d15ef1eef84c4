"""Packages of ahead-of-time compiled code: a library that a process loads once, and weights that go with the model.

torch by itself puts the weights into the library. No process ever gives that back, since its thread-local variables
and unique symbols keep it where it is, so every model that was loaded and deleted would leave its weights behind.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor, fx

from headrace.compat.torch import CodeRunner, compile_code
from headrace.errors import ArtifactError
from headrace.utils.forks import Guard
from headrace.utils.scratch import Scratch

Weights = Mapping[str, Tensor]
WEIGHTS = "weights.pt"
# Code that leaves its weights outside, and names them.
OUTSIDE = {
    "aot_inductor.package": True,
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.package_constants_on_disk_format": "pickle_weights",
}
# The folders of the libraries that this process has loaded, by what lies in them.
_loaded: dict[str, Scratch] = {}
_loading = Guard()


def compile_package(module: fx.GraphModule, example: tuple[tuple[Any, ...], dict[str, Any]], package: Path) -> None:
    """Compile a module that holds its weights, and write code and weights to one file."""
    _own(module)
    args, named = example
    assert all(one.is_contiguous() for one in (*args, *named.values())), "the code keeps its example's strides"
    made: Any = compile_code(module, args, named, OUTSIDE)
    code = [Path(file) for file in made if isinstance(file, str) and file]
    (weights,) = (file for file in made if isinstance(file, Mapping))
    with zipfile.ZipFile(package, "w") as archive:
        for file in code:
            archive.write(file, file.name)
        with archive.open(WEIGHTS, "w", force_zip64=True) as held:
            torch.save({name: weight.detach() for name, (weight, _) in weights.items()}, held)


def _own(module: fx.GraphModule) -> None:
    """Give each weight a storage of its own: the code copies whole storages, from the weight's first value on."""
    for node in module.graph.find_nodes(op="get_attr"):
        held = attrgetter(str(node.target))(module)
        if isinstance(held, Tensor) and held.untyped_storage().nbytes() != held.nbytes:
            held.data = held.data.clone()


class Runner:
    """Compiled code with weights of its own."""

    def __init__(self, package: Path) -> None:
        """Load what `compile_package` wrote.

        Raises:
            ArtifactError: it is something else.
        """
        library, weights = _read(package)
        self._runner = CodeRunner(str(library), 1)
        names = self._runner.get_constant_names_to_original_fqns()
        # Copied: torch never gives up what it was only shown.
        held = {name: weights[source] for name, source in names.items()}
        self._runner.update_constant_buffer(held, use_inactive=False, validate_full_updates=True, user_managed=False)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for inputs in the graph's order."""
        outputs: list[Tensor] = self._runner.run(list(inputs))
        return outputs


def _read(package: Path) -> tuple[Path, Weights]:
    """Where the package's library lies, unpacked, and its weights."""
    try:
        with zipfile.ZipFile(package) as archive:
            code = {name: archive.read(name) for name in archive.namelist() if name != WEIGHTS}
            weights = torch.load(io.BytesIO(archive.read(WEIGHTS)), weights_only=True)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ArtifactError(
            f"{package} is no compiled code of this version: {error}. Compile the model again."
        ) from error
    with _loading.lock:
        return _unpacked(code), weights


def _unpacked(code: Mapping[str, bytes]) -> Path:
    """The library of some code, in the folder that it was first loaded from: a process then has it once."""
    digest = hashlib.sha256()
    for name, content in sorted(code.items()):
        digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
    library = next(name for name in code if name.endswith(".so"))
    held = _loaded.get(digest.hexdigest())
    if held is None or not (held.path / library).exists():  # as after a fork whose parent has ended
        held = Scratch()
        for name, content in code.items():
            (held.path / PurePath(name).name).write_bytes(content)
        _loaded[digest.hexdigest()] = held
    return held.path / library
