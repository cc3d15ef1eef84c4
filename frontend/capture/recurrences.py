"""Transformers' recurrent functions, implemented by the IR's operators.

Modelling files keep convolutions along the sequence, scans and delta rules in module-level functions, since kernels
stand in for them. Their plain forms loop over tokens or chunks, which an export freezes to one length. While
`recurrences` is active, the functions are ours wherever a class of the model looks them up.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from headrace.ops import linear_recurrence, recurrent  # noqa: F401 - registers the operators

Replaced = Callable[..., Any]
# What asks for a state or brings one. We neither keep nor take any: such a call is left to the function itself.
STATEFUL = frozenset(
    {"initial_state", "initial_states", "output_final_state", "return_final_states", "return_last_state",
     "seq_idx", "cu_seqlens", "state", "return_state", "recurrent_states", "c_initial"}
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


def _wkv(time_decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor, **_: Any) -> tuple[Tensor, None]:
    return torch.ops.headrace.wkv(time_decay, time_first, key, value), None


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
    "rwkv_linear_attention": _wkv,
}


def _linear_unit(_: nn.Module, hidden_states: Tensor, recurrent_gate: Tensor, reset: Tensor, **__: Any) -> Any:
    """RG-LRU's scan; at a reset, a text's first token, nothing is carried over."""
    return torch.ops.headrace.linear_recurrence(hidden_states, recurrent_gate * ~reset), None


def _matrix_memory(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, igate: Tensor, fgate: Tensor, **_: Any
) -> tuple[Tensor, None]:
    epsilon: Any = module.config
    return torch.ops.headrace.mlstm(query, key, value, igate, fgate, float(epsilon.eps)), None


def _lightning(
    module: Any, hidden_states: Tensor, position_embeddings: Any, attention_mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    """Lightning attention (arXiv 2401.04658): a state-space duality of constant decay. Its loop has no function."""
    rows = module.act_fn(module.qkv_proj(hidden_states))
    rows = rows if attention_mask is None else (rows * attention_mask[:, :, None]).to(rows.dtype)
    q, k, v = rows.unflatten(-1, (module.num_attention_heads, -1)).chunk(3, -1)
    steps = v.new_ones(v.shape[:3])
    y = torch.ops.headrace.chunk_scan(v, steps, -module.slope_rate.flatten(), k, q, None, None, False, None, None)
    gated = torch.sigmoid(module.output_gate(hidden_states)) * module.norm(y.flatten(2).to(rows.dtype))
    return module.out_proj(gated), None


class Method(NamedTuple):
    """A recurrence that is a method: its name, and what its signature and class must name for it to be that one."""

    name: str
    parameters: frozenset[str]
    replacement: Replaced
    beside: frozenset[str] = frozenset()


METHODS = (
    Method("_rnn_scan", frozenset({"hidden_states", "recurrent_gate", "reset"}), _linear_unit),
    Method("forward", frozenset({"query", "key", "value", "igate", "fgate"}), _matrix_memory),
    Method("forward", frozenset({"attention_mask"}), _lightning, frozenset({"get_slope_rate", "decay_factors"})),
)


@contextmanager
def recurrences(model: nn.Module) -> Iterator[list[str]]:
    """Run the model's recurrences as operators of the IR until the block ends; yields the names of those called."""
    called: list[str] = []
    with ExitStack() as borrowed:
        for names in _namespaces(model):
            for name in FUNCTIONS.keys() & names.keys():
                if callable(names[name]):
                    borrowed.callback(names.__setitem__, name, names[name])
                    names[name] = _standing_in(names[name], FUNCTIONS[name], name, called)
        for kind, method in _methods(model):
            original = vars(kind)[method.name]
            borrowed.callback(setattr, kind, method.name, original)
            setattr(kind, method.name, _standing_in(original, method.replacement, method.name, called))
        yield called


def _kinds(model: nn.Module) -> set[type]:
    return {kind for module in model.modules() for kind in type(module).__mro__}


def _methods(model: nn.Module) -> list[tuple[type, Method]]:
    """The model's classes with a method that is a recurrence."""
    return [
        (kind, method)
        for kind in _kinds(model)
        for method in METHODS
        if inspect.isfunction(found := vars(kind).get(method.name))
        and method.parameters <= inspect.signature(found).parameters.keys()
        and method.beside <= vars(kind).keys()
    ]


def _namespaces(model: nn.Module) -> list[dict[str, Any]]:
    """Where the methods of the model's modules look names up, whatever the classes and files are called."""
    methods = (inspect.unwrap(m) for kind in _kinds(model) for m in vars(kind).values() if inspect.isfunction(m))
    return list({id(method.__globals__): method.__globals__ for method in methods}.values())


def _standing_in(function: Replaced, replacement: Replaced, name: str, called: list[str]) -> Replaced:
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if any(kwargs.get(key) is not None and kwargs.get(key) is not False for key in STATEFUL):
            return function(*args, **kwargs)
        called.append(name)
        return replacement(*args, **kwargs)

    return replaced
