"""A bundle: a folder of JSON and safetensors that carries a model's float64 answers, inside and out.

parity.json             what was recorded: the model, its nodes, each precision's noise, the machine, every digest
reference.safetensors   the requests, and for each precision the float64 values of every node
recorded.json           what the recording machine's own target made of it
model/                  config and weights, where they are small; else a digest of the weights stands in their place
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from headrace.errors import ParityError
from headrace.ir import Task
from headrace.ir.serialize import decode, encode
from headrace.runtime.artifact.manifest import damage, digest, sha256
from headrace.runtime.artifact.places import held
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.tools.parity.environment import Environment
from headrace.runtime.tools.parity.rule import Array, Noise, stacked

MANIFEST, TENSORS, RECORDED, MODEL = "parity.json", "reference.safetensors", "recorded.json", "model"
FORMAT = 1


@dataclass(frozen=True)
class Node:
    """One tapped node, or the answer: what people call it, what it computes, and its place in the model.

    Attributes:
        rows: how many each request has; None for one a token, or the one of a pooled answer.
    """

    name: str
    says: str
    place: str
    width: int
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Precision:
    """One dtype: the digest of the weights as they are rounded to it, and the noise at each node, the answer's last."""

    dtype: str
    weights: str
    noise: tuple[Noise, ...]


@dataclass(frozen=True)
class Recording:
    """What a bundle says of itself.

    Attributes:
        prefill, pooling: as they were asked for when the model was traced.
        nodes: the tapped ones in the order of the program, then the answer.
        per_token: whether the answer has a row a token.
    """

    model: str
    task: Task
    prefill: str | None
    pooling: tuple[str, ...] | None
    nodes: tuple[Node, ...]
    precisions: tuple[Precision, ...]
    environment: Environment
    per_token: bool
    carries_weights: bool

    def precision(self, dtype: str) -> Precision:
        """What was recorded in that dtype."""
        return next(precision for precision in self.precisions if precision.dtype == dtype)


@dataclass(frozen=True, eq=False)
class Bundle:
    """A bundle in memory.

    Attributes:
        exact: for each precision and node, the float64 values of each request: [tokens, width], or [width] of a pooled
            answer. The file holds them in float32, whose rounding is far below any floor.
    """

    recording: Recording
    requests: tuple[Encoded, ...]
    exact: Mapping[str, Sequence[Sequence[Array]]]
    folder: Path | None = None
    digest: str = field(default="")


def write_bundle(bundle: Bundle, work: Path) -> str:
    """Write the tensors and the manifest of everything that lies in the folder by then.

    Returns:
        The manifest's digest.
    """
    save_file(_tensors(bundle), work / TENSORS)
    files = {str(path.relative_to(work)): sha256(path) for path in sorted(work.rglob("*")) if path.is_file()}
    manifest = {"format": FORMAT, "recording": encode(bundle.recording), "files": files}
    manifest["digest"] = digest(manifest)
    (work / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return str(manifest["digest"])


def _tensors(bundle: Bundle) -> dict[str, Array]:
    held: dict[str, Array] = {
        "request.ids": np.concatenate([request.ids for request in bundle.requests]),
        "request.lengths": np.array([request.length for request in bundle.requests], np.int64),
    }
    if (types := [request.types for request in bundle.requests if request.types is not None]) != []:
        held["request.types"] = np.concatenate(types)
    for dtype, nodes in bundle.exact.items():
        for place, rows in enumerate(nodes):
            held[f"{dtype}.{place}"] = stacked(rows).astype(np.float32)
    return held


def read_bundle(folder: Path) -> Bundle:
    """Read a bundle back with suspicion.

    Raises:
        ParityError: it is missing, damaged, foreign or newer than this version; says what differs.
    """
    with held(folder) as inside:
        return replace(_read(inside), folder=folder)


def _read(folder: Path) -> Bundle:
    manifest = _manifest(folder)
    _check_files(folder, manifest["files"])
    try:
        recording = decode(Recording, manifest["recording"])
        held = load_file(folder / TENSORS)
        requests = _requests(held)
        exact = {one.dtype: _exact(held, one.dtype, recording, requests) for one in recording.precisions}
    except (ValueError, TypeError, KeyError, AttributeError, SafetensorError) as error:
        raise ParityError(f"{folder} holds facts that this version cannot read: {error}. Record it again.") from error
    return Bundle(recording, requests, exact, folder, manifest["digest"])


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ParityError(
            f"{folder} is no parity bundle: it has no {MANIFEST}. Give what `headrace parity record` wrote."
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ParityError(f"{path} cannot be read: {error}. Copy the bundle again.") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise ParityError(f"{folder} is of format {found}; this version reads {FORMAT}. Upgrade headrace.")
    fields = {"format", "recording", "files", "digest"}
    if not isinstance(manifest, dict) or set(manifest) != fields or found != FORMAT:
        differs = ", ".join(sorted(set(manifest) ^ fields)) if isinstance(manifest, dict) else "everything"
        raise ParityError(f"{path} is no manifest of a parity bundle: {differs or 'format'} differs. Record it again.")
    if manifest["digest"] != digest(manifest):
        raise ParityError(f"{folder} is damaged: {MANIFEST} was changed. Copy or record it again.")
    return manifest


def _check_files(folder: Path, files: Mapping[str, str]) -> None:
    if wrong := damage(folder, files):
        raise ParityError(f"{folder} is damaged: {wrong}. Copy or record it again.")


def _requests(held: Mapping[str, Array]) -> tuple[Encoded, ...]:
    ends = np.cumsum(held["request.lengths"])[:-1]
    ids = np.split(held["request.ids"], ends)
    types = np.split(held["request.types"], ends) if "request.types" in held else [None] * len(ids)
    return tuple(Encoded(one, kind) for one, kind in zip(ids, types, strict=True))


def _exact(
    held: Mapping[str, Array], dtype: str, recording: Recording, requests: Sequence[Encoded]
) -> list[list[Array]]:  # fmt: skip
    nodes = []
    for place, node in enumerate(recording.nodes):
        whole = held[f"{dtype}.{place}"].astype(np.float64)
        if whole.shape[1] != node.width:
            raise ValueError(f"{node.name} has {whole.shape[1]} columns and not {node.width}")
        per_token = node is not recording.nodes[-1] or recording.per_token
        rows = node.rows if node.rows is not None else [one.length if per_token else 0 for one in requests]
        nodes.append(_per_request(whole, rows))
    return nodes


def _per_request(whole: Array, rows: Sequence[int]) -> list[Array]:
    """The rows of each request; of a pooled answer, which has none of its own, the one."""
    if not any(rows):
        return list(whole)
    return np.split(whole, np.cumsum(rows)[:-1])
