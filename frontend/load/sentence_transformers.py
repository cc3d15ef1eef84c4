"""Sentence-transformers' modules after the transformer, as modules that are traced with it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import LoadError
from headrace.frontend.load.keys import require_known
from headrace.frontend.load.pipeline import MODULES, SETTINGS, Pipeline, Step
from headrace.frontend.load.text_rules import LABELLED, PLAIN, transformer_task
from headrace.ir import PoolKind, Similarity, Task

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
NAMES = ("module_input_name", "module_output_name")
DENSE = ("in_features", "out_features", "bias", "activation_function", "use_residual", *NAMES)
POOLING = (*POOL_FLAGS, "pooling_mode", "include_prompt", "embedding_dimension", "word_embedding_dimension")


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

    def __init__(self, linear: nn.Linear, activation: Callable[[Tensor], Tensor], residual: nn.Module | None) -> None:
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


class First(nn.Module):
    """The first numbers of a vector, for models trained so."""

    def __init__(self, dimensions: int) -> None:
        """Keep so many; all, where there are fewer."""
        super().__init__()
        self.dimensions = dimensions

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] to [..., dimensions]."""
        return x[..., : self.dimensions]


@dataclass(frozen=True)
class SentenceModules:
    """What stands in modules.json.

    Attributes:
        pools: the pooling kinds; empty where the folder has no Pooling and so yields one vector a token.
        modules: what follows the pooling (or the transformer), applied in order.
        normalize: whether the last module normalises a text's vector; that is left to the caller's `normalize`.
    """

    pools: tuple[PoolKind, ...]
    modules: nn.Sequential
    normalize: bool

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What the modules define: a vector a text where they pool; a vector a token in any case."""
        return (Task.EMBED, Task.TOKEN_EMBED) if self.pools else (Task.TOKEN_EMBED,)


def read_sentence_modules(pipeline: Pipeline) -> SentenceModules | None:
    """The modules after the transformer; None where that comes with its head, and nothing after it.

    Raises:
        LoadError: a module that does not do what is known of its kind, or one in a place where it makes no sense.
    """
    kinds, task = pipeline.kinds, transformer_task(pipeline)
    if task != PLAIN:
        if len(kinds) > 1:
            raise LoadError(f"{pipeline.folder}/{MODULES} puts {', '.join(kinds[1:])} after a transformer for {task}.")
        if task != LABELLED:
            raise LoadError(
                f"{pipeline.transformer.where} is of a transformer for {task} (transformer_task), which is not served; "
                f"{PLAIN} and {LABELLED} are."
            )
        return None
    if pipeline.settings.get("model_type") == "CrossEncoder":
        raise LoadError(f"{pipeline.folder} is a CrossEncoder that scores by {', '.join(kinds)}; {LABELLED} is served.")
    pooling, dimensions = pipeline.pooling, _dimensions(pipeline)
    after = list(pipeline.steps[2 if pooling else 1 :])
    # What normalises a text's vector is left to the caller's `normalize`, but for what is cut afterwards.
    normalize = bool(pooling) and kinds[-1] == "Normalize" and dimensions is None
    names = "sentence_embedding" if pooling else "token_embeddings"
    tail = [made for step in after if (made := _module(step, names)) is not None][: -1 if normalize else None]
    return SentenceModules(
        pools=read_pools(pooling.config, Path(pooling.where).parent) if pooling else (),
        modules=nn.Sequential(*tail, *([] if dimensions is None else [First(dimensions)])),
        normalize=normalize,
    )


def read_similarity(pipeline: Pipeline) -> Similarity:
    """What the pipeline's vectors are compared by.

    Raises:
        LoadError: a name that is none of sentence-transformers' for one vector a text.
    """
    named = pipeline.settings.get("similarity_fn_name") or Similarity.COSINE
    if named not in list(Similarity):
        raise LoadError(
            f"{pipeline.folder}/{SETTINGS} compares vectors by {named} (similarity_fn_name); {', '.join(Similarity)} "
            "are served."
        )
    return Similarity(named)


def _dimensions(pipeline: Pipeline) -> int | None:
    kept = pipeline.settings.get("truncate_dim")
    if kept is not None and (not isinstance(kept, int) or isinstance(kept, bool) or kept < 1 or not pipeline.pooling):
        raise LoadError(
            f"{pipeline.folder}/{SETTINGS} gives truncate_dim as {kept!r}; an int of 1 and above is accepted, where "
            "the modules pool."
        )
    return kept


def _module(step: Step, names: str) -> nn.Module | None:
    """A module after the pooling; None for one that finds nothing to do.

    Args:
        names: what sentence-transformers calls the rows or the vectors that have come so far.
    """
    read = step.config.get("module_input_name") or "sentence_embedding"
    written = step.config.get("module_output_name") or read
    if step.kind == "Normalize" and read == written == "sentence_embedding" != names:
        return None  # there is no such vector yet, and it leaves the rows alone
    if {read, written} != {names}:
        over = read if read == written else f"{read}, into {written},"
        raise LoadError(f"{step.where}: a {step.kind} over {over} is not served ({', '.join(NAMES)}); {names} is here.")
    if step.kind == "Normalize":
        require_known(step.config, step.where, NAMES)
        return Normalize()
    return _dense(step)


def read_pools(config: dict[str, Any], where: Path) -> tuple[PoolKind, ...]:
    """The kinds that a Pooling config names: one, a list of them, or the older booleans."""
    named = require_known(config, f"{where}/config.json", POOLING).get("pooling_mode")
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


def _dense(step: Step) -> Dense:
    config = require_known(step.config, step.where, DENSE)
    if (live := step.live) is not None:
        held: Any = copy.deepcopy(live)  # the user's is only borrowed, and ours is cast
        passes = config["in_features"] == config["out_features"]
        residual = None if not config.get("use_residual") else nn.Identity() if passes else held.residual
        return Dense(held.linear, held.activation_function, residual)
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = getattr(nn, name.rsplit(".", 1)[-1], None)
    if not name.startswith("torch.nn.") or activation is None:
        raise LoadError(f"{step.where}: the activation {name} is not one of torch.nn's.")
    sizes = config["in_features"], config["out_features"]
    residual = None
    if config.get("use_residual"):
        residual = nn.Identity() if sizes[0] == sizes[1] else nn.Linear(*sizes, bias=False)
    dense = Dense(nn.Linear(*sizes, bias=config.get("bias", True)), activation(), residual)
    dense.load_state_dict(_tensors(Path(step.where).parent))
    return dense


def _tensors(folder: Path) -> dict[str, Tensor]:
    if (folder / "model.safetensors").is_file():
        from safetensors.torch import load_file

        return load_file(folder / "model.safetensors")
    if not (folder / "pytorch_model.bin").is_file():
        raise LoadError(f"{folder} holds no weights (model.safetensors or pytorch_model.bin).")
    tensors: dict[str, Tensor] = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    return tensors
