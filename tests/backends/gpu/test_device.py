"""Programs moved to a device, which here is torch's meta device."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from headrace import graphs
from headrace.backends.gpu import device
from headrace.ir import Layout, Task
from headrace.lowering.pipeline import prepare

META = torch.device("meta")


@pytest.fixture(autouse=True)
def meta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device.MOVED, META, graphs.Derived(partial(Tensor.to, device=META)))


def look(exported: ExportedProgram) -> list[tuple[str, list[str], set[torch.device], str]]:
    """Of each node its sizes and strides, where they lie, and the arguments that may name a device."""
    parts = [part for part in exported.graph_module.modules() if isinstance(part, fx.GraphModule)]
    return [
        (
            node.name,
            [f"{value.shape} {value.stride()}" for value in tensors(node)],
            {value.device for value in tensors(node)},
            str((node.args, node.kwargs)),
        )
        for part in parts
        for node in part.graph.nodes
    ]


def tensors(node: fx.Node) -> list[Tensor]:
    value = node.meta.get("val")
    return [one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, Tensor)]


@pytest.mark.parametrize(
    ("name", "layout"), [("bert", Layout.PACKED), ("qwen3", Layout.PACKED), ("mamba", Layout.PADDED)]
)
def test_a_moved_program_says_the_same_of_another_device(analysed: Any, name: str, layout: Layout) -> None:
    """Strides too, where torch's own pass has each value lie by itself; so that sizes alone are held against that."""
    program = prepare(analysed(name, "AutoModel"), Task.EMBED, layout).graph
    before = look(program)
    moved = device._moved(program, META)
    assert look(program) == before
    assert [node[:2] for node in look(moved)] == [node[:2] for node in before if "_assert_tensor" not in node[0]]
    assert {one for node in look(moved) for one in node[2]} == {META}
    assert not any("device(type='cpu')" in node[3] for node in look(moved))
    assert {value.device for value in (*moved.state_dict.values(), *moved.constants.values())} == {META}
    theirs = {
        node.name: node for node in move_to_device_pass(graphs.rewrite(program, lambda _: None), META).graph.nodes
    }
    for node in moved.graph.nodes:
        assert [str(one.shape) for one in tensors(node)] == [str(one.shape) for one in tensors(theirs[node.name])]
