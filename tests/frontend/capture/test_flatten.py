"""Respelling a few operators gives the very graph that decomposing it anew gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from headrace import graphs
from headrace.frontend.capture.flatten import flatten
from headrace.frontend.export import exporter
from headrace.frontend.load import checkpoint
from headrace.frontend.trace import trace
from tests.tiny import build


class Rolled(torch.nn.Module):
    """Every operator that is respelt, and one that changes nothing."""

    def forward(self, x: Any) -> Any:
        first, second = x.reshape(x.shape[0], -1).chunk(2, -1)
        dropped = torch.nn.functional.dropout(first.to(torch.float64), 0.1, training=False)
        return dropped.to("cpu", torch.float16) + second.to(torch.float32).to(dtype=torch.float32)


class Written(torch.nn.Module):
    """Writes into a result, twice, and lays it out anew."""

    def forward(self, x: Any) -> Any:
        y = x * 2
        z = y.sum(-1, keepdim=True)
        y.add_(1, alpha=2).div_(z)
        return y.transpose(0, 1).reshape(4, x.shape[0] * 6)


class WrittenInput(torch.nn.Module):
    """Writes into what a caller holds."""

    def forward(self, x: Any) -> Any:
        return x.add_(1) * 2


class WrittenView(torch.nn.Module):
    """Writes into a part of what is read then."""

    def forward(self, x: Any) -> Any:
        y = x * 2
        y[:, 0].add_(1)
        return y


class WrittenBase(torch.nn.Module):
    """Writes into what a view was taken of, which is read then."""

    def forward(self, x: Any) -> Any:
        y = x * 2
        part = y[:, 0]
        y.add_(1)
        return part + y[:, 1]


class WrittenNarrow(torch.nn.Module):
    """Rounds to the dtype of what it writes into, where the sum by itself is of a wider one."""

    def forward(self, x: Any) -> Any:
        y = x.to(torch.float16)
        return y.add_(x) * 2


def is_copy(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.clone.default and not node.kwargs


def size_of(program: Any) -> int:
    return sum(not is_copy(node) for node in program.graph.nodes)


def computed(program: Any) -> Any:
    """What the graph returns as nested operators, whatever its nodes are called.

    A copy counts as what it copies: torch 2.14 leaves an idle dropout out, of which torch before made one.
    """

    def told(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return known[value]
        return tuple(map(told, value)) if isinstance(value, (list, tuple)) else repr(value)

    known: dict[fx.Node, Any] = {}
    for node in program.graph.nodes:
        if is_copy(node):
            known[node] = known[node.args[0]]
            continue
        given = (told(node.args), tuple(sorted((name, told(value)) for name, value in node.kwargs.items())))
        shown = node.meta.get("val")
        value = (tuple(map(str, shown.shape)), shown.dtype) if hasattr(shown, "dtype") else None
        known[node] = node.name if node.op == "placeholder" else hash((str(node.target), given, str(value)))
    return known[program.graph.output_node()]


@pytest.mark.parametrize("module", [Rolled(), Written(), WrittenInput(), WrittenView(), WrittenBase(), WrittenNarrow()])
def test_the_same_graph(module: Any) -> None:
    sizes = {"x": {0: torch.export.Dim("rows", min=2)}}
    exported = torch.export.export(module, (torch.randn(3, 4, 6),), dynamic_shapes=sizes, strict=False)
    flat = flatten(exported)
    assert computed(flat) == computed(exported.run_decompositions({}))
    assert flat.verifiers == exported.run_decompositions({}).verifiers
    x = torch.randn(5, 4, 6)
    got, _ = graphs.run(flat, {"x": x.clone()})
    torch.testing.assert_close(got[-1], module(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("module", "respelt"),
    [(Written(), True), (WrittenInput(), False), (WrittenView(), False), (WrittenBase(), False)],
)
def test_who_is_traced_again(module: Any, respelt: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who look again at what was written into, by another way than what the write returned."""
    exported = torch.export.export(module, (torch.randn(3, 4, 6),), strict=False)
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", lambda *_: None)
    assert (flatten(exported) is not None) is respelt


@pytest.mark.parametrize("name", ["modernbert", "llama", "gpt2"])
def test_models_are_respelt(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a second trace, and to the same graph."""
    held: list[Any] = []

    def kept(exported: Any) -> Any:
        monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
        flat = flatten(exported)
        monkeypatch.undo()
        assert size_of(flat) <= size_of(exported.run_decompositions({}))
        held.append((computed(flat), computed(exported.run_decompositions({}))))
        return flat

    monkeypatch.setattr(exporter, "flatten", kept)
    trace(checkpoint.load(build(name, "AutoModel"), dtype=torch.float32))
    ((mine, theirs),) = held
    assert mine == theirs
