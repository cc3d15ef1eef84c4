"""Attention over packed rows in a host's compiled code answers as its definition, of every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace import graphs
from headrace.backends.inductor.compile import HOST
from headrace.backends.inductor.host.varlen import use_host_varlen
from headrace.backends.inductor.memory import compose
from headrace.backends.inductor.packages import compile_module
from headrace.backends.inductor.runner import Runner
from headrace.ir import PoolKind
from headrace.ops.attention import pool_rows
from headrace.ops.packed import ATTENTION_VARLEN, POOL_VARLEN

HEADS, GROUPS, WIDTH, VALUES, FILLING = 4, 2, 24, 40, 3
CASES = {"short": (1, 2, 0, 5), "long": (90, 33), "tiles": (32, 64, 31)}
# The kind, the window, the cap of scores, and the kind of the bias. One compiled graph holds all.
FORMS: tuple[tuple[str, list[int], float, str], ...] = (
    ("bidirectional", [-1, -1], 0.0, "none"),
    ("bidirectional", [6, 6], 0.0, "none"),
    ("bidirectional", [40, 2], 3.0, "relative"),
    ("causal", [-1, 0], 0.0, "alibi"),
    ("causal", [5, 0], 0.0, "none"),
    ("chunked", [7, 0], 0.0, "none"),
)
BIASES = {"alibi": torch.tensor([0.5, 0.25, 0.1, 0.0]), "relative": torch.linspace(-1, 1, HEADS * 9).view(HEADS, 9)}


class Attention(nn.Module):
    """Every form, without and with sinks."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, sinks: Tensor, *biases: Tensor) -> list[Any]:
        added = dict(zip(BIASES, biases, strict=True))
        made = []
        for own in (None, sinks):
            for kind, window, cap, bias in FORMS:
                args = (q, k, v, cu_seqlens, own, added.get(bias), 0.3, kind, window, cap, bias, 128)
                made.append(ATTENTION_VARLEN(*args))
        return made


def drawn(counts: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(counts))
    rows = sum(counts) + FILLING
    wide = torch.randn(rows, HEADS * WIDTH + GROUPS * (WIDTH + VALUES), generator=generator).to(dtype)
    # As parts of one product, whose rows lie further apart than they are wide.
    q, k, v = wide.split([HEADS * WIDTH, GROUPS * WIDTH, GROUPS * VALUES], 1)
    parts = [x.unflatten(1, (heads, -1)) for x, heads in ((q, HEADS), (k, GROUPS), (v, GROUPS))]
    sinks = torch.randn(HEADS, generator=generator).to(dtype)
    return [*parts, torch.tensor([0, *counts]).cumsum(0).int(), sinks, *BIASES.values()]


def exported(dtype: torch.dtype) -> Any:
    rows, ends = torch.export.Dim("rows", min=2), torch.export.Dim("ends", min=3)
    axes = ({0: rows}, {0: rows}, {0: rows}, {0: ends}, None, (None, None))
    return torch.export.export(Attention(), tuple(drawn(CASES["short"], dtype)), dynamic_shapes=axes)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def run(request: Any) -> tuple[torch.dtype, Callable[..., Any]]:
    module = graphs.flat_module(graphs.rewrite(exported(request.param), use_host_varlen))
    code, weights = compile_module(module, tuple(drawn(CASES["short"], request.param)), {}, "attention")
    return request.param, Runner(code.files(), compose(weights))


@pytest.mark.parametrize("case", CASES)
def test_it_answers_as_the_definition(case: str, run: tuple[torch.dtype, Callable[..., Any]]) -> None:
    dtype, code = run
    given = drawn(CASES[case], dtype)
    wide = [x.double() if x.is_floating_point() else x for x in given]
    bound = 1e-5 if dtype is torch.float32 else 1.5e-2
    for one, other in zip(code(given), Attention()(*wide), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=bound, atol=bound)


@pytest.mark.parametrize("changed", ["nothing", "q"])
def test_what_it_does_not_take_is_left_to_the_definition(changed: str) -> None:
    graph = torch.fx.Graph()
    given = [graph.placeholder(name) for name in ("q", "k", "v", "cu_seqlens")]
    for node in given:
        node.meta["val"] = torch.empty(1, 1, 1, dtype=torch.bfloat16 if node.name == changed else torch.float32)
    form = (None, None, 1.0, "causal", [-1, 0], 0.0, "none", 128)
    node = graph.call_function(ATTENTION_VARLEN, (*given, *form))
    use_host_varlen(graph)
    assert (node.target is ATTENTION_VARLEN) == (changed != "nothing")


class Pools(nn.Module):
    """Every way to pool, as compiled code makes it."""

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> list[Tensor]:
        return [HOST[POOL_VARLEN](hidden, cu_seqlens, kind.value) for kind in PoolKind]


def test_pools_of_a_row_answer_as_those_of_each_sequence() -> None:
    counts, generator = (3, 1, 9), torch.Generator().manual_seed(0)
    hidden = torch.randn((1, sum(counts) + FILLING, 20), generator=generator)
    given = hidden, torch.tensor([0, *counts]).cumsum(0).int()
    rows, ends = torch.export.Dim("rows", min=2), torch.export.Dim("ends", min=3)
    made = torch.export.export(Pools(), given, dynamic_shapes=({1: rows}, {0: ends}))
    code, weights = compile_module(graphs.flat_module(made), given, {}, "pools")
    got = Runner(code.files(), compose(weights))(given)
    for kind, one in zip(PoolKind, got, strict=True):
        each = [pool_rows(part, torch.ones(part.shape[:2]), kind.value) for part in hidden.split([*counts, FILLING], 1)]
        torch.testing.assert_close(one, torch.cat(each[:-1]))
