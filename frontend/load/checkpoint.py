"""A user's model to a `Checkpoint`: from a local folder, a hub id or an `nn.Module` with its config."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from headrace.errors import LoadError
from headrace.frontend.eager.devices import on_host
from headrace.frontend.load.adapters import require_no_bare_adapter
from headrace.frontend.load.config import readable
from headrace.frontend.load.decoding import config_text
from headrace.frontend.load.flag_embedding import FILES as TOKEN_LAYERS
from headrace.frontend.load.flag_embedding import token_interaction, unweighed, with_token_scores
from headrace.frontend.load.keys import require_known
from headrace.frontend.load.processor import read_processor_config
from headrace.frontend.load.remote_code import warn_of_code
from headrace.frontend.load.sentence_transformers.interaction import read_interaction
from headrace.frontend.load.sentence_transformers.modules.chain import LAYERS
from headrace.frontend.load.sentence_transformers.modules.static import read_static, static_rules, static_tokenizer
from headrace.frontend.load.sentence_transformers.modules.words import read_words, says_words
from headrace.frontend.load.sentence_transformers.pipeline import (
    CLIP,
    MODULES,
    TABLES,
    Pipeline,
    held_pipeline,
    read_pipeline,
)
from headrace.frontend.load.sentence_transformers.router import require_router
from headrace.frontend.load.sentence_transformers.sentence_modules import (
    SentenceModules,
    read_sentence_modules,
    read_similarity,
)
from headrace.frontend.load.sentence_transformers.text_rules import config_options, read_text_rules, tokenizer_options
from headrace.frontend.load.side_files import GENERATION, SIDE_FILES, linked_out, side_files
from headrace.frontend.load.text_side import TextSide
from headrace.frontend.load.weights import WEIGHTS, read_weights
from headrace.ir import Interaction, Similarity, TextRules
from headrace.utils.home import expanded
from headrace.utils.inside import inside

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model")
# What a tokenizer's configuration may name a file by.
VOCABULARIES = frozenset({"vocab", "merges", "vocab_file", "merges_file", "spm_file", "tokenizer_file"})
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class Checkpoint:
    """A model in memory, in the dtype that will run, with what its folder says beside it.

    Attributes:
        module: the eager model; weights stay memory-mapped where the file's dtype is the running one.
        config: the module's transformers configuration, None for a module without one.
        tokenizer: a transformers tokenizer, None where none was found or given.
        sentence: the sentence-transformers modules of the folder, if it is one.
        missing: parameters of the module that the weights lacked.
        side_files: what a deployment folder holds beside weights and tokenizer, by its path there: config.json, and
            what a sentence-transformers folder says of pooling and text. None for a file that is a link out of the
            folder, and so not the folder's to hand on; the tokenizer's such files are named too.
        processor: what the folder says of its image processor or feature extractor, empty where it has none.
        text: what it says of text.
        similarity: what it compares vectors by.
        activation: what a cross-encoder scores by, None where nothing names it beside the config.
        interaction: which vectors score where texts are compared token by token.
        unweighed: token ids whose weights are no part of a sparse vector.
    """

    name: str
    module: nn.Module
    config: Any
    tokenizer: Any
    sentence: SentenceModules | None
    missing: tuple[str, ...]
    side_files: Mapping[str, str | None] = field(default_factory=dict)
    processor: dict[str, Any] = field(default_factory=dict)
    text: TextRules = field(default_factory=TextRules)
    similarity: Similarity = Similarity.COSINE
    activation: str | None = None
    interaction: Interaction | None = None
    unweighed: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Said:
    """What a pipeline says beside its transformer; `Checkpoint` has the same names."""

    sentence: SentenceModules | None
    text: TextRules = field(default_factory=TextRules)
    similarity: Similarity = Similarity.COSINE
    activation: str | None = None

    def on(self, made: Checkpoint) -> Checkpoint:
        """A checkpoint with what the pipeline says."""
        return replace(
            made, sentence=self.sentence, text=self.text, similarity=self.similarity, activation=self.activation
        )


def load(
    source: str | Path | nn.Module,
    *,
    dtype: torch.dtype,
    tokenizer: Any = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    tower: str | None = None,
) -> Checkpoint:
    """Load a model in `dtype`, ready to trace.

    Args:
        source: a folder, a hub id or a module. A module is used as it is, copied to the host where it lies elsewhere,
            and must already be in `dtype`.
        tokenizer: a tokenizer, or the folder of one; None looks in the model's folder.
        tower: of a Router, None takes the one that it names.

    Raises:
        LoadError: no folder, no weights, unreadable files, code that must be trusted first, no way to the hub.
    """
    if isinstance(source, nn.Module):
        given = read_tokenizer(tokenizer, trust_remote_code)
        held = _from_pipeline if _is_pipeline(source) else _from_module
        made = held(source, dtype, given, tower)
        return replace(made, side_files={**made.side_files, **linked_out(tokenizer, tokenizer)})
    folder = find_folder(source, revision, trust_remote_code)
    if (folder / "headrace.json").is_file() and not any(next(folder.rglob(kind), None) for kind in WEIGHTS):
        raise LoadError(f"{folder} is a model that was saved or exported: read it back with headrace.load.")
    return _from_folder(folder, str(source), dtype, tokenizer, tower, trust_remote_code)


def _from_folder(
    folder: Path, name: str, dtype: torch.dtype, tokenizer: Any, tower: str | None, trust_remote_code: bool
) -> Checkpoint:
    with readable(folder / MODULES):
        pipeline = read_pipeline(folder, tower)
        said = _said(pipeline)
    said = replace(said, sentence=with_token_scores(folder, said.sentence))
    weights = folder / pipeline.transformer.path if pipeline else folder
    given = read_tokenizer(tokenizer, trust_remote_code)
    if pipeline is not None and pipeline.transformer.kind in TABLES:
        module, missing = read_static(pipeline.transformer, dtype), tuple[str, ...]()
        found = given or static_tokenizer(pipeline.transformer, weights)
        found = found or _folder_tokenizer(weights, trust_remote_code, None)
        said = replace(said, text=static_rules(pipeline.transformer, found, said.text))
    else:
        module, missing = _read_transformer(weights, pipeline, said, dtype, trust_remote_code)
        found = given or _folder_tokenizer(weights, trust_remote_code, pipeline)
    _require_template(said.text, found)
    _collect_layers(module, said)
    linked = linked_out(folder, weights) if tokenizer is None else linked_out(tokenizer, tokenizer)
    made = Checkpoint(
        name, module.eval(), getattr(module, "config", None), found, said.sentence, missing,
        side_files(folder, weights) | linked, read_processor_config(weights),
        interaction=(read_interaction(pipeline, found) if pipeline else None) or token_interaction(said.sentence),
        unweighed=unweighed(said.sentence, found),
    )  # fmt: skip
    return said.on(made)


def _read_transformer(
    folder: Path, pipeline: Pipeline | None, said: _Said, dtype: torch.dtype, trust_remote_code: bool
) -> tuple[nn.Module, tuple[str, ...]]:
    """The model of a folder, and the names of its parameters that the folder lacks."""
    changes, bare = config_options(pipeline) if pipeline else {}, said.sentence is not None and said.sentence.headless
    config = _config(folder, trust_remote_code, changes)
    module, missing = read_weights(folder, config, dtype, trust_remote_code, bare=bare, changed=bool(changes))
    if pipeline is not None and pipeline.transformer.kind == CLIP:
        return TextSide(module), tuple(f"model.{name}" for name in missing)
    return module, missing


@torch.no_grad()
def _collect_layers(module: nn.Module, said: _Said) -> None:
    """Where the rows of every layer are read, let transformers hook on to the layers, which it does in a first call."""
    if said.sentence is not None and said.sentence.chain.reads(LAYERS):
        module(torch.zeros((1, 1), dtype=torch.int64))


def _said(pipeline: Pipeline | None) -> _Said:
    if pipeline is None:
        return _Said(None)
    sentence = read_sentence_modules(pipeline)
    if sentence is not None:
        sentence = replace(sentence, chain=sentence.chain.to(dtype=torch.float32))
    return _Said(sentence, read_text_rules(pipeline), read_similarity(pipeline), pipeline.settings.get("activation_fn"))


def _require_template(text: TextRules, tokenizer: Any) -> None:
    if text.chat is not None and tokenizer is not None and not getattr(tokenizer, "chat_template", None):
        raise LoadError(
            "The model's texts go through a chat template (message in modality_config), and its tokenizer has none. "
            "Add chat_template.jinja to the folder, or pass the tokenizer that has it as tokenizer=."
        )


def _is_pipeline(module: nn.Module) -> bool:
    """Whether a module is one of sentence-transformers' pipelines, which take texts."""
    return any(one.__module__.startswith("sentence_transformers.") for one in module.__class__.__mro__)


def _from_pipeline(source: nn.Module, dtype: torch.dtype, tokenizer: Any, tower: str | None) -> Checkpoint:
    """A pipeline as it is: its own modules and tokenizer, whatever it would save."""
    pipeline = held_pipeline(source, tower)
    live: Any = pipeline.transformer.live
    if pipeline.transformer.kind in TABLES:
        model = read_static(pipeline.transformer, dtype)
        found = tokenizer or static_tokenizer(pipeline.transformer, Path())
    else:
        model, found = live.auto_model, tokenizer or live.tokenizer
        model = TextSide(model) if pipeline.transformer.kind == CLIP else model
    if not isinstance(model, nn.Module):
        raise LoadError(f"The {source.__class__.__name__} runs in another backend than torch. Load it with torch.")
    said, made = _said(pipeline), _from_module(model, dtype, found)
    if pipeline.transformer.kind in TABLES:
        said = replace(said, text=static_rules(pipeline.transformer, found, said.text))
    _require_template(said.text, made.tokenizer)
    _collect_layers(made.module, said)
    beside = {**made.side_files, **pipeline.side_files}
    named = replace(made, name=str(pipeline.folder), side_files=beside, interaction=read_interaction(pipeline, found))
    return said.on(named)


def _from_module(module: nn.Module, dtype: torch.dtype, tokenizer: Any, tower: str | None = None) -> Checkpoint:
    require_router(tower, [], f"The {module.__class__.__name__}")
    module = getattr(module, "_orig_mod", module)  # what torch.compile has wrapped
    module = on_host(module)
    held = {p.dtype for p in module.parameters() if p.is_floating_point()}
    if held and dtype not in held:
        raise LoadError(
            f"The module's weights are {', '.join(sorted(map(_short, held)))}, but {_short(dtype)} was asked for. Load "
            f"it with dtype={_short(dtype)} (a cast after loading can lose what the checkpoint keeps in float32), or "
            f'pass dtype="{_short(next(iter(held)))}".'
        )
    configs = (getattr(m, "config", None) for m in module.modules())
    config = next((c for c in configs if hasattr(c, "to_diff_dict")), None)
    name = f"a {module.__class__.__name__} module"
    side = {} if config is None else {"config.json": config.to_json_string(use_diff=False)}
    if (generation := config_text(module)) is not None:
        side[GENERATION] = generation
    return Checkpoint(name, module, config, tokenizer, None, (), side)


def held_dtype(source: str | Path | nn.Module) -> torch.dtype | None:
    """The dtype that a module's weights already have; None for a folder or hub id, which is loaded in any."""
    held = (
        (p.dtype for p in source.parameters() if p.is_floating_point()) if isinstance(source, nn.Module) else iter(())
    )
    return next(held, None)


def find_folder(source: str | Path, revision: str | None, trust_remote_code: bool) -> Path:
    """The local folder of a model: itself, or a snapshot of a hub id."""
    if not isinstance(source, (str, Path)) or not str(source).strip():
        met = f"a {source.__class__.__name__} module" if isinstance(source, nn.Module) else reprlib.repr(source)
        also = "" if isinstance(source, nn.Module) else " or an nn.Module"
        raise LoadError(f"The model is {met}; here a folder, a hub id (owner/name){also} is accepted.")
    path, name = expanded(source, LoadError), str(source)
    try:
        if path.is_dir():
            return path
        if path.is_file():
            raise LoadError(f"{source} is a file. Give the folder that holds config.json and the weights.")
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise LoadError(f"{name[:200]} cannot be read: {error.strerror}. Give a folder or a hub id.") from error
    if not HUB_ID.fullmatch(name) or name.startswith("."):
        raise LoadError(f"There is no folder {name}. Give a folder that holds config.json, or a hub id (owner/name).")
    return _snapshot(name, revision, trust_remote_code)


def _snapshot(name: str, revision: str | None, trust_remote_code: bool) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    patterns = [*SIDE_FILES, *TOKEN_LAYERS, *(["*.py"] if trust_remote_code else [])]
    try:
        try:
            files = HfApi().list_repo_files(name, revision=revision)
            # The safetensors alone where there are any: .bin files beside them are the same weights again.
            kinds = [kind for kind in WEIGHTS if any(file.endswith(kind[1:]) for file in files)][:1]
        except Exception:
            kinds = list(WEIGHTS)  # offline, a cached snapshot may still be whole
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*patterns, *kinds]))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else error.__class__.__name__
        raise LoadError(
            f"There is no folder {name}, and the model hub gave no model of that name ({reason}). Check the spelling "
            "and the network, or give the folder of a downloaded model."
        ) from error


def _config(folder: Path, trust_remote_code: bool, options: dict[str, Any]) -> Any:
    """The configuration, with some values changed."""
    path = folder / "config.json"
    require_no_bare_adapter(folder)
    if not path.is_file():
        raise LoadError(f"{folder} has no config.json. Give the folder that `save_pretrained` wrote.")
    with readable(path):
        raw = json.loads(path.read_text())
        names = raw.get("architectures") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise LoadError(
                f"architectures in {path} is {reprlib.repr(names)}; a list with the name of the model's class is "
                'accepted, e.g. ["BertModel"].'
            )
        if raw.get("auto_map") and not trust_remote_code and raw.get("model_type") not in transformers.CONFIG_MAPPING:
            raise LoadError(
                f"{folder} needs its own Python code (auto_map in config.json). Read that code, then pass "
                "trust_remote_code=True to run it."
            )
        config, unused = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code, return_unused_kwargs=True, **options
        )
        require_known({key: unused[key] for key in options if key in unused}, f"config_kwargs beside {path}", ())
        return config


def read_tokenizer(given: Any, trust_remote_code: bool = False, **options: Any) -> Any:
    """A tokenizer by its folder, with some values changed; anything but a path is taken to be one already."""
    if not isinstance(given, (str, Path)):
        return given
    if not expanded(given, LoadError).is_dir() and not HUB_ID.fullmatch(str(given)):
        raise LoadError(
            f"There is no folder {given} for the tokenizer. Give the folder of one, or a hub id (owner/name)."
        )
    with readable(f"The tokenizer of {given}"):
        if says_words(Path(given).expanduser()):
            return read_words(Path(given).expanduser())
        _require_own_vocabulary(Path(given).expanduser())
        return transformers.AutoTokenizer.from_pretrained(given, trust_remote_code=trust_remote_code, **options)


def _require_own_vocabulary(folder: Path) -> None:
    """Refuse a configuration that names a vocabulary elsewhere: transformers opens some of these names as they are."""
    path = folder / "tokenizer_config.json"
    read = json.loads(path.read_text()) if path.is_file() else {}
    named = {key: value for key, value in read.items() if key in VOCABULARIES and isinstance(value, str)}
    # Older versions of transformers left places of their authors' machines there, which lead nowhere on another.
    there = {key: value for key, value in named.items() if Path(value).is_file() or (folder / value).is_file()}
    if out := [f"{key} {value}" for key, value in there.items() if not inside(folder, value)]:
        raise LoadError(
            f"{path} names {', '.join(out)}, outside its folder. Take that out; a vocabulary lies beside it."
        )


def _folder_tokenizer(folder: Path, trust_remote_code: bool, pipeline: Pipeline | None) -> Any:
    if not any(next(folder.glob(name), None) for name in TOKENIZER_FILES):
        return None
    if not trust_remote_code and (file := folder / "tokenizer_config.json").is_file():
        with readable(file):
            warn_of_code(file, json.loads(file.read_text()).get("auto_map"), ("AutoTokenizer",))
    return read_tokenizer(folder, trust_remote_code, **(tokenizer_options(pipeline) if pipeline else {}))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
