"""Sentence-transformers' Router: towers of modules, of which a text goes through one."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import nn

from headrace.errors import LoadError
from headrace.frontend.load.keys import read_json, require_known
from headrace.utils.inside import inside

LIBRARY, CLASSES = "sentence_transformers.", (".Router", ".Asym")
FILES = ("router_config.json", "config.json")
# What a text's kind (an image, say) is led by; texts alone are read here.
IDLE = ("route_mappings",)


def routed(folder: Path, kind: str, path: str, tower: str | None) -> list[tuple[str, str]]:
    """A module, or those of a Router's tower: each by its class and its folder below the pipeline's.

    Raises:
        LoadError: no tower of that name, or none is named.
    """
    if not _is_router(kind):
        return [(kind, path)]
    where = next((at for name in FILES if (at := folder / path / name).is_file()), folder / path / FILES[0])
    said = require_known(read_json(where), str(where), ("types", "structure", "parameters"))
    named = require_known(said.get("parameters") or {}, str(where), ("default_route", "allow_empty_key"), IDLE)
    # Without a default the first is one, unless that is forbidden.
    usual = named.get("default_route") or (
        next(iter(said["structure"])) if named.get("allow_empty_key", True) else None
    )
    chosen = _chosen(tower or usual, said["structure"], str(where))
    places = [(str(said["types"][one]), str(Path(path) / one)) for one in said["structure"][chosen]]
    if out := [place for _, place in places if not inside(folder, place)]:
        raise LoadError(f"{where} names {', '.join(map(repr, out))}, outside its folder.")
    return places


def held_tower(module: nn.Module, tower: str | None, name: str) -> list[nn.Module]:
    """The same of a module in memory.

    Raises:
        LoadError: as of `routed`.
    """
    held: Any = module
    if not _is_router(f"{module.__class__.__module__}.{module.__class__.__name__}"):
        return [module]
    return list(held.sub_modules[_chosen(tower or held.default_route, held.sub_modules, name)])


def require_router(tower: str | None, types: list[str], where: str) -> None:
    """Refuse a tower of a pipeline that has none.

    Raises:
        LoadError: no module is a Router.
    """
    if tower is not None and not any(map(_is_router, types)):
        raise LoadError(f"{where} has no Router, and so no tower {tower!r}. Leave it out.")


def _is_router(kind: str) -> bool:
    return kind.startswith(LIBRARY) and kind.endswith(CLASSES)


def _chosen(tower: str | None, towers: Collection[str], where: str) -> str:
    if tower is None or tower not in towers:
        met = "none is named" if tower is None else f"none is {tower!r}"
        raise LoadError(
            f"{where} has the towers {', '.join(towers)}, and {met}. Compile a model for each, by its name."
        )
    return tower
