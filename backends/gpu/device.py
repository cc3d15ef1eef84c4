"""Graphs on a device: torch's current one, which the target has set; no device is named anywhere else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from headrace import graphs

HOST, DEVICE = torch.device("cpu"), torch.device("cuda")
# Programs of one model share their weights, wherever they lie.
MOVED: dict[torch.device, Callable[[Tensor], Tensor]] = {
    device: graphs.Derived(partial(Tensor.to, device=device)) for device in (HOST, DEVICE)
}


def current() -> torch.device:
    """The device that computes, by its number."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else DEVICE


def on_device(exported: ExportedProgram) -> ExportedProgram:
    """A copy of the graph and its weights on the current device."""
    return _moved(exported, DEVICE)


def on_host(exported: ExportedProgram) -> ExportedProgram:
    """A copy on the host: torch reads a saved graph onto the very device that it was saved from."""
    return _moved(exported, HOST)


def _moved(exported: ExportedProgram, device: torch.device) -> ExportedProgram:
    def elsewhere(graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.target is torch.ops.aten._assert_tensor_metadata.default:
                graph.erase_node(node)  # it names the device that the trace ran on
            else:  # torch's own pass sees a device that is a keyword, and no other
                node.args = tuple(device if isinstance(arg, torch.device) else arg for arg in node.args)

    made = graphs.rewrite(exported, elsewhere)
    weights = {name: weight for name, weight in made.state_dict.items() if isinstance(weight, torch.nn.Parameter)}
    held = {name: MOVED[device](weight) for name, weight in weights.items()}
    # Before, so that torch's own pass copies none of them; and again after, since it wraps what it leaves in place.
    made.state_dict.update(held)
    moved = move_to_device_pass(made, device)
    moved.state_dict.update(held)
    return moved
