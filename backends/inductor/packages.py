"""Ahead-of-time compiled code, and packages: files of code with the weights of one model.

Code holds no weights and depends on none, so that it serves every model of the same graph, and the cache may keep it.
torch by itself puts the weights into the library. No process ever gives that back, since its thread-local variables
and unique symbols keep it where it is, so every model that was loaded and deleted would leave its weights behind. And
no two processes would share them.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx

from headrace.backends.inductor.fingerprint import fingerprint, fingerprint_source, surroundings
from headrace.backends.inductor.host.shims import shims
from headrace.backends.inductor.memory import Memory
from headrace.backends.inductor.runner import CONSTANTS, INDEX
from headrace.backends.inductor.weights import Parts, name_weights, stand_in
from headrace.compat.torch import OpOverload, compile_code
from headrace.utils.code_cache import fetch

# Code that leaves its weights outside, and names them.
OUTSIDE = {
    "aot_inductor.package": True,
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.package_constants_on_disk_format": "pickle_weights",
}


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
    called, source = shims(_called(module))
    options = {**OUTSIDE, **called}
    key = fingerprint(module, weights, options | {"source": source})
    return Code(fetch(key, label, lambda: _compiled(module, example, weights, options, source))), weights


def _called(module: fx.GraphModule) -> set[Any]:
    """What a graph calls, and those within it. A writer is an argument of what gives its writes back as values."""
    within = (one for one in module.modules() if isinstance(one, fx.GraphModule))
    nodes = [node for one in within for node in one.graph.nodes if node.op == "call_function"]
    return {node.target for node in nodes} | {arg for node in nodes for arg in node.args if isinstance(arg, OpOverload)}


def _compiled(
    module: fx.GraphModule,
    example: tuple[Any, ...],
    weights: Mapping[str, Parts],
    options: Mapping[str, Any],
    source: str,
) -> bytes:
    for name, parts in weights.items():
        module.register_buffer(name, stand_in(parts), persistent=False)
    made: Any = compile_code(module, example, options, source, _keeper(source))
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


def _keeper(source: str) -> Callable[[str, Callable[[], bytes]], bytes]:
    """What has the cache keep the compiled file of C++ of ours, by all that it depends on."""
    around = tuple(surroundings())  # now: settings change while torch compiles
    label = f"C++ of Headrace, torch {torch.__version__}"
    return lambda command, make: fetch(fingerprint_source(source, command, around), label, make)


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
