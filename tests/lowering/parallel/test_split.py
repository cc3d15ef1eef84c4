"""A program in parts: all of them together answer as the whole one does, and what cannot be split is refused."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx

from headrace import graphs, sample
from headrace.compat.torch import ALL_REDUCE, WAIT
from headrace.errors import TargetError
from headrace.ir import Layout, Program, Task
from headrace.lowering.optimise.merge_linear import MergeLinear
from headrace.lowering.parallel.placement import placement
from headrace.lowering.parallel.shard import UNKNOWN, Shard
from headrace.lowering.parallel.split import SplitHeads
from headrace.lowering.pipeline import preparation, prepare

MODELS = [
    ("bert", "AutoModel"),
    ("qwen3", "AutoModel"),
    ("modernbert", "AutoModel"),
    ("gemma3", "AutoModel"),
    ("t5", "T5EncoderModel"),
    ("gpt2", "AutoModel"),
    ("albert", "AutoModel"),
]


class Rank(fx.Interpreter):
    """Runs one part; a sum waits until every rank has come to it."""

    def __init__(self, program: Program, rank: int, meeting: Barrier, board: list[Any]) -> None:
        super().__init__(program.graph.graph_module)
        self._rank, self._meeting, self._board = rank, meeting, board

    def run_node(self, n: fx.Node) -> Any:
        if n.target is WAIT:
            return self.env[n.args[0]]
        if n.target is not ALL_REDUCE:
            return super().run_node(n)
        self._board[self._rank] = self.env[n.args[0]]
        self._meeting.wait()
        found = torch.stack(self._board).sum(0)
        self._meeting.wait()
        return found


def together(parts: Sequence[Program], inputs: dict[str, Any]) -> list[Any]:
    """What each part answers, all of them run at once."""
    meeting, board, found = Barrier(len(parts), timeout=30), [None] * len(parts), [None] * len(parts)

    def run(rank: int) -> None:
        with torch.no_grad():
            bound = graphs.bindings(parts[rank].graph, inputs)
            found[rank] = Rank(parts[rank], rank, meeting, board).run(*bound)[0]

    threads = [Thread(target=run, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def batch(program: Program) -> dict[str, Any]:
    if program.form.layout is Layout.PACKED:
        return sample.row(program, [5, 1, 9])
    real = torch.ones(3, 7, dtype=torch.bool)
    real[1, 4:] = False
    return sample.batch(program, real)


CASES = [(*model, Layout.PADDED) for model in MODELS] + [(*MODELS[place], Layout.PACKED) for place in (0, 2, 4)]


@pytest.mark.parametrize(("name", "head", "layout"), CASES, ids=[f"{name}-{layout}" for name, _, layout in CASES])
def test_the_parts_answer_as_the_whole(name: str, head: str, layout: Layout, analysed: Any) -> None:
    program = analysed(name, head)
    whole = prepare(program, Task.EMBED, layout)
    parts = [prepare(program, Task.EMBED, layout, split=SplitHeads(rank, 2, "0")) for rank in range(2)]
    (wanted,), _ = graphs.run(whole.graph, batch(whole))
    for found in together(parts, batch(whole)):
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)
    sums = [node for node in parts[0].graph.graph.nodes if node.target is ALL_REDUCE]
    assert len(sums) == 2 * len(whole.nodes.attention), "one for each attention and each feed-forward"
    assert [spec.q_heads * 2 for spec in parts[0].nodes.attention] == [one.q_heads for one in whole.nodes.attention]


def test_each_part_holds_its_share_of_the_weights(analysed: Any) -> None:
    """Twice there are norms, tables that tokens are looked up in, and buffers."""
    program = analysed("qwen3", "AutoModel")
    whole = prepare(program, Task.EMBED).graph.state_dict
    part = prepare(program, Task.EMBED, split=SplitHeads(1, 2, "0")).graph.state_dict
    kept = {name for name in part if name in whole}
    assert all(any(what in name for what in ("norm", "embed", "inv_freq")) for name in kept)
    split = sum(weight.numel() for name, weight in part.items() if name not in kept)
    assert 2 * split == sum(weight.numel() for name, weight in whole.items() if name not in kept)


def test_any_number_of_devices(analysed: Any) -> None:
    program = analysed("bert", "AutoModel")
    parts = [prepare(program, Task.EMBED, split=SplitHeads(rank, 4, "0")) for rank in range(4)]
    whole = prepare(program, Task.EMBED)
    (wanted,), _ = graphs.run(whole.graph, batch(whole))
    for found in together(parts, batch(whole)):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "head", "ranks", "why"),
    [
        ("bert", "AutoModel", 3, r"attention has 4 heads of keys and values, which do not divide by 3"),
        ("qwen3", "AutoModel", 4, r"attention has 2 heads of keys and values, which do not divide by 4"),
        ("mamba", "AutoModel", 2, r"causal_conv1d computes causal_conv1d, a recurrence"),
        ("mixtral", "AutoModel", 2, r"would have all of its weights on each device"),
    ],
    ids=["odd heads", "few heads of keys", "a recurrence", "experts"],
)
def test_what_cannot_be_split_is_refused(name: str, head: str, ranks: int, why: str, analysed: Any) -> None:
    program = analysed(name, head)
    with pytest.raises(TargetError, match=rf"cannot be split.*{why}.*Pass parallel=.data."):
        prepare(program, Task.EMBED, split=SplitHeads(0, ranks, "0"))


def test_a_feed_forward_of_odd_width_is_named(analysed: Any) -> None:
    program = analysed("bert", "AutoModel", intermediate_size=63)
    with pytest.raises(TargetError, match="reads rows of 63 numbers, which do not divide by 2"):
        prepare(program, Task.EMBED, split=SplitHeads(0, 2, "0"))


def test_it_stands_before_layers_are_merged() -> None:
    split = SplitHeads(0, 2, "0")
    *_, last, merged = preparation(Task.EMBED, Layout.PACKED, split=split)
    assert last is split
    assert isinstance(merged, MergeLinear)
    assert preparation(Task.EMBED, split=split)[-1] is split


def test_what_is_known_of_some_meets_what_is_known_of_others() -> None:
    known, other = Shard(1, (0, UNKNOWN, 1)), Shard(1, (UNKNOWN, 0, 1))
    assert known.unified(other) == Shard(1, (0, 0, 1))
    assert known.unified(Shard(1, (1, 0, 1))) is None
    assert known.unified(Shard(0, (0, 0, 1))) is None


def test_heads_go_with_the_keys_that_they_read(analysed: Any) -> None:
    program = prepare(analysed("qwen3", "AutoModel"), Task.EMBED)
    found = placement(program, 2)
    owners = {node.name: shard.owners for node, shard in found.shards.items() if "attention" in node.name}
    assert owners["attention"] == (0, 0, 1, 1)
