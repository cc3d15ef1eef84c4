"""The compiled model behind an adapter, of what its constructor was given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace.runtime.artifact.manifest import MANIFEST
from headrace.runtime.artifact.saved_model import load
from headrace.runtime.model import CompiledModel

if TYPE_CHECKING:
    from headrace.runtime.api import Source

# Arguments of sentence-transformers' constructors that have no meaning here, and what has.
INSTEAD = {
    "cache_folder": "models are cached where huggingface_hub keeps them: set HF_HOME",
    "local_files_only": "set HF_HUB_OFFLINE=1",
    "token": "set HF_TOKEN, or huggingface-cli login",
    "use_auth_token": "set HF_TOKEN, or huggingface-cli login",
    "backend": "device= or headrace.compile(target=...) chooses what runs the model",
    "processor_kwargs": "pass max_length, or headrace.compile(tokenizer=...)",
    "tokenizer_kwargs": "pass max_length, or headrace.compile(tokenizer=...)",
    "config_kwargs": "compile the module that has that config",
    "modules": "pass the module itself, or its folder, as the model",
    "num_labels": "the model's head says how many labels there are",
    "pool": "one process runs the model; headrace.load it in each of several",
    "chunk_size": "one process runs the model; headrace.load it in each of several",
    "processing_kwargs": "pass max_length",
}


def opened(
    model: CompiledModel | Source, wish: str, other: str, device: Any, dtypes: Any, **options: Any
) -> CompiledModel:
    """A compiled model as it is, what `save` wrote read back, and any other compiled.

    Args:
        model: as `headrace.compile` takes it, a folder that `save` or `export_onnx` wrote, or a compiled model.
        wish: the task that it is for, and `other` where it does not support that.
        device: as of `headrace.compile`.
        dtypes: `model_kwargs` of sentence-transformers, of which the dtype is taken.
        options: those of `headrace.trace`.

    Raises:
        HeadraceError: it cannot be loaded or compiled, or a compiled model was to be moved.
    """
    if isinstance(model, CompiledModel):
        if device is not None:
            raise InputError(f"{model!r} is compiled, and device={str(device)!r} would move it. Compile it there.")
        return model
    if isinstance(model, (str, Path)) and (Path(model) / MANIFEST).is_file():
        return load(model, device=device)
    from headrace.runtime.api import lower

    lowered = lower(model, task=wish, device=device, dtype=_dtype(dtypes), **options)
    return lowered.compile(task=wish if wish in lowered.tasks else other)


def _dtype(given: dict[str, Any] | None) -> Any:
    rest = dict(given or {})
    names = [name for name in ("dtype", "torch_dtype") if name in rest]
    chosen = [rest.pop(name) for name in names]
    if rest:
        raise InputError(f"model_kwargs has {', '.join(rest)}; dtype is accepted. Load the module with the others.")
    return chosen[0] if chosen and chosen[0] is not None else "auto"


def require_known(given: dict[str, Any], method: str) -> None:
    """Refuse arguments that sentence-transformers has and an adapter has not, unless they ask for nothing.

    Raises:
        InputError: one of them is given; the message says what has its effect here.
        TypeError: sentence-transformers has none of that name either.
    """
    for name, value in given.items():
        if name not in INSTEAD:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
        if value is not None and value is not False:
            raise InputError(f"{method} takes no {name}: {INSTEAD[name]}.")


def require_here(device: Any, model: CompiledModel) -> None:
    """Refuse to run a model elsewhere than where it was compiled.

    Raises:
        InputError: `device` is another.
    """
    if device is not None and str(device) not in (str(device_of(model)), str(device_of(model)).split(":")[0]):
        raise InputError(
            f"device is {str(device)!r}, and the model was compiled for {model.target}. Leave it out, or pass device= "
            "to the constructor."
        )


def device_of(model: CompiledModel) -> Any:
    """Where it runs, as torch's device."""
    import torch

    from headrace.target import parse_target

    target = parse_target(model.target)
    on_gpu = target.kind in ("cuda", "rocm") or target.variant == "cuda"
    return torch.device("cuda", target.device or 0) if on_gpu else torch.device("cpu")
