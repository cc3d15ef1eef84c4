"""Damage to a folder: bits, files and facts, each drawn by a seed, and said in words."""

from __future__ import annotations

import copy
import json
import random
import reprlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.runtime.artifact.manifest import MANIFEST, digest

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**70, 1e300, 0.5, float("nan"), float("inf"), "", "x", "../x",
    "/etc/passwd", MANIFEST, "tokenizer", "tokenizer/tokenizer.json", "mean", "reference", "cpu", "onnx", "embed",
    "\ud800", "a\0b", [], [[]], [1, 2], ["x"], {}, {"x": 1}, {"file": "x"}, "x" * 5000,
]  # fmt: skip


def damage(folder: Path, draw: random.Random) -> str:
    """Damage a folder in one way."""
    return draw.choices((flip, cut, rearrange, change_fact), (2, 1, 2, 5))[0](folder, draw)


def flip(folder: Path, draw: random.Random) -> str:
    """Turn some bits of a file."""
    path = draw.choice(files(folder))
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 8))):
        if content:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return f"flip {path.name}"


def cut(folder: Path, draw: random.Random) -> str:
    """End a file early."""
    path = draw.choice(files(folder))
    content = path.read_bytes()
    path.write_bytes(content[: draw.choice((0, 1, len(content) // 2, max(0, len(content) - 1)))])
    return f"cut {path.name}"


def rearrange(folder: Path, draw: random.Random) -> str:
    """Take a file away, rename, double or replace it."""
    path, other = draw.choice(files(folder)), draw.choice(files(folder))
    how = draw.choice(("remove", "rename", "double", "replace", "folder", "link"))
    if how == "double":
        shutil.copyfile(path, path.with_name(f"copy-{path.name}"))
    elif how == "rename":
        path.rename(path.with_name(f"other-{path.name}"))
    elif how == "replace":
        path.write_bytes(other.read_bytes())
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how == "link":
            path.symlink_to("nowhere")
    return f"{how} {path.name}"


def change_fact(folder: Path, draw: random.Random) -> str:
    """Change, drop or add facts of the manifest, and have its digest agree."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    said = [_change(manifest, draw) for _ in range(draw.choice((1, 1, 1, 2, 4)))]
    if isinstance(manifest, dict) and draw.random() < 0.95:
        manifest["digest"] = digest(manifest)
    path.write_text(json.dumps(manifest, indent=1))
    return "; ".join(said)


def _change(manifest: Any, draw: random.Random) -> str:
    """Change one fact, wherever it stands."""
    if not (found := list(places(manifest))):
        return "nothing is left"
    holder, key, where = draw.choice(found)
    how, old = draw.choice(("value", "value", "near", "drop", "add", "swap")), reprlib.repr(holder[key])
    if how == "drop":
        del holder[key]
        return f"drop {where}: {old}"
    if how == "add" and isinstance(holder, dict):
        holder[draw.choice(("x", "", "files", "file"))] = copy.deepcopy(draw.choice(VALUES))
    elif how == "swap":
        other, place, _ = draw.choice(found)
        holder[key] = copy.deepcopy(other[place])
    else:
        holder[key] = _near(holder[key], draw) if how == "near" else copy.deepcopy(draw.choice(VALUES))
    return f"{how} {where}: {old} -> {reprlib.repr(holder[key])}"


def _near(value: Any, draw: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return draw.choice((True, False, None, 0, 1))
    if isinstance(value, (int, float)):
        return value + draw.choice((1, -1, 100, -100, 2**40))
    if isinstance(value, str):
        return draw.choice((value.upper(), value + "x", value[:-1], value + "\0", [value]))
    if isinstance(value, list):
        return draw.choice((value[::-1], value + value, value[:-1], [value], {"0": value}))
    return [value]


def places(held: Any, where: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Every place in nested facts: what holds it, its key, and its path."""
    for key in held if isinstance(held, dict) else range(len(held)):
        yield held, key, f"{where}/{key}"
        if isinstance(held[key], (dict, list)):
            yield from places(held[key], f"{where}/{key}")


def files(folder: Path) -> list[Path]:
    """The files of a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
