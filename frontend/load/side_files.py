"""The files beside a model's weights that a deployment folder holds too, and those that are not the folder's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.errors import LoadError
from headrace.frontend.load.sentence_transformers.pipeline import MODULES, SETTINGS, TRANSFORMER_FILES
from headrace.utils.inside import inside

GENERATION = "generation_config.json"
SIDE_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
# What a tokenizer reads of its folder.
TEXT_FILES = (*SIDE_FILES, "additional_chat_templates/*.jinja")


def side_files(folder: Path, weights: Path) -> dict[str, str | None]:
    """The texts of the folder's side files; those of the transformer's own folder lie at the top, where users look."""
    found = [(weights, name) for name in ("config.json", GENERATION, *TRANSFORMER_FILES)]
    found += [(folder, name) for name in (MODULES, SETTINGS)]
    found += [(folder, str(path.relative_to(folder))) for path in folder.glob("[0-9]_*/config.json")]
    there = [(where, name) for where, name in found if (where / name).is_file()]
    return {name: _text(where / name) if _within(folder, where / name) else None for where, name in there}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(
            f"{path}, which belongs to a model, cannot be read as a text: {error}. Mend it or move it away."
        ) from error


def linked_out(folder: Any, tokenizer: Any) -> dict[str, None]:
    """The files of a tokenizer that are links to what lies elsewhere, themselves or a folder on the way.

    Args:
        folder: the one that was handed over, in which the tokenizer's lies; anything but a path holds no files.
    """
    if not isinstance(tokenizer, (str, Path)):
        return {}
    root, where = Path(folder).expanduser(), Path(tokenizer).expanduser()
    found = (path for kind in TEXT_FILES for path in sorted(where.glob(kind)))
    return {str(path.relative_to(where)): None for path in found if not _within(root, path)}


def _within(folder: Path, path: Path) -> bool:
    return inside(folder, str(path.relative_to(folder)))
