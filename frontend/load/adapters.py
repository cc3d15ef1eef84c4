"""Adapters in a model's folder: small weights that change the model beside them, or one that lies elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers.utils.import_utils import is_peft_available

from headrace.errors import LoadError
from headrace.frontend.load.keys import read_json

CONFIG = "adapter_config.json"
ADAPTER = "adapter_"


def require_no_bare_adapter(folder: Path) -> None:
    """Refuse an adapter without the model that it changes, and one beside its model that nothing here can apply.

    Raises:
        LoadError: the folder is an adapter, or peft is missing.
    """
    if not (folder / CONFIG).is_file():
        return
    base = read_json(folder / CONFIG).get("base_model_name_or_path")
    weights = [path for kind in ("*.safetensors", "*.bin") for path in folder.glob(kind)]
    if not (folder / "config.json").is_file() or all(path.name.startswith(ADAPTER) for path in weights):
        raise LoadError(
            f"{folder} is an adapter ({CONFIG}) of the model {base}, and no model. Load that model with its own class, "
            f"add the adapter with peft.PeftModel.from_pretrained(model, {str(folder)!r}), and give the result's "
            "merge_and_unload()."
        )
    if not is_peft_available():
        raise LoadError(
            f"{folder} holds an adapter ({CONFIG}) beside the weights of its base, and peft, which applies it, is not "
            f"installed: pip install peft. For the base alone, take the files {ADAPTER}* out."
        )


@contextmanager
def without_adapter(folder: Path) -> Iterator[Path]:
    """The folder without its adapter, if it has one. Of both at once, transformers tells the adapter's keys alone."""
    if not (folder / CONFIG).is_file():
        yield folder
        return
    with tempfile.TemporaryDirectory() as made:
        for path in folder.iterdir():
            if not path.name.startswith(ADAPTER):
                (Path(made) / path.name).symlink_to(path.resolve())
        yield Path(made)


def apply_adapter(model: Any, folder: Path) -> None:
    """Add the folder's adapter to its model, if it has one.

    Raises:
        LoadError: weights of the adapter that have no place, or are missing.
    """
    if not (folder / CONFIG).is_file():
        return
    info = model.load_adapter(str(folder))
    for what in ("mismatched_keys", "unexpected_keys", "missing_keys"):
        if keys := sorted(map(str, getattr(info, what, ()))):
            shown = ", ".join(keys[:5]) + " ..." * (len(keys) > 5)
            raise LoadError(f"{folder}: the adapter does not fit its base, by {what.replace('_', ' ')} {shown}.")
