"""Where a user's module lies: it is looked at in the host's memory, wherever it serves its user."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from headrace.errors import LoadError
from headrace.frontend.eager.borrowed import tensors_of

HOST = torch.device("cpu")


def on_host(module: nn.Module) -> nn.Module:
    """The module where its weights lie in the host's memory, else a copy there; the user's stays where it is.

    Raises:
        LoadError: it has weights without values, or is spread over devices.
    """
    held = (*module.named_parameters(), *module.named_buffers())
    if unread := next((name for name, one in held if one.is_meta), None):
        raise LoadError(f"The module's {unread} is on the meta device, without values. Load the weights first.")
    devices = sorted({str(parameter.device) for parameter in module.parameters()})
    if devices in ([], [str(HOST)]):
        return module
    # accelerate's hooks send inputs to the devices that they were made for.
    if len(devices) > 1 or any(hasattr(inner, "_hf_hook") for inner in module.modules()):
        raise LoadError(
            f"The module's weights are spread over devices ({', '.join(devices)}), by device_map or by hand. A module "
            "on one device is accepted: load it without device_map, or give the model's folder; the target decides "
            "where it runs."
        )
    return copied_to(module, HOST)


def copied_to(module: nn.Module, device: torch.device) -> nn.Module:
    """A copy of the module with every tensor that it holds on another device."""
    held: list[Tensor] = [*module.parameters(), *tensors_of(module)]
    moved = {id(one): _moved(one, device) for one in held}
    return copy.deepcopy(module, dict(moved))


def _moved(one: Tensor, device: torch.device) -> Tensor:
    data = one.detach().to(device)
    return nn.Parameter(data, one.requires_grad) if isinstance(one, nn.Parameter) else data
