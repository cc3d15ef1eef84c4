"""What the config says of itself: claims of causality, labels and the activation of a head."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from headrace.errors import LoadError
from headrace.ir import Activation, Claim, Head, Labels, MaskKind

# A flag's value to what it says of the mask.
CAUSALITY = {
    "is_causal": {True: MaskKind.CAUSAL, False: MaskKind.BIDIRECTIONAL},
    "use_bidirectional_attention": {True: MaskKind.BIDIRECTIONAL, False: MaskKind.CAUSAL},
}
PROVENANCE = (
    "model_type",
    "architectures",
    "transformers_version",
    "_name_or_path",
    "name_or_path",
    "dtype",
    "torch_dtype",
)


def read_claims(config: Any) -> tuple[Claim, ...]:
    """The causality flags that the config sets explicitly; a class default claims nothing."""
    if config is None:
        return ()
    explicit = config.get_text_config().to_diff_dict()
    return tuple(
        Claim(flag, explicit[flag], says[explicit[flag]])
        for flag, says in CAUSALITY.items()
        if isinstance(explicit.get(flag), bool)
    )


def read_labels(config: Any, head: Head, width: int, activation: str | None = None) -> Labels | None:
    """The labels of a sequence or token head, in the order of its outputs, and what scores them.

    The rules are transformers' text-classification pipeline's: sigmoid for one label or multi_label_classification,
    identity for regression, else softmax; a cross-encoder names an activation of its own, beside its config or in it.
    """
    if head not in (Head.SEQUENCE, Head.TOKEN):
        return None
    named = {int(key): str(value) for key, value in (getattr(config, "id2label", None) or {}).items()}
    names = _distinct([named.get(i, f"LABEL_{i}") for i in range(width)])
    if head is Head.TOKEN:
        return Labels(names, Activation.SOFTMAX, "one label a token")
    chosen = activation or _cross_encoder_activation(config)
    return Labels(names, *_activation(config, width, chosen), named=chosen is not None)


def _distinct(names: list[str]) -> tuple[str, ...]:
    """Labels that share a name are numbered, so that no score is lost under another's name."""
    return tuple(f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names))


def _activation(config: Any, width: int, named: str | None) -> tuple[Activation, str]:
    if named is not None:
        first, last = str(named).split(".", 1)[0], str(named).rsplit(".", 1)[-1].lower()
        if last not in list(Activation) or first != "torch":
            raise LoadError(f"The config names the activation {named}; known are torch's {', '.join(Activation)}.")
        return Activation(last), f"the config names {named}"
    problem = getattr(config, "problem_type", None)
    if problem == "regression":
        return Activation.IDENTITY, "problem_type is regression"
    if problem == "multi_label_classification":
        return Activation.SIGMOID, "problem_type is multi_label_classification"
    if width == 1:
        return Activation.SIGMOID, "one label"
    return Activation.SOFTMAX, "one of several labels"


def _cross_encoder_activation(config: Any) -> str | None:
    said = getattr(config, "sentence_transformers", None)
    modern = said.get("activation_fn") if isinstance(said, dict) else None
    return modern or getattr(config, "sbert_ce_default_activation_function", None)


def config_hash(config: Any) -> str:
    """A hash of what the config says, without the names that no decision reads."""
    content = config.to_dict() if config is not None else {}
    kept = {key: value for key, value in content.items() if key not in PROVENANCE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]
