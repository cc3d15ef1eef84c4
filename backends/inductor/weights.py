"""The weights of a graph under names that any model of the same graph has for them."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

import torch
from torch import Tensor, fx

# The tensors that make a weight of the code: itself, or those of all layers, one after another in one tensor.
Parts = tuple[Tensor, ...]
# Inductor writes weights of so many numbers at most into the code.
WRITTEN = 8


def name_weights(module: fx.GraphModule, stacks: Mapping[str, Parts]) -> dict[str, Parts]:
    """Number the weights in the order in which the graph reads them; what is one tensor has one number.

    Args:
        stacks: the attributes that stand for several weights, and those.
    """
    named: dict[object, str] = {}
    weights: dict[str, Parts] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        target = str(node.target)
        held = stacks[target] if target in stacks else attrgetter(target)(module)
        if not isinstance(held, (tuple, Tensor)):  # the inside of a loop
            continue
        parts = held if isinstance(held, tuple) else (held.detach(),)
        name = named.setdefault(_identity(parts), f"weight_{len(named)}")
        weights[name], node.target = parts, name
    return weights


def _identity(parts: Parts) -> object:
    """The same for weights that are one."""
    return tuple((one.data_ptr(), one.dtype, one.shape, one.stride()) if one.numel() else id(one) for one in parts)


def layout(parts: Parts) -> tuple[torch.Size, tuple[int, ...]]:
    """The shape and the strides of a weight as the code takes it."""
    one = parts[0]
    if len(parts) > 1:
        whole = torch.empty((len(parts), *one.shape), device="meta")
    else:
        whole = one if _owns(one) else torch.empty_like(one, device="meta")
    return whole.shape, whole.stride()


def _owns(weight: Tensor) -> bool:
    return weight.untyped_storage().nbytes() == weight.nbytes


def written(parts: Parts) -> bool:
    """Whether code may depend on the very numbers of a weight."""
    return len(parts) * parts[0].numel() <= WRITTEN


def stand_in(parts: Parts) -> Tensor:
    """A tensor to compile with in place of a weight.

    It holds other numbers, no two of which are alike but by chance, since a compiler makes use of those that it sees: a
    bias of zeros is not added. Few numbers, which it writes into the code, are the weight's own.
    """
    if written(parts):
        return torch.stack(parts) if len(parts) > 1 else parts[0].clone()
    dtype, (shape, strides) = parts[0].dtype, layout(parts)
    made = torch.empty_strided(shape, strides, dtype=dtype)
    source = torch.Generator().manual_seed(0)
    if dtype.is_floating_point or dtype.is_complex:
        return made.copy_(torch.rand(shape, generator=source))
    return made.copy_(torch.randint(0, 2, shape, generator=source))
