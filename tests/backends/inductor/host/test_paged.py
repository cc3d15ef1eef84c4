"""Attention over paged caches in a host's compiled code answers as its definition, whatever lies in what is free."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace import graphs
from headrace.backends.inductor.host.paged import use_host_attention
from headrace.backends.inductor.memory import compose
from headrace.backends.inductor.packages import compile_module
from headrace.backends.inductor.runner import Runner
from headrace.ops.cached import ATTENTION_PAGED

# Of so many heads to one of keys, some at once.
SIZE, HEADS, GROUPS, WIDTH, VALUES = 4, 36, 2, 24, 8
CASES = {
    "decoding": ((1, 1, 1), (0, 9, 30)),
    "long": ((1, 2, 0, 4), (300, 90, 7, 66)),
    "prefill": ((5, 17, 2), (0, 0, 0)),
    "mixed": ((1, 6, 1, 0, 3), (13, 5, 0, 7, 21)),
    "pieces": ((70, 9), (3, 140)),
    "tiles": ((600, 5, 70, 1), (0, 900, 333, 2)),
}
# The kind, the window and the cap of scores. One compiled graph holds all.
FORMS = (("causal", [-1, 0], 0.0), ("causal", [5, 0], 0.0), ("chunked", [5, 0], 0.0), ("causal", [-1, 0], 3.0))
ROWS, POOL = ["rows"], ["pool"]
AXES = (ROWS, ROWS, ROWS, POOL, POOL, ROWS, ["sequences", "most"], ["ends"], ["sequences"])


class Attention(nn.Module):
    """Every form, without and with sinks, of keys that lie in the caches already, and of keys that are values too."""

    def forward(self, *given: Any) -> tuple[Tensor, ...]:
        *told, sinks = given
        q, k, v, k_cache, v_cache, *where = told
        made = []
        for own in (None, sinks):
            for kind, window, cap in FORMS:
                made.append(
                    ATTENTION_PAGED(q, k, v, k_cache, v_cache, *where, own, None, 0.3, kind, window, cap, "none")
                )
        again = ATTENTION_PAGED(q, None, None, k_cache, v_cache, *where, None, None, 0.3, *FORMS[0], "none")
        rows = ATTENTION_PAGED(q, k, None, k_cache, None, *where, None, None, 0.3, *FORMS[0], "none")
        first = ATTENTION_PAGED(q, None, None, k_cache, None, *where, None, None, 0.3, *FORMS[0], "none", VALUES)
        return *made, again, rows, first


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def run(request: Any) -> tuple[torch.dtype, Callable[..., Any]]:
    given = (*drawn(*CASES["mixed"], request.param), torch.rand(HEADS))
    dims = {name: torch.export.Dim(name, min=2) for name in ("rows", "pool", "sequences", "most")}
    dims["ends"] = dims["sequences"] + 1
    shapes = *({place: dims[name] for place, name in enumerate(axes)} for axes in AXES), None
    exported = torch.export.export(Attention(), given, dynamic_shapes=(shapes,))
    module = graphs.flat_module(graphs.rewrite(exported, use_host_attention).run_decompositions({}))
    code, weights = compile_module(module, given, {}, "attention")
    return request.param, Runner(code.files(), compose(weights))


def drawn(counts: tuple[int, ...], context: tuple[int, ...], dtype: torch.dtype) -> list[Any]:
    generator = torch.Generator().manual_seed(len(counts))
    wide = torch.randn(sum(counts), HEADS * WIDTH + GROUPS * (WIDTH + VALUES), generator=generator).to(dtype)
    # As parts of one product, whose rows lie further apart than they are wide.
    q, k, v = wide.split([HEADS * WIDTH, GROUPS * WIDTH, GROUPS * VALUES], 1)
    most = max(-(-(count + held) // SIZE) for count, held in zip(counts, context, strict=True))
    pool = len(counts) * most
    caches = [torch.randn(pool, SIZE, GROUPS, width, generator=generator).to(dtype) for width in (WIDTH, VALUES)]
    blocks = torch.randperm(pool, generator=generator).reshape(len(counts), most).int()
    slots = []
    for order, (count, held) in enumerate(zip(counts, context, strict=True)):
        slots += [int(blocks[order, place // SIZE]) * SIZE + place % SIZE for place in range(held, held + count)]
        for cache in caches:  # past what a sequence has lies what is no number
            whole = cache[blocks[order].long()].flatten(0, 1)
            whole[held:] = torch.nan
            cache[blocks[order].long()] = whole.unflatten(0, (most, SIZE))
    offsets = torch.tensor([0, *counts]).cumsum(0).int()
    rows = [x.unflatten(1, (heads, -1)) for x, heads in ((q, HEADS), (k, GROUPS), (v, GROUPS))]
    return [*rows, *caches, torch.tensor(slots), blocks, offsets, torch.tensor(context).int()]


@pytest.mark.parametrize("case", CASES)
def test_it_answers_as_the_definition(case: str, run: tuple[torch.dtype, Callable[..., Any]]) -> None:
    dtype, code = run
    given = [*drawn(*CASES[case], dtype), torch.rand(HEADS, generator=torch.Generator().manual_seed(0))]
    again = [x.clone() for x in given]
    exact = [x.float() if x.is_floating_point() else x for x in given]  # it sums in float32, and rounds what it returns
    wanted, got = Attention()(*exact), code(again)
    bounds = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 2**-8, "atol": 1e-4}
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one.float(), other, **bounds)
    for one, other in zip(again[3:5], exact[3:5], strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("changed", ["nothing", "bias", "q", "sinks"])
def test_what_it_does_not_take_is_left_to_the_definition(changed: str) -> None:
    graph = torch.fx.Graph()
    given = {name: graph.placeholder(name) for name in ("q", "k", "v", "k_cache", "v_cache", "told", "sinks", "bias")}
    for name, node in given.items():
        node.meta["val"] = torch.empty(1, dtype=torch.bfloat16 if name == changed else torch.float32)
    *operands, told, sinks, bias = given.values()
    own = bias if changed == "bias" else None
    node = graph.call_function(
        ATTENTION_PAGED, (*operands, *[told] * 4, sinks, own, 1.0, "causal", [-1, 0], 0.0, "none")
    )
    use_host_attention(graph)
    assert (node.target is ATTENTION_PAGED) == (changed != "nothing")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the most that a process held is told by Linux")
def test_what_came_before_takes_no_more_to_read(run: tuple[torch.dtype, Callable[..., Any]]) -> None:
    """A head's keys of the longer text are 4 MiB, and so are its values and a step's scores where they lie whole."""
    dtype, code = run
    peaks: dict[int, list[int]] = {500: [], 40_000: []}
    for held in [*peaks] * 3:
        given = [*drawn((70, 9), (held, 140), dtype), torch.rand(HEADS)]
        trim()
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        code(given)
        peaks[held].append(resident("VmHWM") - before)
    shorter, longer = map(min, peaks.values())
    assert longer < shorter + 1024


def trim() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def resident(name: str) -> int:
    """KiB."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])
