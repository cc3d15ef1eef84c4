"""Graphs on a device: torch's current one, which the target has set; no device is named anywhere else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from headrace import graphs
from headrace.compat.torch import pytree, stand_ins_on

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
    """As torch's move_to_device_pass does it, which makes each node's stand-in anew: seconds, for a deep model."""

    def elsewhere(graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.target is torch.ops.aten._assert_tensor_metadata.default:
                graph.erase_node(node)  # it names the device that the trace ran on
                continue
            node.args, node.kwargs = pytree.tree_map_only(torch.device, lambda _: device, (node.args, node.kwargs))
            node.meta["val"] = stand_ins_on(device, node.meta.get("val"))

    made = graphs.rewrite(exported, elsewhere)
    for name, body in list(made.graph_module.named_children()):
        if isinstance(body, fx.GraphModule):  # of a loop: the graph of the program that is copied calls it too
            setattr(made.graph_module, name, own := copy.deepcopy(body))
            for part in own.modules():
                if isinstance(part, fx.GraphModule):
                    elsewhere(part.graph)
                    part.recompile()
    held = {name: _held(value, device) for name, value in made.state_dict.items()}
    made.state_dict.update(held)
    constants = {name: _held(value, device) for name, value in made.constants.items() if isinstance(value, Tensor)}
    made.constants.update(constants)
    made.example_inputs = pytree.tree_map_only(Tensor, lambda given: given.to(device), made.example_inputs)
    return made


def _held(value: Tensor, device: torch.device) -> Tensor:
    return MOVED[device](value) if isinstance(value, torch.nn.Parameter) else value.to(device)
