"""Manifests of older versions, read as they were meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.backends.onnx.names import DECODED_PADDING, IDS, INPUTS
from headrace.ir import OFFSETS, Role

# What each input held before manifests said it: then it was known by its name alone, which ONNX files keep. What else
# a model reads are arrays, and those alone are no whole numbers.
ROLES = {name: role for role, name in INPUTS.items()}
ROLES |= {f"decoder_{IDS}": Role.TARGET_IDS, DECODED_PADDING: Role.TARGET_PADDING, OFFSETS: Role.OFFSETS}


def fill_roles(manifest: dict[str, Any]) -> None:
    """Give every input of a manifest that has no role the one it had; what is no input stays as it is."""
    for given in _inputs(manifest):
        array = Role.ARRAY if str(given.get("dtype")).startswith("float") else None
        if "role" not in given and (role := ROLES.get(str(given.get("name")), array)):
            given["role"] = role.value


def _inputs(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    lanes = manifest["lanes"]
    held = [manifest, *(lanes.values() if isinstance(lanes, dict) else ())]
    for program in (one.get("program") for one in held if isinstance(one, dict)):
        inputs = program.get("inputs") if isinstance(program, dict) else None
        if isinstance(inputs, list):
            yield from (given for given in inputs if isinstance(given, dict))
