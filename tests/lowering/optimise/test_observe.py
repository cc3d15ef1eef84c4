"""The tap pass: what a program's nodes computed comes out of it, a row a token, in any layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace import graphs
from headrace.errors import TraceError
from headrace.ir import Layout, OutputKind, Task
from headrace.ir.passes import run_passes
from headrace.lowering.optimise.observe import Tap, tappable
from headrace.lowering.pipeline import prepare
from tests.tiny import fed, token_ids


@pytest.fixture
def program(analysed: Any) -> Any:
    return prepare(analysed("bert"), Task.EMBED)


def test_every_attention_side_by_side(program: Any) -> None:
    """The interpreter's own values of the nodes, without what only the answer read."""
    tapped = run_passes(program, (Tap(),))
    assert [tap.node for tap in tapped.nodes.taps] == [spec.node for spec in program.nodes.attention]
    assert tapped.signature.outputs[0].kind is OutputKind.TAPS
    inputs = fed(tapped, token_ids(6, batch=3))
    (rows,), _ = graphs.run(tapped.graph, inputs)
    _, seen = graphs.run(program.graph, inputs, [tap.node for tap in tapped.nodes.taps])
    wanted = torch.cat([seen[tap.node].flatten(2) for tap in tapped.nodes.taps], 2)
    assert rows.shape == (3, 6, sum(tap.width for tap in tapped.nodes.taps))
    torch.testing.assert_close(rows, wanted, rtol=0, atol=0)
    assert len(tapped.graph.state_dict) < len(program.graph.state_dict)


def test_a_packed_row_has_the_rows_of_each_sequence_alone(analysed: Any) -> None:
    from headrace import sample

    padded = run_passes(prepare(analysed("bert"), Task.EMBED), (Tap(),))
    packed = run_passes(prepare(analysed("bert"), Task.EMBED, Layout.PACKED), (Tap(),))
    assert packed.form.layout is Layout.PACKED
    assert [tap.width for tap in packed.nodes.taps] == [tap.width for tap in padded.nodes.taps]
    inputs = sample.row(packed, (3, 5))
    (together,), _ = graphs.run(packed.graph, inputs)
    (alone,), _ = graphs.run(padded.graph, fed(padded, inputs["input_ids"][:, 3:]))
    torch.testing.assert_close(together[:, 3:], alone, rtol=1e-5, atol=1e-5)


def test_recurrences(analysed: Any) -> None:
    """Channels before tokens, or heads after them: a row a token all the same."""
    tapped = run_passes(prepare(analysed("mamba2"), Task.EMBED), (Tap(),))
    assert [tap.node for tap in tapped.nodes.taps] == ["causal_conv1d", "chunk_scan", "causal_conv1d_1", "chunk_scan_1"]
    (rows,), seen = graphs.run(tapped.graph, fed(tapped, token_ids(6, batch=2)), ["causal_conv1d"])
    torch.testing.assert_close(rows[..., : tapped.nodes.taps[0].width], seen["causal_conv1d"].transpose(1, 2))


def test_chosen_nodes(program: Any) -> None:
    """Any with a row of floats a token; a mask, which is of pairs of tokens, and sizes are none."""
    names = [node.name for node in program.graph.graph.nodes]
    found = tappable(program, names)
    assert set(found) < set(names)
    assert "attention" in found
    assert not {"mask", "input_ids", "output"} & set(found)
    tapped = run_passes(program, (Tap(("attention_1", "attention")),))
    assert [tap.node for tap in tapped.nodes.taps] == ["attention_1", "attention"]


def test_refusals(program: Any, analysed: Any) -> None:
    with pytest.raises(TraceError, match="mask cannot be compared token by token"):
        Tap(("mask",))(program)
    with pytest.raises(TraceError, match="reads pixel_values"):
        Tap()(prepare(analysed("vit", "AutoModel"), Task.EMBED))
    with pytest.raises(TraceError, match="no attention and no recurrence"):
        Tap()(program.with_(attention=()))
