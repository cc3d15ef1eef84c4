"""Sentence-transformers folders: what modules.json puts after the transformer, and what the folder says of text."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import LoadError
from headrace.ir import PoolKind, Task, TextRules

POOL_NAMES = {"lasttoken": PoolKind.LAST} | {kind.value: kind for kind in PoolKind if kind is not PoolKind.LAST}
# The older form of 1_Pooling/config.json: one boolean a kind.
POOL_FLAGS = {
    "pooling_mode_cls_token": PoolKind.CLS,
    "pooling_mode_max_tokens": PoolKind.MAX,
    "pooling_mode_mean_tokens": PoolKind.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": PoolKind.MEAN_SQRT_LEN,
    "pooling_mode_weightedmean_tokens": PoolKind.WEIGHTED_MEAN,
    "pooling_mode_lasttoken": PoolKind.LAST,
}
KNOWN = "Transformer, Pooling, Dense, Normalize"
PLAIN = "feature-extraction"


class Pool(nn.Module):
    """Rows [B, S, H] to one vector [B, k * H] a sequence, in float32."""

    def __init__(self, kinds: tuple[PoolKind, ...]) -> None:
        """Pool by each kind and concatenate."""
        super().__init__()
        self.kinds = kinds

    def forward(self, rows: Tensor, padding: Tensor) -> Tensor:
        """`padding` is [B, S], nonzero at real tokens."""
        pooled = [torch.ops.headrace.pool(rows.float(), padding, kind.value) for kind in self.kinds]
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)


class Dense(nn.Module):
    """A linear layer and an activation, sentence-transformers' `Dense`; `residual` is added where it has one."""

    def __init__(self, linear: nn.Linear, activation: nn.Module, residual: nn.Module | None) -> None:
        """Apply `linear`, then `activation`."""
        super().__init__()
        self.linear, self.activation, self.residual = linear, activation, residual

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        out: Tensor = self.activation(self.linear(x))
        return out if self.residual is None else out + self.residual(x)


class Normalize(nn.Module):
    """To unit length along the last dimension, where another module follows it."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] to [..., d]."""
        return nn.functional.normalize(x, p=2.0, dim=-1)


@dataclass(frozen=True)
class SentenceModules:
    """What stands in modules.json.

    Attributes:
        transformer: the transformer's folder, relative to the model's.
        pools: the pooling kinds; empty where the folder has no Pooling and so yields one vector a token.
        modules: what follows the pooling (or the transformer), applied in order.
        normalize: whether the last module normalises a text's vector; that is left to the caller's `normalize`.
    """

    transformer: str
    pools: tuple[PoolKind, ...]
    modules: nn.Sequential
    normalize: bool
    text: TextRules

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What the modules define: a vector a text where they pool; a vector a token in any case."""
        return (Task.EMBED, Task.TOKEN_EMBED) if self.pools else (Task.TOKEN_EMBED,)


def read_sentence_modules(folder: Path) -> SentenceModules | None:
    """Read modules.json and what it names; None where the folder has none, or it names a transformer with its head.

    Raises:
        LoadError: a module of another kind than those known, or one in a place where it makes no sense.
    """
    if not (folder / "modules.json").is_file():
        return None
    listed = _read(folder / "modules.json")
    if not listed:
        raise LoadError(f"{folder}/modules.json lists no module; known are {KNOWN}.")
    kinds = [str(entry["type"]).rsplit(".", 1)[-1] for entry in listed]
    # A class of the same name in anybody's own module is another one.
    known = {entry["type"] for entry in listed if str(entry["type"]).startswith("sentence_transformers.")}
    if unknown := [
        entry["type"]
        for entry, kind in zip(listed, kinds, strict=True)
        if kind not in KNOWN.split(", ") or entry["type"] not in known
    ]:
        raise LoadError(f"{folder}/modules.json names {', '.join(unknown)}; known are sentence-transformers' {KNOWN}.")
    if kinds[0] != "Transformer" or kinds.count("Pooling") > 1 or ("Pooling" in kinds and kinds[1] != "Pooling"):
        raise LoadError(
            f"{folder}/modules.json lists {', '.join(kinds)}; known is Transformer, then Pooling, then others."
        )
    if (task := _transformer(folder, listed[0].get("path", "")).get("transformer_task", PLAIN)) != PLAIN:
        if len(kinds) > 1:
            raise LoadError(f"{folder}/modules.json puts {', '.join(kinds[1:])} after a transformer for {task}.")
        return None  # a cross-encoder: its transformer is loaded with the head
    pooling = _read(folder / listed[1]["path"] / "config.json") if "Pooling" in kinds else {}
    # What normalises a text's vector is left to the caller's `normalize`; a token's vector is normalised here.
    normalize = bool(pooling) and kinds[-1] == "Normalize"
    after = list(zip(kinds, listed, strict=True))[2 if pooling else 1 : -1 if normalize else None]
    tail = [Normalize() if kind == "Normalize" else _dense(folder / entry["path"]) for kind, entry in after]
    return SentenceModules(
        transformer=listed[0].get("path", ""),
        pools=read_pools(pooling, folder) if pooling else (),
        modules=nn.Sequential(*tail),
        normalize=normalize,
        text=replace(
            _text_rules(folder, _transformer(folder, listed[0].get("path", ""))),
            pools_prompt=bool(pooling.get("include_prompt", True)),
        ),
    )


def read_pools(config: dict[str, Any], where: Path) -> tuple[PoolKind, ...]:
    """The kinds that a Pooling config names: one, a list of them, or the older booleans."""
    named = config.get("pooling_mode")
    if named is None:
        kinds = tuple(kind for flag, kind in POOL_FLAGS.items() if config.get(flag))
        if not kinds:
            raise LoadError(f"{where}: the Pooling config names no kind: {config}")
        return kinds
    return tuple(pool_kind(name) for name in ([named] if isinstance(named, str) else named))


def pool_kind(name: str) -> PoolKind:
    """A pooling kind by sentence-transformers' name, or ours.

    Raises:
        LoadError: no such kind; the message lists them.
    """
    if (kind := POOL_NAMES.get(name) or next((k for k in PoolKind if k.value == name), None)) is None:
        raise LoadError(f"There is no pooling {name!r}. Choose from {', '.join(sorted({*POOL_NAMES, *PoolKind}))}.")
    return kind


def _dense(folder: Path) -> Dense:
    config = _read(folder / "config.json")
    if {config.get("module_input_name"), config.get("module_output_name")} - {None, "sentence_embedding"}:
        raise LoadError(f"{folder}: a Dense over {config['module_input_name']} is not served; sentence_embedding is.")
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = getattr(nn, name.rsplit(".", 1)[-1], None)
    if not name.startswith("torch.nn.") or activation is None:
        raise LoadError(f"{folder}: the activation {name} is not one of torch.nn's.")
    sizes = config["in_features"], config["out_features"]
    residual: nn.Module | None = None
    if config.get("use_residual"):
        residual = nn.Identity() if sizes[0] == sizes[1] else nn.Linear(*sizes, bias=False)
    dense = Dense(nn.Linear(*sizes, bias=config.get("bias", True)), activation(), residual)
    dense.load_state_dict(_tensors(folder))
    return dense


def _tensors(folder: Path) -> dict[str, Tensor]:
    if (folder / "model.safetensors").is_file():
        from safetensors.torch import load_file

        return load_file(folder / "model.safetensors")
    if not (folder / "pytorch_model.bin").is_file():
        raise LoadError(f"{folder} holds no weights (model.safetensors or pytorch_model.bin).")
    tensors: dict[str, Tensor] = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    return tensors


def _transformer(folder: Path, path: str) -> dict[str, Any]:
    """What the folder says of its Transformer module."""
    files = [folder / path / "sentence_bert_config.json", folder / "sentence_bert_config.json"]
    config: dict[str, Any] = next((_read(file) for file in files if file.is_file()), {})
    return config


def _text_rules(folder: Path, bert: dict[str, Any]) -> TextRules:
    path = folder / "config_sentence_transformers.json"
    prompts = _read(path) if path.is_file() else {}
    longest = bert.get("max_seq_length")
    return TextRules(
        max_length=longest,
        truncates=True,
        prompts=tuple(sorted((prompts.get("prompts") or {}).items())),
        default_prompt=prompts.get("default_prompt_name"),
        lower_case=bool(bert.get("do_lower_case", False)),
        why="sentence_bert_config.json's max_seq_length" if longest else "sentence-transformers truncates",
    )


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
