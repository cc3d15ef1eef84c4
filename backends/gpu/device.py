"""Graphs on a device: torch's current one, which the target has set; no device is named anywhere else."""

from __future__ import annotations

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from headrace import graphs

HOST, DEVICE = torch.device("cpu"), torch.device("cuda")


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

    return move_to_device_pass(graphs.rewrite(exported, elsewhere), device)
