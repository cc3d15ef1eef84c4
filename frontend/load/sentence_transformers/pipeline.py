"""Sentence-transformers' pipelines, from a folder or from memory: which modules, each with what it is configured as."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import LoadError
from headrace.frontend.load.keys import read_json, require_known
from headrace.frontend.load.sentence_transformers.router import held_tower, require_router, routed
from headrace.utils.inside import inside

TRANSFORMER, MLM, STATIC, SPARSE_STATIC = "Transformer", "MLMTransformer", "StaticEmbedding", "SparseStaticEmbedding"
WORDS, BAG, CLIP = "WordEmbeddings", "BoW", "CLIPModel"
FIRST = (TRANSFORMER, MLM, STATIC, SPARSE_STATIC, WORDS, BAG, CLIP)
TABLES = (STATIC, SPARSE_STATIC, WORDS, BAG)
# Of these tables, those that make a text's vector by themselves.
MAKING = (STATIC, SPARSE_STATIC, BAG)
# The modules that are served behind one of these.
AFTER = (
    "Pooling",
    "Dense",
    "Normalize",
    "LayerNorm",
    "Dropout",
    "WeightedLayerPooling",
    "CNN",
    "LSTM",
    "WordWeights",
    "LogitScore",
    "SpladePooling",
    "SparseAutoEncoder",
    "MultiVectorMask",
)
KNOWN = ", ".join((*FIRST, *AFTER))
MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
# The names that the transformer's own file has had; the first that says something is read.
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Where other modules say what they are, if not in config.json.
FILES = dict.fromkeys((TRANSFORMER, MLM, CLIP), TRANSFORMER_FILES) | {"CNN": ("cnn_config.json",)}
FILES |= {"LSTM": ("lstm_config.json",), WORDS: ("wordembedding_config.json",), BAG: ("config.json",)}
# Of the others, older versions wrote no file, or they need none.
CONFIGURED = (
    *("Pooling", "Dense", "LayerNorm", "WeightedLayerPooling", "CNN", "LSTM", "WordWeights", "LogitScore"),
    *(WORDS, BAG),
)
# What the pipeline says of itself. Versions are those that wrote it, or that its author asks for.
APPLIED = (
    *("model_type", "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "activation_fn"),
    "max_active_dims",
)
IDLE = ("__version__", "requirements")
# An entry of modules.json; the keywords that a module's forward takes are none of encode's without a wish.
ENTRY = ("idx", "name", "path", "type", "kwargs")

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.nn.Sigmoid": torch.sigmoid,
    "torch.nn.Softmax": partial(torch.softmax, dim=-1),
    "torch.nn.Identity": torch.clone,
}


@dataclass(frozen=True)
class Step:
    """One module of a pipeline.

    Attributes:
        kind: the name of its class, one of sentence-transformers'.
        path: its folder, relative to the pipeline's.
        config: what its file says.
        where: the file's place, for messages.
        live: the module itself, where the pipeline is in memory.
    """

    kind: str
    path: str
    config: dict[str, Any]
    where: str
    live: nn.Module | None = None


@dataclass(frozen=True)
class Pipeline:
    """The modules in order, and what the whole says of itself.

    Attributes:
        folder: where it lies; a name in messages where it is in memory.
        settings: of config_sentence_transformers.json.
        side_files: the texts of its files where it is in memory, by their path in a folder.
    """

    folder: Path
    steps: tuple[Step, ...]
    settings: dict[str, Any]
    side_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def kinds(self) -> list[str]:
        """The modules' classes."""
        return [step.kind for step in self.steps]

    @property
    def transformer(self) -> Step:
        """The first module."""
        return self.steps[0]

    @property
    def pooling(self) -> Step | None:
        """The module that makes one vector of a text's rows, if there is one."""
        return next((step for step in self.steps if step.kind == "Pooling"), None)

    @property
    def interacts(self) -> bool:
        """Whether a text has many vectors, and texts are compared token by token."""
        return bool(self.settings.get("model_type") == "MultiVectorEncoder")

    @property
    def pools(self) -> bool:
        """Whether a text has one vector."""
        return self.pooling is not None or self.transformer.kind in (STATIC, BAG)


def read_pipeline(folder: Path, tower: str | None = None) -> Pipeline | None:
    """The pipeline of a folder; None where it has no modules.json, without which nothing else of it is read.

    Args:
        tower: of a Router; None takes the one that it names as its default.

    Raises:
        LoadError: a file that cannot be read, a module or a key that is not known; a tower where there is no Router.
    """
    if not (folder / MODULES).is_file():
        require_router(tower, [], str(folder))
        return None
    listed = read_json(folder / MODULES)
    if not listed:
        raise LoadError(f"{folder}/{MODULES} lists no module; known are {KNOWN}.")
    for entry in listed:
        require_known(entry, f"{folder}/{MODULES}", ENTRY)
    if out := [entry["path"] for entry in listed if not inside(folder, entry.get("path") or ".")]:
        raise LoadError(f"{folder}/{MODULES} names {', '.join(map(repr, out))}, outside its folder.")
    named = [(str(entry["type"]), str(entry.get("path", ""))) for entry in listed]
    named = [one for kind, path in named for one in routed(folder, kind, path, tower)]
    require_router(tower, [str(entry["type"]) for entry in listed], f"{folder}/{MODULES}")
    kinds = _known_kinds([kind for kind, _ in named], f"{folder}/{MODULES}")
    steps = [_read_step(folder, kind, path) for kind, (_, path) in zip(kinds, named, strict=True)]
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    return _checked(Pipeline(folder, tuple(steps), settings))


def _read_step(folder: Path, kind: str, path: str) -> Step:
    files = [folder / path / name for name in FILES.get(kind, ("config.json",))]
    if kind in CONFIGURED:
        return Step(kind, path, read_json(files[0]), str(files[0]))
    for file in files:
        if file.is_file() and (config := read_json(file)):
            return Step(kind, path, config, str(file))
    return Step(kind, path, {}, str(files[0]))


def held_pipeline(model: nn.Module, tower: str | None = None) -> Pipeline:
    """The pipeline of an object in memory: nothing is written, and every module is the object's own.

    Args:
        tower: as of `read_pipeline`.

    Raises:
        LoadError: a module that says nothing of itself, or is not known.
    """
    name = f"a {model.__class__.__name__} module"
    require_router(tower, [_class(one) for one in model.children()], name)
    held = [one for child in model.children() for one in held_tower(child, tower, name)]
    kinds = _known_kinds([_class(one) for one in held], name)
    if silent := [kind for kind, one in zip(kinds, held, strict=True) if not hasattr(one, "get_config_dict")]:
        raise LoadError(
            f"{name} holds a {silent[0]} of another version of sentence-transformers, which says nothing of itself. "
            "Save it to a folder, and give that."
        )
    steps = []
    for place, (kind, one) in enumerate(zip(kinds, held, strict=True)):
        config: dict[str, Any] = one.get_config_dict()  # type: ignore[operator]
        steps.append(Step(kind, f"{place}_{kind}" if place else "", config, f"{name}'s {kind}", one))
    settings = {key: getattr(model, key, None) for key in (*APPLIED, "keep_in_fp32_modules")}
    if settings["activation_fn"] is not None:
        settings["activation_fn"] = _name_activation(settings["activation_fn"], name)
    return _checked(Pipeline(Path(name), tuple(steps), settings, _side_files(steps, settings)))


def _class(module: nn.Module | None) -> str:
    return f"{module.__class__.__module__}.{module.__class__.__name__}"


def _name_activation(function: Any, where: str) -> str:
    """The name of what a cross-encoder scores by: told by what it computes, since its class does not say how."""
    logits = 3 * torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # a softmax that names no dimension
        found = function(logits)
    for name, known in ACTIVATIONS.items():
        if isinstance(found, Tensor) and found.shape == logits.shape and torch.allclose(found, known(logits)):
            return name
    raise LoadError(
        f"{where} scores by {function}, which computes none of {', '.join(ACTIVATIONS)}. Set its activation_fn to one "
        "of these, and apply your own to the scores."
    )


def _side_files(steps: list[Step], settings: dict[str, Any]) -> dict[str, str]:
    types = [_class(step.live) for step in steps]
    listed = [
        {"idx": i, "name": str(i), "path": step.path, "type": kind}
        for i, (step, kind) in enumerate(zip(steps, types, strict=True))
    ]
    said = {MODULES: listed, SETTINGS: {key: value for key, value in settings.items() if value}}
    files = {f"{step.path}/config.json" if step.path else TRANSFORMER_FILES[0]: step.config for step in steps}
    return {name: json.dumps(content, indent=2) for name, content in (said | files).items()}


def _known_kinds(types: list[str], where: str) -> list[str]:
    """The class names, if all are known. A class of the same name in anybody's own module is another one."""
    kinds = [name.rsplit(".", 1)[-1] for name in types]
    known = [
        name.startswith("sentence_transformers.") and kind in KNOWN.split(", ")
        for name, kind in zip(types, kinds, strict=True)
    ]
    if unknown := [name for name, is_known in zip(types, known, strict=True) if not is_known]:
        raise LoadError(f"{where} names {', '.join(unknown)}; known are sentence-transformers' {KNOWN}.")
    return kinds


def _checked(pipeline: Pipeline) -> Pipeline:
    where, kinds = f"{pipeline.folder}/{MODULES}", pipeline.kinds
    settings = {key: value for key, value in pipeline.settings.items() if value != []}
    require_known(settings, f"{pipeline.folder}/{SETTINGS}", APPLIED, IDLE)
    served = ("SentenceTransformer", "CrossEncoder", "SparseEncoder", "MultiVectorEncoder")
    if (made := settings.get("model_type") or served[0]) not in served:
        raise LoadError(
            f"{pipeline.folder}/{SETTINGS} is of a {made} (model_type), which is not served yet; "
            f"{', '.join(served)} are."
        )
    first, *after = kinds
    pools = kinds.count("Pooling") <= (first not in MAKING)
    if first not in FIRST or not pools or not set(after) <= set(AFTER):
        raise LoadError(
            f"{where} lists {', '.join(kinds)}; known is one of {', '.join(FIRST)}, then others, one "
            f"Pooling among them behind a {TRANSFORMER}."
        )
    return pipeline
