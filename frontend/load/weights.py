"""A folder's weights, in the class that wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from headrace.errors import LoadError
from headrace.frontend.capture.attention import ATTENTION, all_configs
from headrace.frontend.load.config import readable

WEIGHTS = ("*.safetensors", "*.bin")
# How the file begins that stands in a clone's place of a large one which was not fetched.
LFS = b"version https://git-lfs"


def read_weights(
    folder: Path, config: Any, dtype: torch.dtype, trust_remote_code: bool, *, bare: bool
) -> tuple[nn.Module, tuple[str, ...]]:
    """The module of a folder in `dtype`, and the names of its parameters that the folder lacks.

    Args:
        bare: build it without a head, whatever class wrote the folder.

    Raises:
        LoadError: no weights, or some that cannot be read or have no place in the module.
    """
    _require_weights(folder)
    build, headless = (transformers.AutoModel, False) if bare else _model_class(config, trust_remote_code)
    with readable(folder), _without_bars():
        # .bin files are read with weights_only: nothing in them is run.
        model, info = build.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            weights_only=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **_any_attention(config, build),
        )
    if other := sorted(str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"]):
        shown = ", ".join(other[:5]) + " ..." * (len(other) > 5)
        raise LoadError(f"{folder}: weights of another shape than config.json says: {shown}.")
    if headless and (left := sorted(info["unexpected_keys"])):
        shown = ", ".join(left[:5]) + " ..." * (len(left) > 5)
        raise LoadError(
            f"{folder}/config.json names no class in architectures, and a model without a head leaves these weights "
            f'out: {shown}. Add the class that wrote them, e.g. "architectures": ["BertForSequenceClassification"].'
        )
    return model, tuple(sorted(info["missing_keys"]))


def _require_weights(folder: Path) -> None:
    found = [path for kind in WEIGHTS for path in folder.glob(kind)]
    if not found:
        raise LoadError(f"{folder} holds no weights ({' or '.join(WEIGHTS)}). Give a folder with the trained weights.")
    for path in filter(Path.is_file, found):
        with readable(path), path.open("rb") as file:
            if file.read(len(LFS)) == LFS:
                raise LoadError(f"{path} is Git LFS's pointer to the weights. Fetch them: git lfs pull, in {folder}.")


def _any_attention(config: Any, build: Any) -> dict[str, Any]:
    """The configuration without the attention implementation that its file names, if it names one.

    That one may need a library that is not here (flash attention), while tracing brings an implementation of its own.
    """
    named = [one for one in all_configs([config]) if getattr(one, ATTENTION) is not None]
    if not named or not isinstance(config, getattr(build, "config_class", None) or object):
        return {}
    for one in named:
        vars(one)[ATTENTION] = None
    return {"config": config}


def _model_class(config: Any, trust_remote_code: bool) -> tuple[Any, bool]:
    """The class that wrote the folder: it alone says which head the weights belong to.

    Returns:
        The class, and whether the bare model stands in for one that is not named.
    """
    names = config.architectures or []
    if not names:
        return transformers.AutoModel, True
    if isinstance(found := getattr(transformers, names[0], None), type) and issubclass(found, nn.Module):
        return found, False
    auto_map = getattr(config, "auto_map", None) or {}
    mapped = next((auto for auto, where in auto_map.items() if str(where).endswith("." + names[0])), None)
    if mapped and trust_remote_code:
        return getattr(transformers, mapped), False
    raise LoadError(
        f"config.json names the class {names[0]}, which transformers {transformers.__version__} does not have as a "
        "model. Upgrade transformers, or pass trust_remote_code=True where the folder brings the class."
    )


@contextmanager
def _without_bars() -> Iterator[None]:
    """Transformers draws a bar for every load, however short; ours comes after two seconds."""
    bars: Any = transformers.logging
    drawn = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            bars.enable_progress_bar()
