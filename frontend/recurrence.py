"""Transformers' recurrent functions, implemented by the IR's operators.

Modelling files keep convolutions along the sequence, scans and delta rules in module-level functions, since kernels
stand in for them. Their plain forms loop over tokens or chunks, which an export freezes to one length. While
`recurrences` is active, the functions are ours wherever a class of the model looks them up.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from headrace import recurrent_ops  # noqa: F401 - registers the operators

Replaced = Callable[..., Any]
# What asks for a state or brings one. We neither keep nor take any: such a call is left to the function itself.
STATEFUL = frozenset(
    {"initial_state", "initial_states", "output_final_state", "return_final_states", "return_last_state",
     "seq_idx", "cu_seqlens", "state", "return_state"}
)  # fmt: skip


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any) -> Tensor:
    rows: Tensor = torch.ops.headrace.causal_conv1d(x, weight, bias)
    return (rows if activation is None else ACT2FN[activation](rows)).to(x.dtype)


def _scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    **_: Any,
) -> Tensor:
    y: Tensor = torch.ops.headrace.selective_scan(x, dt, A, B, C, D, z, delta_bias, delta_softplus)
    return y


def _chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **_: Any,
) -> Tensor:
    # Infinity has no literal in a compiled package, where it bounds nothing.
    bounds = [None if math.isinf(limit) else float(limit) for limit in dt_limit]
    y: Tensor = torch.ops.headrace.chunk_scan(x, dt, A, B, C, D, dt_bias, dt_softplus, *bounds)
    return y if z is None else y * nn.functional.silu(z)


def _delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    return torch.ops.headrace.gated_delta_rule(query, key, value, g, beta, use_qk_l2norm_in_kernel), None


# By the name that a modelling file gives the function: its own, or the kernel's.
FUNCTIONS: dict[str, Replaced] = {
    "causal_conv1d_fn": _convolve,
    "mamba_selective_scan": _scan,
    "selective_scan_fn": _scan,
    "mamba2_chunk_scan": _chunk_scan,
    "mamba_chunk_scan_combined": _chunk_scan,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "chunk_kda": _delta_rule,
}


@contextmanager
def recurrences(model: nn.Module) -> Iterator[list[str]]:
    """Run the model's recurrent functions as operators of the IR until the block ends; yields those called."""
    called: list[str] = []
    before: list[tuple[dict[str, Any], str, Any]] = []
    for names in _namespaces(model):
        for name in FUNCTIONS.keys() & names.keys():
            if callable(names[name]):
                before.append((names, name, names[name]))
                names[name] = _standing_in(names[name], name, called)
    try:
        yield called
    finally:
        for names, name, function in before:
            names[name] = function


def _namespaces(model: nn.Module) -> list[dict[str, Any]]:
    """Where the methods of the model's modules look names up, whatever the classes and files are called."""
    methods = (
        inspect.unwrap(method)
        for kind in {kind for module in model.modules() for kind in type(module).__mro__}
        for method in vars(kind).values()
        if inspect.isfunction(method)
    )
    return list({id(method.__globals__): method.__globals__ for method in methods}.values())


def _standing_in(function: Replaced, name: str, called: list[str]) -> Replaced:
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if any(kwargs.get(key) is not None and kwargs.get(key) is not False for key in STATEFUL):
            return function(*args, **kwargs)
        called.append(name)
        return FUNCTIONS[name](*args, **kwargs)

    return replaced
