"""A digest of all that compiled code depends on: two graphs that have one are compiled to the same."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from headrace.backends.inductor.weights import Parts, layout, written
from headrace.compat.torch import OpOverload, compiler_settings, size_bounds
from headrace.utils.inside import real

CPU = Path("/proc/cpuinfo")
# What of the processor code is compiled for.
TRAITS = ("model name", "flags", "Features", "CPU part")
# The parts of Headrace whose code decides what is compiled.
OWN = ("backends/inductor", "headrace/ops", "headrace/compat", "headrace/graphs", "headrace/ir")


def fingerprint(module: fx.GraphModule, weights: Mapping[str, Parts], options: Mapping[str, Any]) -> str:
    """The digest of a graph, of what its weights look like, and of whatever compiles it.

    Args:
        module: its weights named by `name_weights`.
        options: of the compiler.
    """
    digest = hashlib.sha256()
    for line in (*surroundings(), *sorted(f"{key} {value}" for key, value in options.items())):
        digest.update(f"{line}\n".encode())
    for name, parts in weights.items():
        digest.update(f"{name} {parts[0].dtype} {layout(parts)} {parts[0].device}\n".encode())
        if written(parts):
            digest.update("".join(str(part.tolist()) for part in parts).encode())
    for line in _graph(module):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def fingerprint_source(source: str, command: str, surroundings: Iterable[str]) -> str:
    """The digest of C++ of ours and of whatever compiles it.

    Args:
        command: of the compiler.
        surroundings: as `surroundings` gives them.
    """
    return hashlib.sha256("\n".join((source, command, *surroundings)).encode()).hexdigest()


def _graph(module: fx.GraphModule) -> Iterator[str]:
    """The nodes of a graph, and of those within it, by their places."""
    names = {node: f"%{place}" for place, node in enumerate(module.graph.nodes)}
    for node, name in names.items():
        target = node.target if isinstance(node.target, str) else _name(node.target)
        read = fx.map_arg((node.args, node.kwargs), lambda arg: names[arg])
        yield f"{name} {node.op} {target if node.op != 'placeholder' else ''} {read}"
        if node.op == "placeholder":
            yield _look(node.meta.get("val"))
        within = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(within, fx.GraphModule):
            yield from _graph(within)


def _name(target: Any) -> str:
    if isinstance(target, OpOverload):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"


def _look(value: Any) -> str:
    if isinstance(value, Tensor):
        sizes = [f"{size}{size_bounds(size)}" for size in value.shape]
        return f"{value.dtype} {sizes} {value.stride()} {value.device}"
    return f"{value}{size_bounds(value)}"


def surroundings() -> Iterator[str]:
    """The versions, the processor and the settings."""
    yield from (f"headrace {_own_code()}", f"torch {torch.__version__} {torch.version.git_version}")
    yield from (f"{platform.machine()} {platform.libc_ver()} {_processor()}", f"compiler {_compiler()}")
    yield from (f"threads {torch.get_num_threads()}", f"precision {torch.get_float32_matmul_precision()}")
    yield from (f"capability {os.environ.get('ATEN_CPU_CAPABILITY', '')}", compiler_settings())


@cache
def _own_code() -> str:
    """A digest of Headrace's own code, as far as it decides what is compiled: a number of a version says less."""
    home, digest = Path(__file__).resolve().parents[2], hashlib.sha256()
    for folder in OWN:
        near = next(place for place in (home / folder, home / folder.removeprefix("headrace/")) if place.is_dir())
        for file in sorted(near.rglob("*.py")):
            digest.update(file.relative_to(near).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()


@cache
def _processor() -> str:
    try:
        lines = CPU.read_text(errors="replace").splitlines()
    except OSError:  # a system that does not tell as Linux does
        return platform.processor()
    return str(sorted({line for line in lines if line.startswith(TRAITS)}))


def _compiler() -> str:
    """Where the compiler lies, and since when."""
    named = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, (named,) if named else ("g++", "clang++", "c++"))), None)
    if found is None:
        return "none"
    status = real(Path(found)).stat()
    return f"{real(Path(found))} {status.st_size} {status.st_mtime_ns}"
