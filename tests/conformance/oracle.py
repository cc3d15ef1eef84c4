"""The oracle of contract D1: the eager Hugging Face model in float32, each request alone and unpadded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
LEAST, OF_OWN = 1e-5, 4.0
UNIT, COSINE = 1e-4, 1e-5


def prompts(longest: int, vocabulary: int, seed: int = 0) -> list[list[int]]:
    """Eight requests of mixed lengths, one token and the longest allowed among them."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (5, 1, longest, 3, 17, 2, 1, 30)
    return [torch.randint(3, vocabulary, (n,), generator=generator).tolist() for n in lengths]


def token_inputs(ids: Sequence[int], dtype: Any) -> dict[str, Any]:
    """Every input given, as a batch of one: no padding, no packing."""
    return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}


def array_inputs(name: str) -> Callable[[Any, Any], dict[str, Any]]:
    """The one input of a model that reads arrays, as a batch of one."""
    return lambda values, dtype: {name: torch.from_numpy(values)[None].to(dtype)}


def answers(
    model: Any,
    requests: Sequence[Any],
    read: Callable[[Any], Any],
    dtype: Any,
    feed: Callable[[Any, Any], dict[str, Any]] = token_inputs,
) -> list[Array]:
    """`read` of the model's output for each request alone, which `feed` turns into its inputs."""
    model = copy.deepcopy(model).to(dtype)
    for config in {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values():
        config._attn_implementation = "eager"
        config._experts_implementation = "eager"
    with torch.no_grad():
        outputs = [model(**feed(request, dtype)) for request in requests]
    return [read(output)[0].double().numpy() for output in outputs]


def require_close(
    got: Sequence[Array],
    model: Any,
    requests: Sequence[Any],
    read: Callable[[Any], Any],
    feed: Callable[[Any, Any], dict[str, Any]] = token_inputs,
) -> None:
    """Raw logits and rows: within max(1e-5, 4 x the float32 oracle's own distance from float64)."""
    wanted = answers(model, requests, read, torch.float32, feed)
    exact = answers(model, requests, read, torch.float64, feed)
    for i, (mine, theirs, best) in enumerate(zip(got, wanted, exact, strict=True)):
        bound = max(LEAST, OF_OWN * float(np.abs(theirs - best).max()))
        assert mine.shape == theirs.shape, (i, mine.shape, theirs.shape)
        worst = float(np.abs(mine - theirs).max())
        assert worst <= bound, f"request {i} of {len(requests[i])} parts differs by {worst:.2e}, allowed {bound:.2e}"


def require_same_direction(got: Sequence[Array], wanted: Sequence[Array]) -> None:
    """Embeddings: 1e-4 once normalised, cosine at least 1 - 1e-5."""
    for i, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        one, other = mine / np.linalg.norm(mine), theirs / np.linalg.norm(theirs)
        assert float(np.abs(one - other).max()) <= UNIT, i
        assert float(one @ other) >= 1 - COSINE, i


def distance(one: Array, other: Array) -> float:
    """1 - cosine, in float64."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    return 1 - float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def pooled(kind: str) -> Callable[[Any], Any]:
    """A vector of an unpadded text's rows."""
    read = {"mean": lambda rows: rows.mean(1), "last": lambda rows: rows[:, -1], "cls": lambda rows: rows[:, 0]}[kind]
    return lambda output: read(hidden(output))


def hidden(output: Any) -> Any:
    """The rows that pooling reads: what a headless model returns."""
    return output.last_hidden_state


def logits(output: Any) -> Any:
    """What a head returns."""
    return output.logits
