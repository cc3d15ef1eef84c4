"""Manifests of versions that knew inputs by their names alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.ir import Program, Role
from headrace.ir.serialize import decode
from headrace.runtime.artifact.manifest import MANIFEST, read_manifest
from headrace.runtime.artifact.older import fill_roles

RECORDED = Path(__file__).parent / "before_roles.json"
TEXT = [Role.IDS, Role.PADDING, Role.POSITIONS, Role.TYPES]


def test_a_recorded_manifest_is_read(tmp_path: Path) -> None:
    """The model and each lane; its digest is that of what was written."""
    shutil.copyfile(RECORDED, tmp_path / MANIFEST)
    manifest = read_manifest(tmp_path)
    for held in (manifest, *manifest["lanes"].values()):
        program = decode(Program, held["program"])
        assert [given.role for given in program.signature.inputs] == TEXT
        assert program.signature.name(Role.POSITIONS) == "position_ids"


def test_what_says_its_roles_keeps_them() -> None:
    given: dict[str, Any] = {"name": "input_ids", "role": "target_ids"}
    fill_roles({"program": {"inputs": [given]}, "lanes": {}})
    assert given["role"] == "target_ids"


@pytest.mark.parametrize(
    ("name", "dtype", "role"),
    [
        ("decoder_input_ids", "int64", "target_ids"),
        ("decoder_attention_mask", "int64", "target_padding"),
        ("cu_seqlens", "int32", "offsets"),
        ("pixel_values", "float32", "array"),
        ("input_values", "float32", "array"),
        ("input_features", "float16", "array"),
    ],
)
def test_inputs_of_other_models(name: str, dtype: str, role: str) -> None:
    given: dict[str, Any] = {"name": name, "dtype": dtype}
    fill_roles({"program": {"inputs": [given]}, "lanes": {}})
    assert given["role"] == role


@pytest.mark.parametrize(
    "manifest",
    [
        {"program": {"inputs": [{"name": "own"}, {"name": ["input_ids"]}, 3, None]}, "lanes": {}},
        {"program": {"inputs": {"name": "input_ids"}}, "lanes": [1]},
        {"program": None, "lanes": {"embedding": None, "more": {"program": []}}},
    ],
)
def test_what_is_no_input_stays_as_it_is(manifest: dict[str, Any]) -> None:
    before = json.dumps(manifest)
    fill_roles(manifest)
    assert json.dumps(manifest) == before
