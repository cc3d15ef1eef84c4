"""Attention over packed sequences: the operator's CPU definition, and the Triton kernel against float64.

The kernel's test bodies run on a GPU, and on the CPU under Triton's interpreter, in a process of its own.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.backends.kernels import tuning
from headrace.backends.kernels.attention import tiles
from headrace.ir import BiasKind as Bias
from headrace.ir import MaskKind, Window
from headrace.ops import attention
from headrace.ops.packed import ATTENTION_VARLEN, attention_varlen, distance_bias

ROOT = Path(__file__).parents[3]
BOTH, CAUSAL = "bidirectional", "causal"
RAGGED = (1, 150, 5, 64, 0, 33, 1, 257)
SHORT = (1, 19, 0, 34, 1)
FILLING = 3  # tokens of no sequence at the end: a bucket is rarely full


class Case(NamedTuple):
    """One attention to try."""

    heads: int = 4
    kv_heads: int = 4
    dim: int = 64
    v_dim: int = 64
    kind: str = BOTH
    window: Window = Window()
    softcap: float = 0.0
    sinks: bool = False
    bias: Bias = Bias.NONE


CASES = {
    "bidirectional": Case(),
    "causal": Case(kind=CAUSAL),
    "window both sides": Case(window=Window(20, 7)),
    "window left": Case(window=Window(40, -1)),
    "window right": Case(window=Window(-1, 9)),
    "window to itself": Case(window=Window(0, 0)),
    "right 0 is causal": Case(window=Window(-1, 0)),
    "causal window": Case(kind=CAUSAL, window=Window(30, -1)),
    "chunked": Case(kind=MaskKind.CHUNKED, window=Window(29, 0)),
    "grouped": Case(heads=4, kv_heads=2, dim=128, v_dim=128, kind=CAUSAL),
    "one key head": Case(heads=4, kv_heads=1),
    "three a group": Case(heads=6, kv_heads=2, dim=32, v_dim=32),
    "16": Case(dim=16, v_dim=16),
    "80": Case(dim=80, v_dim=80),
    "96": Case(dim=96, v_dim=96, kind=CAUSAL),
    "256": Case(heads=2, kv_heads=1, dim=256, v_dim=256),
    "values narrower": Case(dim=96, v_dim=64, kind=CAUSAL),
    "values wider": Case(dim=32, v_dim=80),
    "soft cap": Case(softcap=3.0),
    "sinks": Case(heads=4, kv_heads=2, kind=CAUSAL, window=Window(16, -1), sinks=True),
    "alibi": Case(bias=Bias.ALIBI),
    "alibi, causal": Case(kind=CAUSAL, bias=Bias.ALIBI),
    "relative": Case(bias=Bias.RELATIVE),
    "everything": Case(4, 2, 80, 48, CAUSAL, Window(50, -1), 5.0, True, Bias.RELATIVE),
}


class Inputs(NamedTuple):
    """Tensors of a case; `q`, `k`, `v` are views of one fused projection where their head sizes agree."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens: Tensor
    sinks: Tensor | None
    bias: Tensor | None


def inputs(case: Case, lengths: tuple[int, ...], dtype: torch.dtype, device: str, filling: int = FILLING) -> Inputs:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    tokens = sum(lengths) + filling
    widths = (case.heads * case.dim, case.kv_heads * case.dim, case.kv_heads * case.v_dim)
    fused = (draw(tokens, sum(widths)) * 1.5).to(device, dtype)
    q, k, v = fused.split(widths, 1)
    q, k, v = q.unflatten(1, (-1, case.dim)), k.unflatten(1, (-1, case.dim)), v.unflatten(1, (-1, case.v_dim))
    cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    sinks = draw(case.heads).to(device, dtype) if case.sinks else None
    bias = {Bias.NONE: None, Bias.ALIBI: draw(case.heads).abs() / 8, Bias.RELATIVE: draw(case.heads, 41)}[case.bias]
    return Inputs(q, k, v, cu_seqlens, sinks, None if bias is None else bias.to(device))


def arguments(case: Case, given: Inputs) -> tuple[Any, ...]:
    """What the operator is called with."""
    return (*given, case.dim**-0.5, case.kind, list(case.window), case.softcap, str(case.bias), 64)


def direct(case: Case, given: Inputs, dtype: torch.dtype) -> Tensor:
    """Each sequence alone, everything in `dtype`."""
    q, k, v = (x.to(dtype) for x in given[:3])
    sinks, bias = (x if x is None else x.to(dtype) for x in given[4:])
    out = torch.zeros(q.shape[0], case.heads, case.v_dim, dtype=dtype, device=q.device)
    for begin, end in itertools.pairwise(given.cu_seqlens.tolist()):
        if end == begin:
            continue
        qs, ks, vs = (x[begin:end].transpose(0, 1)[None] for x in (q, k, v))
        added = (
            None if bias is None else distance_bias(bias, case.bias, *[torch.arange(end - begin, device=q.device)] * 2)
        )
        seen = attention.materialise_mask(None, 1, end - begin, end - begin, 0, 0, case.kind, case.window, q.device)
        scores = attention.attention_scores(qs, ks, added, case.dim**-0.5, case.softcap).masked_fill(~seen, -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(1, -1, end - begin, 1)], -1)
        weights = torch.softmax(scores, -1)[..., : end - begin]
        out[begin:end] = (weights @ vs.repeat_interleave(case.heads // case.kv_heads, 1)).transpose(1, 2)[0]
    return out


def rmse(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).square().mean().sqrt())


def assert_close(case: Case, given: Inputs, found: Tensor) -> None:
    """Within twice the error of plain attention: float32 arithmetic, rounded to the dtype (SDPA's math backend)."""
    exact = direct(case, given, torch.float64)
    own = rmse(direct(case, given, torch.float32).to(given.q.dtype), exact)
    assert found.dtype == given.v.dtype
    assert torch.isfinite(found).all()
    assert rmse(found, exact) <= 2 * own + 1e-8, f"{rmse(found, exact):.2e} against {own:.2e}"


def by_kernel(
    case: Case, given: Inputs, blocks: tuning.Blocks | None = None, split: bool | None = None, length: int = 64
) -> Tensor:
    """What the kernel makes of a case, by the launches of the operators that Inductor sees.

    Args:
        blocks: the tuning; otherwise the table's for sequences of `length`.
        split: whether it has a loop of its own for keys that need no mask; otherwise as the tuning says.
    """
    from headrace.backends.kernels.attention import op as kernel

    form = kernel.Form(case.dim**-0.5, case.kind, case.window, case.softcap, case.bias)
    tuned = blocks or kernel.tuning_for(given.q, given.v, length, form)
    tuned = tuned if split is None else tuned._replace(split=split)
    made = kernel.listed(given.cu_seqlens, given.q.shape[0], kernel.tile_rows(given.q, given.k, tuned))
    return kernel.attended(*given[:3], made, tuned, form, given.sinks, given.bias, kernel.attend_tiles)


def check_kernel(
    case: Case,
    given: Inputs,
    lengths: tuple[int, ...],
    blocks: tuning.Blocks | None = None,
    ways: tuple[bool, ...] = (False, True),
) -> None:
    """The ways that the kernel takes through a case: one loop or two."""
    for split in ways:
        found = by_kernel(case, given, blocks, split)
        assert_close(case, given, found)
        assert not found[sum(lengths) :].any(), "rows of no sequence are zeros"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_cpu_operator(name: str, dtype: torch.dtype) -> None:
    given = inputs(CASES[name], SHORT, dtype, "cpu")
    found = attention_varlen(*arguments(CASES[name], given))
    exact = direct(CASES[name], given, torch.float64)
    # It rounds the scores and the weights too, as eager models do.
    assert rmse(found, exact) < {torch.float32: 1e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    assert not found[sum(SHORT) :].any()


def test_exports_with_dynamic_tokens() -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
            return torch.ops.headrace.attention_varlen(
                q, k, v, cu_seqlens, None, None, 0.125, BOTH, [-1, -1], 0.0, "none", 64
            )

    given = inputs(CASES["bidirectional"], SHORT, torch.float32, "cpu")
    tokens, count = torch.export.Dim("tokens", min=2), torch.export.Dim("count", min=2)
    shapes = ({0: tokens}, {0: tokens}, {0: tokens}, {0: count})
    exported = torch.export.export(Model(), tuple(given[:4]), dynamic_shapes=shapes).run_decompositions({})
    assert [n.target for n in exported.graph.nodes].count(ATTENTION_VARLEN) == 1
    other = inputs(CASES["bidirectional"], (3, 60), torch.float32, "cpu")
    torch.testing.assert_close(exported.module()(*other[:4]), Model()(*other[:4]))


def test_operator_is_sound() -> None:
    torch.library.opcheck(
        attention_varlen, arguments(CASES["sinks"], inputs(CASES["sinks"], SHORT, torch.float32, "cpu"))
    )


@pytest.mark.parametrize("lengths", [RAGGED, SHORT, (16,) * 9, (64, 64), (1,), (), (0, 0)], ids=str)
def test_tiles_cover_every_row_once(lengths: tuple[int, ...]) -> None:
    cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    tokens, rows = sum(lengths) + FILLING, 32
    made = tiles.spread(cu_seqlens, tokens, rows)
    sequence = {row: (b, e) for b, e in itertools.pairwise(cu_seqlens.tolist()) for row in range(b, e)}
    covered: list[int] = []
    for row_begin, row_end, key_begin, key_end in made.tolist():
        assert row_end - row_begin <= rows
        covered += range(row_begin, row_end)
        for row in range(row_begin, row_end):
            if row >= sum(lengths):
                assert key_begin == key_end
            else:
                assert (key_begin, key_end) == sequence[row]
    assert sorted(covered) == list(range(tokens))


@pytest.mark.parametrize("family", ["", "sm80", "sm90", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_problem_has_a_tuning(family: str, dtype: torch.dtype) -> None:
    for dim, length in itertools.product((16, 64, 80, 128, 256), (1, 100, 512, 1 << 20)):
        blocks = tuning.choose(family, dtype, dim, length)
        width = max(16, 1 << (dim - 1).bit_length()) * dtype.itemsize
        local = (2 * blocks.stages * blocks.n + (blocks.m if family.startswith("sm") else 0)) * width
        assert local <= (227 if family == "sm90" else 64) * 1024


def test_relative_bias_is_t5s() -> None:
    """Its buckets as a table of distances: past the largest distance all share one."""
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = modeling.T5Config(num_heads=4, d_model=64, d_kv=16, relative_attention_max_distance=20)
    attention = modeling.T5Attention(config, has_relative_attention_bias=True)
    with torch.no_grad():
        buckets = attention._relative_position_bucket(torch.arange(-20, 21), True, 32, 20)
        table = attention.relative_attention_bias(buckets).T
        expected = attention.compute_bias(50, 50)
    torch.testing.assert_close(distance_bias(table, Bias.RELATIVE, *[torch.arange(50)] * 2), expected)


def check_listing(device: str) -> None:
    """The device's list of tiles is the one that plain torch makes."""
    from headrace.backends.kernels.attention.op import listed

    for lengths, filling in itertools.product((RAGGED, SHORT, (16,) * 300, (1,), (0, 0), (700, 0, 3)), (0, 3, 200)):
        cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
        expected = tiles.spread(cu_seqlens, sum(lengths) + filling, 32)
        found = listed(cu_seqlens, sum(lengths) + filling, 32)
        real = expected[:, 0] < expected[:, 1]
        assert torch.equal(found[real], expected[real])
        assert not (found[~real, 0] < found[~real, 1]).any()


@functools.cache
def patch_interpreter() -> None:
    """Mend three faults of Triton's interpreter, of 3.6 to 3.9 at least.

    NumPy 2.4 no longer takes int() of an array of one element. A product of bfloat16 matrices multiplies the bits that
    stand for them as if they were integers: they become float32, which holds each of them exactly. And float32 is cut
    off where it becomes bfloat16, and not rounded to the nearest as every GPU does it.
    """
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    language: Any = importlib.import_module("triton.language")
    builder = interpreter.InterpreterBuilder
    patch, dot, cast = interpreter._patch_lang_tensor, builder.create_dot, builder.cast_impl

    def patched(tensor: Any, *rest: Any) -> Any:
        made = patch(tensor, *rest)
        tensor.__index__ = lambda self: int(self.handle.data.item())
        return made

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != language.bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), language.float32)

    def rounded(self: Any, source: Any, wanted: Any) -> Any:
        if source.dtype.scalar != language.float32 or wanted.scalar != language.bfloat16:
            return cast(self, source, wanted)
        nearest = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16().view(torch.int16)
        return interpreter.TensorHandle(nearest.numpy().view(np.uint16), language.bfloat16)

    interpreter._patch_lang_tensor = patched
    builder.create_dot = lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)
    builder.cast_impl = rounded


def interpreted(halves: tuple[bool, ...] = (True,), whole: bool = False) -> None:
    """The kernel on the CPU; called in a process whose environment has TRITON_INTERPRET.

    Args:
        halves: the ways that float16 and bfloat16 take. Two loops run all that one does, and float32 takes both.
        whole: every case in both of these dtypes. Otherwise in one, by turns: they take the same instructions.
    """
    patch_interpreter()
    check_listing("cpu")
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    for (place, (name, case)), dtype in itertools.product(enumerate(CASES.items()), dtypes):
        if not whole and dtype is dtypes[place % 2]:
            continue
        few = case._replace(heads=2, kv_heads=2) if case.kv_heads == case.heads else case
        ways = (False, True) if dtype == torch.float32 else halves
        try:
            check_kernel(few, inputs(few, SHORT, dtype, "cpu"), SHORT, tuning.Blocks(32, 16, 4, 1), ways)
        except AssertionError as error:
            raise AssertionError(f"{name}, {dtype}: {error}") from error


DEFECTS = {
    "always causal": ("if RIGHT >= 0:", "if RIGHT >= -1:"),
    "window off by one": ("rows - LEFT)", "rows - LEFT + 1)"),
    "padding read as keys": ("keys[None, :] <= last[:, None]", "keys[None, :] <= last[:, None] + 1"),
    "scores scaled twice": ("scores * unit - higher", "scores * unit * SCALE - higher"),
    "the sum of the weights lost": (
        "total = total * shrink + tl.sum(weights, 1)",
        "total = total + tl.sum(weights, 1)",
    ),
}


def seeded() -> None:
    """The kernel with each defect must not pass; called as `interpreted` is."""
    from headrace.backends.kernels.attention import op as kernel
    from tests.gate.seeded import mutated

    patch_interpreter()
    sound, blocks = kernel.attend_tiles, tuning.Blocks(32, 16, 4, 1)
    for place, (name, (old, new)) in enumerate(DEFECTS.items()):
        case = CASES["window both sides" if name.startswith("window") else "bidirectional"]
        case = case._replace(heads=2, kv_heads=2)
        given = inputs(case, SHORT, torch.float32, "cpu")
        kernel.attend_tiles = sound
        check_kernel(case, given, SHORT, blocks, (False,))
        with tempfile.TemporaryDirectory() as folder:
            kernel.attend_tiles = mutated(Path(folder), f"defect_{place}", old, new).attend_tiles
            try:
                check_kernel(case, given, SHORT, blocks, (False,))
            except AssertionError as error:
                print(f"{name}: {error}")
            else:
                raise RuntimeError(f"{name}: not noticed")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
def test_kernel_under_the_interpreter() -> None:
    """Every mask, bias and head size in two dtypes against float64, lengths of 1 and 0 among them; and no defect."""
    run_interpreted("interpreted()\nseeded()")


@pytest.mark.slow(reason="each case in float16 and bfloat16: by default in one, by two loops, which hold all of one")
@pytest.mark.parametrize("way", [False, True])
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
def test_both_halves_under_the_interpreter(way: bool) -> None:
    run_interpreted(f"interpreted(halves=({way},), whole=True)")


def run_interpreted(code: str) -> None:
    """Run something in a process in which Triton interprets, with the names of this module."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", f"from tests.backends.kernels.test_attention import *\n{code}"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernel_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    given = inputs(CASES[name], RAGGED, dtype, "cuda")
    assert_close(CASES[name], given, by_kernel(CASES[name], given))
    check_kernel(CASES[name], given, RAGGED)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [64, 512, 1 << 20])
@pytest.mark.parametrize("name", ["bidirectional", "causal", "grouped", "window both sides"])
def test_every_tuning_on_a_gpu(name: str, length: int) -> None:
    lengths = (1, 700, 64, 2049)
    given = inputs(CASES[name], lengths, torch.bfloat16, "cuda")
    assert_close(CASES[name], given, by_kernel(CASES[name], given, length=length))


@pytest.mark.gpu
def test_tiles_are_listed_on_a_gpu() -> None:
    check_listing("cuda")


@pytest.mark.gpu
def test_other_sequences_do_not_leak() -> None:
    case = CASES["window both sides"]
    given = inputs(case, RAGGED, torch.bfloat16, "cuda")
    alone = by_kernel(case, given)
    begin, end = given.cu_seqlens[1:3].tolist()
    for tensor in given[:3]:
        tensor[begin:end] = torch.nan
    beside = by_kernel(case, given)
    assert torch.equal(alone[:begin], beside[:begin])
    assert torch.equal(alone[end:], beside[end:])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["bidirectional", "grouped", "everything"])
def test_compiles_with_inductor(name: str) -> None:
    """One graph for any number of tokens and sequences, the kernel inside it."""
    from headrace.backends.kernels.attention import op as kernel

    case = CASES[name]
    form = kernel.Form(case.dim**-0.5, case.kind, case.window, case.softcap, case.bias)
    first = inputs(case, RAGGED, torch.bfloat16, "cuda")
    blocks = kernel.tuning_for(first.q, first.v, 64, form)
    rows = kernel.tile_rows(first.q, first.k, blocks)

    def run(given: Inputs) -> Tensor:
        work = torch.ops.headrace.varlen_tiles(given.cu_seqlens, given.q.shape[0], rows)
        return torch.ops.headrace.attention_varlen_triton(
            *given[:3], work, blocks.numbers, *given[4:], form.scale, form.kind, list(form.window),
            form.softcap, str(form.bias_kind),
        )  # fmt: skip

    # Dynamo keeps its graphs by the code of `run`, which the other cases share.
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, dynamic=True)
    # The tuning is a constant of a graph: a launch with as many warps as a variable says cannot be written.
    with torch._dynamo.config.patch(error_on_recompile=True, specialize_int=True):
        for lengths in (RAGGED, SHORT, (400, 2, 90)):
            given = inputs(case, lengths, torch.bfloat16, "cuda")
            torch.testing.assert_close(compiled(given), by_kernel(case, given, blocks))
