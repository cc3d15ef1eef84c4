"""What a model file brings beside arithmetic, read off its bytes: neither onnx nor protobuf need be here.

Tensors may lie in other files, which they name, and a node of EPContext holds code compiled for one device. onnxruntime
follows such names in ways that differ between versions, so they are looked at before it is.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import ArtifactError
from headrace.utils.inside import inside

# The messages of onnx.proto in which a tensor or a node can lie: the fields that lead on, by number.
MESSAGES: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto", 6: "GraphProto", 10: "TensorProto", 11: "GraphProto", 22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "TensorProto": {13: "StringStringEntryProto"},
}  # fmt: skip
ENTRY, KEY, VALUE = "StringStringEntryProto", 1, 2
NODE, OPERATOR = "NodeProto", 4
COMPILED = b"EPContext"
VARINT, EIGHT_BYTES, SIZED, FOUR_BYTES = 0, 1, 2, 5


def require_contained(path: Path) -> None:
    """Refuse a model file that reads files from elsewhere, or that holds a device's machine code.

    Raises:
        ArtifactError: it does.
        ValueError, IndexError, OSError: it is no model file, or cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = set(_named(data))
    if COMPILED in {operator for kind, operator in found if kind == NODE}:
        raise ArtifactError(
            f"{path} holds a node of EPContext: machine code for one device, and no graph. Export the model again."
        )
    names = sorted(name.decode("utf-8", "replace") for kind, name in found if kind == ENTRY)
    if out := [name for name in names if not inside(path.parent, name)]:
        raise ArtifactError(
            f"{path} reads tensors from {', '.join(map(repr, out))}, which leads out of its folder. Weights lie beside "
            "the file that names them."
        )


def _named(data: mmap.mmap) -> Iterator[tuple[str, bytes]]:
    """Each node's operator and each place of tensors, with the message in which it stands."""
    todo = [("ModelProto", 0, len(data))]
    while todo:
        message, start, end = todo.pop()
        held = list(_fields(data, start, end))
        if message == ENTRY and any(number == KEY and data[a:b] == b"location" for number, a, b in held):
            yield from ((ENTRY, data[a:b]) for number, a, b in held if number == VALUE)
        if message == NODE:
            yield from ((NODE, data[a:b]) for number, a, b in held if number == OPERATOR)
        leads = MESSAGES.get(message, {})
        todo += ((leads[number], a, b) for number, a, b in held if number in leads)


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Of a message's bytes, each field that has a size: its number, where it starts and where it ends."""
    while start < end:
        tag, start = _varint(data, start)
        if tag >> 32:  # protobuf would take it for another, by its lower bits
            raise ValueError(f"a field of no number at byte {start}")
        number, form = tag >> 3, tag & 7
        if form == SIZED:
            size, start = _varint(data, start)
            stop = start + size
            yield number, start, stop
        elif form == VARINT:
            _, stop = _varint(data, start)
        elif form in (EIGHT_BYTES, FOUR_BYTES):
            stop = start + (8 if form == EIGHT_BYTES else 4)
        else:
            raise ValueError(f"a field of form {form} at byte {start}")
        if stop > end:
            raise ValueError(f"a field that ends {stop - end} bytes late, at byte {start}")
        start = stop


def _varint(data: mmap.mmap, start: int) -> tuple[int, int]:
    """A number of seven bits a byte, the least first, and where it ends."""
    value = 0
    for place in range(10):
        byte = data[start + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, start + place + 1
    raise ValueError(f"a number of more than ten bytes at byte {start}")
