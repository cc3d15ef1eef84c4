"""A folder's weights, in the class that wrote them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from headrace.errors import LoadError, warn
from headrace.frontend.capture.attention import ATTENTION, all_configs
from headrace.frontend.load.adapters import apply_adapter, without_adapter
from headrace.frontend.load.config import readable
from headrace.frontend.load.remote_code import warn_of_code

WEIGHTS = ("*.safetensors", "*.bin")
# How the file begins that stands in a clone's place of a large one which was not fetched.
LFS = b"version https://git-lfs"
WRAPPED = re.compile(r"^(?:module\.|_orig_mod\.)+|_orig_mod\.")


def read_weights(
    folder: Path, config: Any, dtype: torch.dtype, trust_remote_code: bool, *, bare: bool, changed: bool = False
) -> tuple[nn.Module, tuple[str, ...]]:
    """The module of a folder in `dtype`, and the names of its parameters that the folder lacks.

    Args:
        bare: build it without a head, whatever class wrote the folder.
        changed: whether `config` is another than the folder's file.

    Raises:
        LoadError: no weights, or some that cannot be read or have another shape than the module's.
    """
    _require_weights(folder)
    build, headless = _model_class(folder, config, trust_remote_code, bare)
    given = _any_attention(config, build, changed)
    with readable(folder), _without_bars():
        model, info = _load(build, folder, dtype, trust_remote_code, given)
        if _wrapped(info["unexpected_keys"]):
            model, info = _load(build, folder, dtype, trust_remote_code, given, key_mapping={WRAPPED.pattern: ""})
        apply_adapter(model, folder)
    if other := sorted(str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"]):
        raise LoadError(f"{folder}: weights of another shape than config.json says: {_shown(other)}.")
    left = sorted(info["unexpected_keys"])
    if headless and left:
        raise LoadError(
            f"{folder}/config.json names no class in architectures, and a model without a head leaves these weights "
            f'out: {_shown(left)}. Add the class that wrote them, e.g. "architectures": '
            '["BertForSequenceClassification"].'
        )
    _warn_of_placeless(folder, _bodys(left, model) if bare else left)
    return model, tuple(sorted(info["missing_keys"]))


def _load(
    build: Any, folder: Path, dtype: torch.dtype, trust_remote_code: bool, given: dict[str, Any], **options: Any
) -> tuple[Any, dict[str, Any]]:
    with without_adapter(folder) as place:
        # .bin files are read with weights_only: nothing in them is run.
        model, info = build.from_pretrained(
            place,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            weights_only=True,
            ignore_mismatched_sizes=True,  # they are refused by the caller, by name
            **given,
            **options,
        )
    return model, info


def _wrapped(unexpected: Collection[str]) -> bool:
    """Whether weights lie under names that DataParallel and torch.compile put before a module's own."""
    return any(WRAPPED.search(key) for key in unexpected)


def _bodys(keys: list[str], model: Any) -> list[str]:
    """The keys that are not a head's: a head lies beside the base model's own modules."""
    prefix = f"{model.base_model_prefix}."
    return [key for key in keys if key.startswith(prefix) or hasattr(model, key.split(".", 1)[0])]


def _warn_of_placeless(folder: Path, keys: list[str]) -> None:
    if keys:
        warn(
            f"{len(keys)} weights of {folder} have no place in the model that its configuration describes, and are "
            f"left out: {_shown(keys)}. Check that the configuration is the one that they were trained with.",
        )


def _shown(keys: list[str]) -> str:
    return ", ".join(keys[:5]) + " ..." * (len(keys) > 5)


def _require_weights(folder: Path) -> None:
    found = [path for kind in WEIGHTS for path in folder.glob(kind)]
    if not found:
        raise LoadError(f"{folder} holds no weights ({' or '.join(WEIGHTS)}). Give a folder with the trained weights.")
    for path in filter(Path.is_file, found):
        with readable(path), path.open("rb") as file:
            if file.read(len(LFS)) == LFS:
                raise LoadError(f"{path} is Git LFS's pointer to the weights. Fetch them: git lfs pull, in {folder}.")


def _any_attention(config: Any, build: Any, changed: bool) -> dict[str, Any]:
    """The configuration without the attention implementation that its file names, if it names one or was `changed`.

    That one may need a library that is not here (flash attention), while tracing brings an implementation of its own.
    """
    named = [one for one in all_configs([config]) if getattr(one, ATTENTION) is not None]
    fits = isinstance(config, getattr(build, "config_class", None) or object)
    if changed and not fits:
        raise LoadError(f"config_kwargs are for another configuration than that of {build.__name__}. Take them out.")
    if not (named or changed) or not fits:
        return {}
    for one in named:
        vars(one)[ATTENTION] = None
    return {"config": config}


def _model_class(folder: Path, config: Any, trust_remote_code: bool, bare: bool) -> tuple[Any, bool]:
    """The class that wrote the folder: it alone says which head the weights belong to.

    Its own code is taken before transformers' class of the same name, where it is trusted.

    Returns:
        The class, and whether the bare model stands in for one that is not named.
    """
    names, auto_map = config.architectures or [], getattr(config, "auto_map", None) or {}
    of_name = (auto for auto, where in auto_map.items() if names and str(where).endswith("." + names[0]))
    mapped = "AutoModel" if bare or not names else next(of_name, None)
    if mapped is not None and mapped not in auto_map:
        mapped = None
    if mapped and trust_remote_code and not bare:
        return getattr(transformers, mapped), not names
    found = transformers.AutoModel if bare or not names else getattr(transformers, names[0], None)
    if isinstance(found, type) and (issubclass(found, nn.Module) or found is transformers.AutoModel):
        if not trust_remote_code:
            warn_of_code(folder / "config.json", auto_map, ("AutoConfig", mapped))
        return found, not bare and not names
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
