"""The kernels of recurrences over packed rows: under Triton's interpreter against the definitions in float64."""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace import graphs, sample
from headrace.ops import stateful
from tests.backends.kernels.test_attention import run_interpreted
from tests.headrace.ops.test_stateful import KINDS
from tests.recurrences import difference, draw, widened

FILLING = 3  # tokens of no sequence at the end: a bucket is rarely full
SHORT = (1, 2, 0, 5)
# Around the ends of a chunk of 16, many short ones, one that is long.
CHUNKS = ((1, 2, 15, 16, 17, 0), (1,) * 9, (50,), (0, 0), ())
WIDTH, HEADS, GROUPS = 24, 4, 2
HALF, FULL = torch.bfloat16, torch.float32


def scan(tokens: int, dtype: torch.dtype) -> tuple[Any, ...]:
    x, dt, z = draw(0, *[(1, 40, tokens)] * 3, dtype=dtype)
    b, c = draw(1, *[(1, 5, tokens)] * 2, dtype=dtype)
    a, d, bias = draw(2, (40, 5), (40,), (40,), dtype=FULL)
    return x, dt, -a.exp(), b, c, d, z, bias, True


def chunk(tokens: int, dtype: torch.dtype) -> tuple[Any, ...]:
    x, b, c = draw(0, (1, tokens, HEADS, WIDTH), *[(1, tokens, GROUPS, 20)] * 2, dtype=dtype)
    (dt,) = draw(1, (1, tokens, HEADS), dtype=dtype)
    a, d, bias = draw(2, (HEADS,), (HEADS, WIDTH), (HEADS,), dtype=FULL)
    return x, dt, -a.exp(), b, c, d, bias, True, 0.1, 2.0


def delta(tokens: int, dtype: torch.dtype, *, channels: bool = False) -> tuple[Any, ...]:
    """Keys that are alike make a triangular system whose powers grow."""
    heads = HEADS if channels else GROUPS
    q, k = draw(0, *[(1, tokens, heads, 20)] * 2)
    v, beta = draw(1, (1, tokens, HEADS, WIDTH), (1, tokens, HEADS))
    (g,) = draw(2, (1, tokens, HEADS, 20) if channels else (1, tokens, HEADS), dtype=FULL)
    k[:, 3:40] = k[:, 3:4]
    return q.to(dtype), k.to(dtype), v.to(dtype), -0.1 * g.exp(), beta.sigmoid().to(dtype), True


def linear(tokens: int, dtype: torch.dtype) -> tuple[Any, ...]:
    x, decay = draw(0, *[(1, tokens, 70)] * 2, dtype=dtype)
    return x, decay.sigmoid()


def wkv(tokens: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Keys so far apart that a plain exponential would overflow."""
    decay, first = draw(0, (70,), (70,), dtype=FULL)
    k, v = draw(1, *[(1, tokens, 70)] * 2, dtype=dtype)
    return decay, first, 50 * k, v


def memory(tokens: int, dtype: torch.dtype) -> tuple[Any, ...]:
    q, k, v = draw(0, *[(1, 3, tokens, 5)] * 2, (1, 3, tokens, 7), dtype=dtype)
    i, f = draw(1, *[(1, 3, tokens)] * 2, dtype=dtype)
    return q, k, v, i, 2 * f, 1e-6


OPERANDS: dict[str, Any] = {
    "causal_conv1d": lambda tokens, dtype: draw(0, (1, 70, tokens), (70, 4), (70,), dtype=dtype),
    "token_shift": lambda tokens, dtype: draw(0, (1, tokens, 70), dtype=dtype),
    "selective_scan": scan,
    "chunk_scan": chunk,
    "gated_delta_rule": delta,
    "linear_recurrence": linear,
    "wkv": wkv,
    "mlstm": memory,
}
# Tokens of a chunk: of one block of the triangular system, of two and of four. Of the scan those that are launched.
BLOCKS = {
    "chunk_scan": ([16, 16, 4, 1], [32, 64, 4, 3]),
    "gated_delta_rule": ([16, 16, 4, 1], [32, 32, 4, 1], [64, 16, 4, 1]),
}


def offsets(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def launched(name: str, given: tuple[Any, ...], cu_seqlens: Tensor, blocks: list[int], silu: bool = False) -> Tensor:
    """What our kernel makes of it, by the launch of the operator that Inductor sees."""
    from headrace.backends.kernels.attention import tiles
    from headrace.backends.kernels.compile import launches
    from headrace.backends.kernels.recurrent.convolution import ROWS
    from headrace.backends.kernels.use_kernels import RECURRENT_TRITON

    target = RECURRENT_TRITON[KINDS[name].varlen]
    launcher = launches.LAUNCHERS[target][1]
    if name in ("causal_conv1d", "token_shift"):
        tokens = given[0].shape[KINDS[name].answer]
        made = tiles.spread(cu_seqlens, tokens, ROWS)
        return launcher(*given, made, silu) if name == "causal_conv1d" else launcher(*given, made)
    if name == "gated_delta_rule":
        return launcher(*given, cu_seqlens, tiles.spread(cu_seqlens, given[0].shape[1], blocks[0]), blocks)
    return launcher(*given, cu_seqlens, *([blocks] if name in BLOCKS else []))


def check(name: str, lengths: tuple[int, ...], dtype: torch.dtype, blocks: list[int], given: Any = None) -> None:
    """As near to float64 as the definition in the dtype, or as products of that dtype are."""
    tokens, kind = sum(lengths) + FILLING, KINDS[name]
    given = given or OPERANDS[name](tokens, dtype)
    cu_seqlens = offsets(lengths)
    defined = kind.varlen(*given, cu_seqlens)
    found = launched(name, given, cu_seqlens, blocks)
    assert (found.dtype, found.shape, found.stride()) == (defined.dtype, defined.shape, defined.stride())
    assert not found.narrow(kind.answer, sum(lengths), FILLING).any(), "rows of no sequence are zeros"
    exact = kind.varlen(*widened(given), cu_seqlens)
    if not exact.any():  # a shift of single tokens, or no token at all
        assert not found.any()
    else:
        allowed = 2 * difference(defined, exact) + (4 * torch.finfo(dtype).eps if name in BLOCKS else 1e-6)
        assert difference(found, exact) <= allowed, (name, lengths, dtype, blocks, difference(found, exact), allowed)


def interpreted(*names: str) -> None:
    """The kernels of some recurrences; called in a process whose environment has TRITON_INTERPRET."""
    from tests.backends.kernels.test_attention import patch_interpreter
    from tests.backends.kernels.test_use_kernels import Interpreted

    patch_interpreter()
    torch.library.wrap_triton = Interpreted
    for name in names:
        check_all(name)


def check_all(name: str) -> None:
    """Every kernel of one recurrence, around the ends of its chunks and in half precision."""
    for blocks in BLOCKS.get(name, ([],)):
        check(name, CHUNKS[0] if blocks else SHORT, FULL, blocks)
    for lengths in CHUNKS[1:]:
        check(name, lengths, FULL, blocks)
    check(name, SHORT, HALF, blocks)
    if name == "gated_delta_rule":
        given = delta(sum(SHORT) + FILLING, FULL, channels=True)
        check(name, SHORT, FULL, blocks, given)
    if name == "causal_conv1d":
        x, weight, _ = given = OPERANDS[name](sum(SHORT) + FILLING, HALF)
        plain = launched(name, (x, weight, None), offsets(SHORT), [])
        activated = launched(name, (x, weight, None), offsets(SHORT), [], silu=True)
        torch.testing.assert_close(activated, torch.nn.functional.silu(plain))


def interpreted_program(name: str) -> None:
    """A packed program by our kernels answers as by the definitions; called as `interpreted` is."""
    from headrace.backends.kernels.pipeline import with_kernels
    from headrace.backends.kernels.use_kernels import RECURRENT_TRITON
    from tests.backends.kernels.test_attention import patch_interpreter
    from tests.backends.kernels.test_use_kernels import Interpreted, packed

    patch_interpreter()
    torch.library.wrap_triton = Interpreted
    program = packed(name)
    lowered = with_kernels(program, "")
    targets = [node.target for node in lowered.graph.nodes]
    assert sum(target in RECURRENT_TRITON.values() for target in targets) == len(program.nodes.recurrent) > 0
    assert not stateful.VARLEN.keys() & set(targets)
    inputs = sample.row(program, (5, 17, 3, 1, 40))
    (wanted,), _ = graphs.run(program.graph, inputs)
    (found,), _ = graphs.run(lowered, inputs)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
@pytest.mark.slow(reason="other programs: bamba's, of two of the kernels, is interpreted by default")
@pytest.mark.parametrize("name", ["mamba", "qwen3-next", "lfm2", "rwkv"])
def test_a_program_under_the_interpreter(name: str) -> None:
    run_interpreted(f"from tests.backends.kernels.test_recurrent import *; interpreted_program({name!r})")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
def test_under_the_interpreter() -> None:
    """Each kernel, then a model's program by two of them."""
    run_interpreted(
        "from tests.backends.kernels.test_recurrent import *; interpreted(*OPERANDS); interpreted_program('bamba')"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [FULL, HALF], ids=str)
@pytest.mark.parametrize("name", OPERANDS)
def test_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    lengths = (1, 2, 63, 64, 65, 0, 300)
    given, cu_seqlens = OPERANDS[name](sum(lengths) + FILLING, dtype), offsets(lengths)
    exact = KINDS[name].varlen(*widened(given), cu_seqlens)
    own = difference(KINDS[name].varlen(*given, cu_seqlens), exact)
    moved = [x.cuda() if isinstance(x, Tensor) else x for x in given]
    for blocks in BLOCKS.get(name, ([],)):
        found = launched(name, tuple(moved), cu_seqlens.cuda(), blocks).cpu()
        allowed = 2 * own + (4 * torch.finfo(dtype).eps if name in BLOCKS else 2e-6)
        assert difference(found, exact) <= allowed, (blocks, difference(found, exact), allowed)


def test_every_recurrence_has_operands() -> None:
    assert {kind.name for kind in stateful.RECURRENCES.values()} == set(OPERANDS)
