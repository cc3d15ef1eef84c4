"""Manifests of older versions, read as they were meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.ir import OFFSETS, Role

# What each input held before manifests said it: then it was known by its name alone.
ROLES = {
    "input_ids": Role.IDS,
    "attention_mask": Role.PADDING,
    "position_ids": Role.POSITIONS,
    "token_type_ids": Role.TYPES,
    "decoder_input_ids": Role.TARGET_IDS,
    "decoder_attention_mask": Role.TARGET_PADDING,
    OFFSETS: Role.OFFSETS,
    "pixel_values": Role.ARRAY,
    "input_values": Role.ARRAY,
    "input_features": Role.ARRAY,
}


def fill_roles(manifest: dict[str, Any]) -> None:
    """Give every input of a manifest that has no role the one that its name says; what is no input stays as it is."""
    for given in _inputs(manifest):
        if "role" not in given and (role := ROLES.get(str(given.get("name")))):
            given["role"] = role.value


def _inputs(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    lanes = manifest["lanes"]
    held = [manifest, *(lanes.values() if isinstance(lanes, dict) else ())]
    for program in (one.get("program") for one in held if isinstance(one, dict)):
        inputs = program.get("inputs") if isinstance(program, dict) else None
        if isinstance(inputs, list):
            yield from (given for given in inputs if isinstance(given, dict))
