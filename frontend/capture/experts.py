"""Routed experts whose own code loops over those that tokens chose, by products of groups of rows.

Most modelling files let transformers choose how experts run, and are traced with its grouped products. The few here do
not; a loop over what was chosen fits no graph. They are known by what they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from headrace.frontend.compat.operators import grouped_linear

# Rows in the order of their experts, and where each expert's end, to the experts' answers.
Product = Callable[[Tensor, Tensor], Tensor]


def _sorted(index: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The chosen experts in order, the places of the choices, and where each expert's end."""
    experts, order = index.reshape(-1).sort()
    ends = (experts[:, None] == torch.arange(count, device=index.device)).sum(0).cumsum(0).int()
    return experts, order, ends


def _routed(rows: Tensor, index: Tensor, weights: Tensor, count: int, product: Product) -> Tensor:
    """The weighted answers of each row's experts; an expert past the last gives the row itself.

    Args:
        rows: [T, W], index: the experts that each chose [T, K], weights: theirs.
        count: how many experts there are.
    """
    experts, order, ends = _sorted(index, count)
    given = rows[order // index.shape[-1]]
    made = torch.where((experts < count)[:, None], product(given, ends), given)
    made = (made * weights.reshape(-1)[order, None]).to(rows.dtype)
    return made[order.argsort()].view(*index.shape, -1).sum(1)


def _gated(gate: Tensor, up: Tensor, down: Tensor, activation: Any, rows: Tensor, ends: Tensor) -> Tensor:
    """`down(activation(gate(rows)) * up(rows))`, each a weight [experts, out, in]."""
    hidden = activation(grouped_linear(rows, gate, ends)) * grouped_linear(rows, up, ends)
    return grouped_linear(hidden, down, ends)


def _beside_identities(module: Any, rows: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Experts beside some that leave a row as it is (LongCat-Flash, arXiv 2509.01322)."""
    count = module.num_routed_experts
    gate, up = module.gate_up_proj[:count].chunk(2, 1)
    return _routed(rows, index, weights, count, partial(_gated, gate, up, module.down_proj, module.act_fn))


def _one_below_another(module: Any, rows: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Experts whose weights lie in one matrix, one below another (DBRX)."""
    held = module.mlp
    gate, up, down = (weight.unflatten(0, (module.num_experts, -1)) for weight in (held.w1, held.v1, held.w2))
    product = partial(_gated, gate, up, down.transpose(1, 2), held.activation_fn)
    return _routed(rows.flatten(0, -2), index, weights, module.num_experts, product).view_as(rows)


def _choices(module: Any, hidden_states: Tensor) -> tuple[Tensor, ...]:
    """What a router says of rows to experts that are given them in their order (JetMoE): ends in place of sizes."""
    logits = module.layer(hidden_states).float()
    best, index = logits.topk(module.top_k, dim=1)
    _, order, ends = _sorted(index, module.num_experts)
    weights = best.softmax(1).type_as(hidden_states).flatten()
    return order, order // module.top_k, weights[order], ends, logits


def _given_in_order(module: Any, inputs: Tensor, ends: Tensor) -> Tensor:
    return grouped_linear(inputs, module.weight, ends)


# By what a module holds for it to be of that form.
FORMS: tuple[tuple[tuple[str, ...], Callable[..., Any]], ...] = (
    (("zero_expert_num", "num_routed_experts", "gate_up_proj", "down_proj", "act_fn"), _beside_identities),
    (("num_experts", "mlp.w1", "mlp.v1", "mlp.w2", "mlp.activation_fn"), _one_below_another),
    (("num_experts", "input_size", "top_k", "layer.weight"), _choices),
    (("num_experts", "input_size", "output_size", "weight"), _given_in_order),
)


@contextmanager
def grouped_experts(model: nn.Module) -> Iterator[None]:
    """Run such experts by grouped products until the block ends."""
    with ExitStack() as borrowed:
        for module in model.modules():
            for held, form in FORMS:
                if _holds(module, held):
                    vars(module)["forward"] = partial(form, module)
                    borrowed.callback(vars(module).pop, "forward")
        yield


def _holds(module: nn.Module, names: tuple[str, ...]) -> bool:
    try:
        return all(value is not None for value in attrgetter(*names)(module))
    except AttributeError:
        return False
