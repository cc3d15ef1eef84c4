"""Modules of ours from what a pipeline says of its own, each with its weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headrace.errors import LoadError
from headrace.frontend.load.keys import require_known
from headrace.frontend.load.sentence_transformers.modules.chain import (
    LOGITS,
    ROWS,
    VECTOR,
    Applied,
    Convolutions,
    Dense,
    LayerMean,
    LogitScore,
    LstmLayers,
    Normalize,
    Pooled,
    SentenceModule,
    WordWeights,
)
from headrace.frontend.load.sentence_transformers.modules.pooling import SCALED, read_pools
from headrace.frontend.load.sentence_transformers.modules.sparse import AutoEncoder, Splade, TokenWeights
from headrace.frontend.load.sentence_transformers.pipeline import Step
from headrace.ir import PoolKind

NAMES = ("module_input_name", "module_output_name")
DENSE = ("in_features", "out_features", "bias", "activation_function", "use_residual", *NAMES)
CONVOLUTIONS = ("out_channels", "kernel_sizes", "stride_sizes")
RECURRENT = ("hidden_dim", "num_layers", "dropout", "bidirectional")
LAYERED = ("num_hidden_layers", "layer_start")
# The one is training's, the other says what counts where texts are compared (`interaction.py`, a folder above).
IDLE = ("Dropout", "MultiVectorMask")
# How wide a module's rows are, which its weights say too.
WIDTHS = ("embedding_dimension", "word_embedding_dimension", "in_embedding_dimension", "in_word_embedding_dimension")
TIED = {"decoder.linear.weight": "encoder.weight"}
BAGGING = ("vocab", "word_weights", "unknown_word_weight", "cumulative_term_frequency")
WEIGHING = ("vocab", "word_weights", "unknown_word_weight")


M = TypeVar("M", bound=nn.Module)


def build(steps: list[Step], known: set[str]) -> list[SentenceModule]:
    """The modules of a pipeline after its transformer, without those that find nothing to do.

    Args:
        known: the names of what there is before the first.

    Raises:
        LoadError: a module that reads what no module before it writes, or that does not do what is known of its kind.
    """
    made, known = list[SentenceModule](), set(known)
    for step in steps:
        if step.kind in IDLE or (step.kind == "Normalize" and _names(step)[0] == VECTOR not in known):
            continue  # what it would normalise is not there
        module = BUILT[step.kind](step)
        if lacking := set(module.reads) - known - set(OPTIONAL):
            raise LoadError(
                f"{step.where}: a {step.kind} over {', '.join(sorted(lacking))}, which no module before it makes; "
                f"{', '.join(sorted(known))} is there. Put it behind the module that makes it."
            )
        made, known = [*made, module], known | set(module.writes)
    return made


# What a transformer returns beside its rows, if its configuration says so.
OPTIONAL = ("all_layer_embeddings",)


def _pooling(step: Step) -> SentenceModule:
    return Pooled(read_pools(step.config, Path(step.where).parent))


def _normalize(step: Step) -> SentenceModule:
    require_known(step.config, step.where, NAMES)
    return Applied(Normalize(), *_names(step))


def _dense(step: Step) -> SentenceModule:
    config = require_known(step.config, step.where, DENSE)
    if (live := step.live) is not None:
        held: Any = copy.deepcopy(live)  # the user's is only borrowed, and ours is cast
        passes = config["in_features"] == config["out_features"]
        residual = None if not config.get("use_residual") else nn.Identity() if passes else held.residual
        return Applied(Dense(held.linear, held.activation_function, residual), *_names(step))
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = getattr(nn, name.rsplit(".", 1)[-1], None)
    if not name.startswith("torch.nn.") or activation is None:
        raise LoadError(f"{step.where}: the activation {name} is not one of torch.nn's.")
    sizes = config["in_features"], config["out_features"]
    residual = None
    if config.get("use_residual"):
        residual = nn.Identity() if sizes[0] == sizes[1] else nn.Linear(*sizes, bias=False)
    dense = Dense(nn.Linear(*sizes, bias=config.get("bias", True)), activation(), residual)
    return Applied(_loaded(dense, step), *_names(step))


def _layer_norm(step: Step) -> SentenceModule:
    config = require_known(step.config, step.where, ("dimension",))
    norm = nn.ModuleDict({"norm": nn.LayerNorm(config["dimension"])})
    return Applied(_loaded(norm, step)["norm"], VECTOR, VECTOR)


def _layer_mean(step: Step) -> SentenceModule:
    config = require_known(step.config, step.where, LAYERED, WIDTHS)
    first = config.get("layer_start", 4)
    return _loaded(LayerMean(first, config.get("num_hidden_layers", 12) + 1 - first), step)


def _convolutions(step: Step) -> SentenceModule:
    config = require_known(step.config, step.where, (*CONVOLUTIONS, *WIDTHS))
    kernels = tuple(config.get("kernel_sizes") or (1, 3, 5))
    strides = set(config.get("stride_sizes") or (1,))
    if strides != {1} or any(kernel % 2 == 0 for kernel in kernels):
        raise LoadError(
            f"{step.where}: convolutions of kernels {list(kernels)} and strides {sorted(strides)} change the number of "
            "rows, which is not served; odd kernels with strides of 1 are."
        )
    width = next(config[name] for name in WIDTHS if name in config)
    return _loaded(Convolutions(width, config.get("out_channels", 256), kernels), step)


def _lstm(step: Step) -> SentenceModule:
    config = require_known(step.config, step.where, RECURRENT, WIDTHS)
    width = next(config[name] for name in WIDTHS if name in config)
    both = bool(config.get("bidirectional", True))
    torchs = nn.LSTM(width, config["hidden_dim"], config.get("num_layers", 1), bidirectional=both, batch_first=True)
    held = _loaded(nn.ModuleDict({"encoder": torchs}), step).state_dict()

    def side_by_side(kind: str, layer: int) -> Tensor:
        return torch.stack([held[f"encoder.{kind}_l{layer}{side}"] for side in ("", "_reverse")[: 1 + both]])

    return LstmLayers(
        (side_by_side("weight_ih", layer), side_by_side("weight_hh", layer),
         side_by_side("bias_ih", layer) + side_by_side("bias_hh", layer))
        for layer in range(torchs.num_layers)
    )  # fmt: skip


def _word_weights(step: Step) -> SentenceModule:
    config = require_known(step.config, step.where, ("vocab",), WEIGHING)
    return _loaded(WordWeights(len(config["vocab"])), step)


def _logit_score(step: Step) -> SentenceModule:
    config = require_known(step.config, step.where, ("true_token_id", "false_token_id", "module_input_name"))
    if (read := config.get("module_input_name") or LOGITS) != LOGITS:
        raise LoadError(f"{step.where}: a LogitScore over {read} is not served (module_input_name); {LOGITS} is.")
    return LogitScore(config["true_token_id"], config.get("false_token_id"))


def _splade(step: Step) -> SentenceModule:
    config = require_known(
        step.config, step.where, ("pooling_strategy", "activation_function"), (*WIDTHS, "chunk_size")
    )
    pooling, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if pooling not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise LoadError(
            f"{step.where} pools by {pooling} what {activation} makes; max and sum are served, of relu and log1p_relu."
        )
    return Splade(pooling == "sum", activation == "log1p_relu")


def _auto_encoder(step: Step) -> SentenceModule:
    known = ("input_dim", "hidden_dim", "k", "normalize")
    config = require_known(step.config, step.where, known, ("k_aux", "dead_threshold"))
    sizes = config["input_dim"], config.get("hidden_dim", 512), config.get("k", 8)
    module = AutoEncoder(*sizes, bool(config.get("normalize", False)))
    # Encoder and decoder share one tensor, which a file holds by either name; what training counts comes along.
    found = {TIED.get(name, name): tensor for name, tensor in weights_of(step).items()}
    module.load_state_dict({name: found[name].clone() for name in module.state_dict() if name in found})
    return module


BUILT: dict[str, Callable[[Step], SentenceModule]] = {
    "Pooling": _pooling,
    "Normalize": _normalize,
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "WeightedLayerPooling": _layer_mean,
    "CNN": _convolutions,
    "LSTM": _lstm,
    "WordWeights": _word_weights,
    "LogitScore": _logit_score,
    "SpladePooling": _splade,
    "SparseAutoEncoder": _auto_encoder,
}


def require_weighable(made: list[SentenceModule], where: str) -> None:
    """Refuse a pooling that divides by the weights of words in a way of its own.

    Raises:
        LoadError: there is one.
    """
    kinds = {kind for module in made if isinstance(module, Pooled) for kind in module.pool.kinds}
    if any(isinstance(module, WordWeights) for module in made) and PoolKind.WEIGHTED_MEAN in kinds - set(SCALED):
        raise LoadError(f"{where} pools by {PoolKind.WEIGHTED_MEAN} what WordWeights weighs, which is not served.")


def _names(step: Step) -> tuple[str, str]:
    """What a module reads, and what it calls that then; rows are no vector."""
    read = str(step.config.get("module_input_name") or VECTOR)
    written = str(step.config.get("module_output_name") or read)
    if (read, written) in ((ROWS, VECTOR), (VECTOR, ROWS)):
        raise LoadError(f"{step.where}: a {step.kind} over {read}, into {written}, is not served ({', '.join(NAMES)}).")
    return read, written


def _loaded(module: M, step: Step) -> M:
    """The module with the step's weights, of the module in memory or of its folder."""
    module.load_state_dict({name: tensor.clone() for name, tensor in weights_of(step).items()})
    return module


def token_weights(step: Step) -> SentenceModule:
    """What a `SparseStaticEmbedding` does with the ids of a text.

    Raises:
        LoadError: its weights lie in a file of their own, or it says more than is known.
    """
    require_known(step.config, step.where, (), ("frozen",))
    return _loaded(TokenWeights(len(weights_of(step)["weight"])), step)


def bag_of_words(step: Step) -> SentenceModule:
    """What a `BoW` does with the ids of a text.

    Raises:
        LoadError: it says more than is known.
    """
    config = require_known(step.config, step.where, BAGGING)
    words, given = list(dict.fromkeys(config["vocab"])), config.get("word_weights") or {}
    usual = config.get("unknown_word_weight", 1)
    module = TokenWeights(len(words), bool(config.get("cumulative_term_frequency", True)))
    weights = [given.get(word, given.get(word.lower(), usual)) for word in words]
    module.load_state_dict({"weight": torch.tensor(weights, dtype=torch.float32)})
    return module


def weights_of(step: Step) -> Mapping[str, Tensor]:
    """The weights of a step, of the module in memory or of its folder."""
    return step.live.state_dict() if step.live is not None else read_tensors(Path(step.where).parent)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights of a module's folder.

    Raises:
        LoadError: it holds none.
    """
    if (folder / "model.safetensors").is_file():
        from safetensors.torch import load_file

        return load_file(folder / "model.safetensors")
    if not (folder / "pytorch_model.bin").is_file():
        raise LoadError(f"{folder} holds no weights (model.safetensors or pytorch_model.bin).")
    tensors: dict[str, Tensor] = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    return tensors
