"""Transformers' attention and mask interfaces, implemented by the IR's operators.

While `capture` is active, every attention that a model sends through the interface becomes one
`headrace::attention` node and every mask one symbolic `headrace::mask` node; its recurrent functions become nodes too.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from headrace.compat.torch import TorchDispatchMode, pytree
from headrace.frontend.capture.experts import grouped_experts
from headrace.frontend.capture.masks import read_mask
from headrace.frontend.capture.recurrences import recurrences
from headrace.frontend.eager.borrowed import borrowed
from headrace.frontend.export.silence import logs_silenced
from headrace.ir import MaskKind, Window
from headrace.ops.attention import ATTENTION as ATTENTION_OPERATOR

# A name of our own: names that hold "sdpa", "flash" or "flex_attention" set off transformers' support checks.
NAME = "headrace"


class Call(NamedTuple):
    """One attention that went through the interface, in call order."""

    module: nn.Module
    kind: MaskKind
    window: Window


class Made(NamedTuple):
    """One mask that our mask function made: what it gave to the model, the bool mask in it, and what that says."""

    given: weakref.ref[Tensor]
    mask: Tensor
    kind: MaskKind
    window: Window


@dataclass
class Capture:
    """What went through the interfaces: each attention, each recurrence, and each mask alive.

    `additive` masks are what code of a model's own adds to its scores, as transformers' eager masks are: 0 where a
    query sees a key, the dtype's lowest number elsewhere. The attention function finds the bool mask behind each.
    """

    additive: bool = False
    calls: list[Call] = field(default_factory=list)
    recurrent: list[str] = field(default_factory=list)
    masks: dict[int, Made] = field(default_factory=dict)

    def made(self, tensor: Tensor) -> Made | None:
        """What our mask function knows of this very tensor; None for any other."""
        found = self.masks.get(id(tensor))
        return found if found is not None and found.given() is tensor else None


class Readers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators past our attention function that read a mask which our mask function made."""

    def __init__(self, captured: Capture) -> None:
        """Watch the masks of one capture."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.captured, self.count = captured, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, after a look at its tensors."""
        if func is not ATTENTION_OPERATOR:
            tensors = (arg for arg in pytree.arg_tree_leaves(*args, **(kwargs or {})) if isinstance(arg, Tensor))
            self.count += any(self.captured.made(tensor) is not None for tensor in tensors)
        return func(*args, **(kwargs or {}))


# Where transformers keeps the chosen implementations, past the setters that check and warn.
ATTENTION, EXPERTS = "_attn_implementation_internal", "_experts_implementation_internal"
GROUPED = "grouped_mm"
# What makes a model keep a state between runs: a cache for its caller, or one for itself on texts past a length.
WHOLE = {"use_cache": False, "max_inference_chunksize": math.inf}

_active: list[Capture] = []


@contextmanager
def capture(model: nn.Module, additive: bool = False, grouped: bool = True) -> Iterator[Capture]:
    """Route the model's attention and recurrences through the IR's operators until the block ends.

    Torch's own attention layers take no fast path meanwhile: it is one operator whose inside is not seen.

    Args:
        additive: whether masks are made in the form that a model's own code adds to its scores.
        grouped: whether routed experts run by grouped products, also where a model prefers its loop; else as they are
            set to.
    """
    with (
        implementation(model, NAME, GROUPED if grouped else None),
        _without_fast_path(),
        grouped_experts(model) if grouped else nullcontext(),
        recurrences(model) as recurrent,
    ):
        _active.append(Capture(additive, recurrent=recurrent))
        try:
            yield _active[-1]
        finally:
            _active.pop()


@contextmanager
def _without_fast_path() -> Iterator[None]:
    mha: Any = torch.backends.mha
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)


@contextmanager
def implementation(model: nn.Module, name: str, experts: str | None = None) -> Iterator[None]:
    """Choose the attention implementation of every configuration in the model, and put back what was there.

    It is set on the configurations, not through `set_attn_implementation`: a user's model is only borrowed. With
    "eager", routed experts run eagerly too: their grouped products know no float64. No cache is kept, also where a
    wrapper's forward has no `use_cache` to say so.

    Args:
        experts: the implementation of routed experts; None leaves it, but with "eager".
    """
    experts = name if name == "eager" else experts
    chosen = {ATTENTION: name, **WHOLE} | ({EXPERTS: experts} if experts else {})
    before = [
        (config, {key: getattr(config, key) for key in chosen if hasattr(config, key)}) for config in _configs(model)
    ]
    for config, old in before:
        vars(config).update({key: chosen[key] for key in old})
    try:
        with evaluating(model):
            yield
    finally:
        for config, old in before:
            vars(config).update(old)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode until the block ends, then each module as it was: a user's model is only borrowed."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with borrowed(model), logs_silenced():
            yield
    finally:
        for module in training:
            module.training = True


def _configs(model: nn.Module) -> Iterator[Any]:
    return all_configs(config for module in model.modules() if (config := getattr(module, "config", None)) is not None)


def all_configs(roots: Iterable[Any]) -> Iterator[Any]:
    """Configurations of transformers and those within them, each once."""
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        config = todo.pop()
        if id(config) in seen or not hasattr(config, ATTENTION):
            continue
        seen.add(id(config))
        yield config
        todo += [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]


def _mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., object] | None = None,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **_: Any,
) -> Tensor:
    assert mask_function is not None
    kind, window = read_mask(mask_function, local_size)
    if kind is MaskKind.OPAQUE or isinstance(q_offset, Tensor):
        kind = MaskKind.OPAQUE
        made = sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, local_size,
            allow_is_causal_skip=False, allow_is_bidirectional_skip=False, use_vmap=use_vmap, device=device,
        )  # fmt: skip
        assert made is not None
    else:
        made = torch.ops.headrace.mask(
            attention_mask, batch_size, q_length, kv_length, q_offset, kv_offset,
            kind.value, list(window), torch.device(device),
        )  # fmt: skip
    if not _active:
        return made
    lowest = torch.finfo(dtype).min
    given = (
        torch.where(made, torch.zeros((), dtype=dtype, device=made.device), lowest) if _active[-1].additive else made
    )
    _active[-1].masks[id(given)] = Made(weakref.ref(given), made, kind, window)
    return given


def _attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    captured = _active[-1] if _active else Capture()
    if attention_mask is not None and (made := captured.made(attention_mask)) is not None:
        attention_mask, kind, window = made.mask, made.kind, made.window
    elif attention_mask is not None:
        kind, window = MaskKind.OPAQUE, Window()
        if attention_mask.dtype != torch.bool:
            # Made outside the mask interface and already additive: kept exact as a bias, left OPAQUE for typing.
            position_bias = attention_mask if position_bias is None else position_bias + attention_mask
            attention_mask = None
    else:
        # No mask reached the attention: the keyword says how SDPA would treat it, else the module does.
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", False)
        kind, window = (MaskKind.CAUSAL, Window(-1, 0)) if causal else (MaskKind.BIDIRECTIONAL, Window())
    captured.calls.append(Call(module, kind, window))
    scale = float(scaling) if scaling is not None else float(query.shape[-1]) ** -0.5
    out = torch.ops.headrace.attention(
        query, key, value, attention_mask, position_bias, s_aux, scale, kind.value, list(window), float(softcap or 0)
    )
    return out, None


AttentionInterface.register(NAME, _attention_function)
AttentionMaskInterface.register(NAME, _mask_function)
