"""Every kernel of ours by itself: each mask, bias, head size and dtype, as the tunings of an architecture have it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from headrace.backends.gpu.architecture import Architecture
from headrace.backends.kernels import tuning
from headrace.backends.kernels.attention import op as kernel
from headrace.backends.kernels.attention import paged, tiles
from headrace.backends.kernels.attention.kernel import attend_tiles, list_tiles
from headrace.backends.kernels.attention.paged_kernel import attend_paged
from headrace.backends.kernels.compile import cross_compile, machine_code
from headrace.backends.kernels.compile.launches import LAUNCHERS, Launch, Recorder
from headrace.backends.kernels.linear_activation.kernel import activate_rows, multiply_activate
from headrace.backends.kernels.linear_activation.op import activated as activated_alone
from headrace.backends.kernels.linear_activation.op import multiplied
from headrace.backends.kernels.linear_few.kernel import multiply_few
from headrace.backends.kernels.linear_few.op import few_multiplied
from headrace.backends.kernels.linear_few.rows import FAMILIES, gathered_rows, multiplied_rows, normed_rows
from headrace.backends.kernels.linear_few.rows_kernel import gather_rows, multiply_rows, norm_rows
from headrace.backends.kernels.pooling import reduce_sequences, reduced
from headrace.backends.kernels.quantized_activation.op import round_activation, round_rows
from headrace.backends.kernels.rotary import into_cache
from headrace.backends.kernels.rotary.into_cache import rotate_into_cache
from headrace.backends.kernels.rotary.op import rotate_rows, rotated
from headrace.backends.kernels.use_kernels import RECURRENT_TRITON
from headrace.ir import PoolKind
from tests.backends.kernels import test_paged
from tests.backends.kernels.test_attention import CASES, Case, inputs
from tests.gate import rows
from tests.headrace.ops.test_stateful import KINDS

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LENGTHS = (5, 120)
FORMS = (
    "bidirectional", "causal", "window both sides", "chunked", "grouped", "80", "256", "values narrower", "soft cap",
    "sinks", "alibi", "relative", "everything",
)  # fmt: skip
# float32 by head size: its tiles are the ones that spill.
WIDE = ("bidirectional", "grouped", "256", "everything")
ATTENTIONS = (*((name, BF16) for name in FORMS), ("bidirectional", FP16), *((name, FP32) for name in WIDE))
PAGED = (
    *((name, BF16) for name in ("causal", "one key head", "window", "chunked", "relative", "everything")),
    *((name, FP32) for name in ("causal", "everything")),
    *((name, BF16) for name in test_paged.WIDE),
    ("DeepSeek's row", FP32),
    *((name, BF16) for name in ("codes", "everything in codes")),
)
# No shape of blocks that was tried keeps float32 heads of 256 in an RDNA thread's 256 registers; these spill least.
SPILLING = (
    ("gfx1", "attend_tiles 256, float32", 128),
    # Of RDNA 3; RDNA 4 converts codes by an instruction, and spills none.
    ("gfx1100", "attend_paged everything in codes, bfloat16", 64),
    # The state of a recurrence stays in registers too. Triton 3.6 spills 230 and 429 of the first two on gfx1100, where
    # 3.9 spills 28 and 120.
    ("gfx1", "scan_chunks Mamba-2, bfloat16", 240),
    ("gfx1", "scan_chunks Falcon-H1, bfloat16", 448),
    ("gfx1", "scan_chunks Mamba-2, float32", 192),
    ("gfx1", "solve_chunks Qwen3-Next, float32", 48),
    ("gfx1", "scan_delta Qwen3-Next, bfloat16", 32),
    ("gfx1", "scan_delta Qwen3-Next, float32", 144),
)


# Of a part of the gate: a kernel once, in the case that runs most of it where the cases differ by what they run.
FULLEST = {"attend_tiles": "everything", "attend_paged": "everything", "rotate_rows": "with the norm"}


def compiled(architecture: Architecture, whole: bool = True) -> Iterator[rows.Row]:
    """A row a specialisation, or without `whole` a row a kernel."""
    for launch, name, multiplies in listed(architecture, whole):
        yield _row(launch, name, architecture, multiplies)


def listed(architecture: Architecture, whole: bool = True) -> Iterator[tuple[Launch, str, str | None]]:
    """What `compiled` compiles: the launch, its name, and the dtype that it multiplies in."""
    seen = set()
    for launch, name, multiplies in _specialised(architecture):
        kernel, _, case = name.partition(" ")
        if whole or (kernel not in seen and FULLEST.get(kernel, "") in case):
            seen.add(kernel)
            yield launch, name, multiplies


def _specialised(architecture: Architecture) -> Iterator[tuple[Launch, str, str | None]]:
    for name, dtype in ATTENTIONS:
        launch = attention(CASES[name], dtype, architecture)
        multiplies = str(dtype).removeprefix("torch.")
        yield launch, f"attend_tiles {name}, {multiplies}", multiplies
    for name, dtype, case in paged_cases(architecture):
        multiplies = str(dtype).removeprefix("torch.")
        for launch in paged_attention(case, dtype, architecture):
            attends = launch.kernel is attend_paged
            yield launch, f"{launch.name} {name}, {multiplies}", multiplies if attends else None
    for name, launch in others():
        yield launch, name, None
    for name, launch in recurrences(architecture):
        yield launch, name, name.rpartition(" ")[2] if launch.multiplies else None
    for name, launch in short_rows() if architecture.name in FAMILIES else ():
        yield launch, name, "bfloat16" if launch.multiplies else None
    if architecture.name in tuning.PRODUCTS:
        for kind, gated in (("gelu", False), ("silu", True)):
            launch = activated(kind, gated, tuning.PRODUCTS[architecture.name])
            yield launch, f"multiply_activate {kind}{', gated' * gated}, bfloat16", "bfloat16"
            yield to_eighths(kind, gated), f"round_rows {kind}{', gated' * gated}, float8", None


def paged_cases(architecture: Architecture) -> list[tuple[str, torch.dtype, test_paged.Case]]:
    """Those of PAGED whose rows the architecture holds."""
    cases = test_paged.CASES | test_paged.WIDE
    found = [(name, dtype, cases[name]) for name, dtype in PAGED]
    return [one for one in found if not one[2].row or one[2].dim <= tuning.widest_row(architecture.name, one[1])]


def attention(
    case: Case,
    dtype: torch.dtype,
    architecture: Architecture,
    *,
    blocks: tuning.Blocks | None = None,
) -> Launch:
    """What a case launches there."""
    given = inputs(case, LENGTHS, dtype, "cpu")
    form = kernel.Form(case.dim**-0.5, case.kind, case.window, case.softcap, case.bias)
    chosen = blocks or kernel.tuning_for(given.q, given.v, sum(LENGTHS), form, architecture.name)
    made = tiles.spread(given.cu_seqlens, given.q.shape[0], kernel.tile_rows(given.q, given.k, chosen))
    recorder = Recorder()
    kernel.attended(*given[:3], made, chosen, form, given.sinks, given.bias, recorder)
    return _launch(attend_tiles, recorder)


def paged_attention(case: test_paged.Case, dtype: torch.dtype, architecture: Architecture) -> Iterator[Launch]:
    """What a step over paged caches launches there."""
    given = test_paged.inputs(case, dtype)
    form = kernel.Form(case.dim**-0.5, case.kind, case.window, case.softcap, case.bias)
    tuned = paged.paged_tuning(given.q, given.v_cache, architecture.name, case.coded)
    rows_ = kernel.tile_rows(given.q, given.k_cache[0], tuned)
    made = kernel.listed(given.cu_seqlens, given.q.shape[0], rows_, Recorder(), named=True)
    recorders = [Recorder() for _ in paged.Kernels()]
    kernels = paged.Kernels(*recorders)
    kept = test_paged.kept_of(case, given, tuning.converts_float8(architecture.name))
    if given.k is not None:
        paged.written(given.k, given.v, kept, given.slots, kernels)
    paged.attended(
        given.q, kept, given.blocks, given.context, made, tuned, form, given.sinks, given.bias,
        kernels,
    )  # fmt: skip
    for function, recorder in zip(paged.Kernels(), recorders, strict=True):
        for arguments, constants in recorder.launched:
            yield Launch(function, arguments, constants, ())


def others() -> Iterator[tuple[str, Launch]]:
    """The kernels that multiply no matrices."""
    with FakeTensorMode():
        offsets = torch.empty(34, dtype=torch.int32)
        yield "list_tiles", _recorded(list_tiles, lambda k: kernel.listed(offsets, 4096, 64, k))
        named = _recorded(list_tiles, lambda k: kernel.listed(offsets, 4096, 64, k, named=True))
        yield "list_tiles named", named
        for kind in (PoolKind.MEAN, PoolKind.MAX, PoolKind.WEIGHTED_MEAN, PoolKind.LAST):
            hidden = torch.empty(1, 4096, 768, dtype=BF16)
            made = _recorded(reduce_sequences, lambda k, h=hidden, n=kind: reduced(h, offsets, n.value, k))
            yield f"reduce_sequences {kind.value}", made
        y = torch.empty(4096, 3072, dtype=BF16)
        alone = _recorded(activate_rows, lambda k: activated_alone(y, "gelu", True, False, k))
        yield "activate_rows gelu, gated, bfloat16", alone
        for dtype, normed in ((BF16, True), (BF16, False), (FP32, True)):
            x, waves = torch.empty(4096, 16, 128, dtype=dtype), torch.empty(4096, 128, dtype=dtype)
            weight = torch.empty(128, dtype=dtype) if normed else None
            made = _recorded(rotate_rows, lambda k, x=x, w=waves, n=weight: rotated(x, w, w, n, 1e-6, k))
            yield f"rotate_rows {'with the norm, ' * normed}{str(dtype).removeprefix('torch.')}", made
            yield from _of_decoding(x, waves, weight, str(dtype).removeprefix("torch."))


def _of_decoding(q: Tensor, waves: Tensor, weight: Tensor | None, dtype: str) -> Iterator[tuple[str, Launch]]:
    """What only a cached program has."""
    k, v = (q[:, :8].new_empty(4096, 8, 128) for _ in range(2))
    caches, slots = [q.new_empty(64, 16, 8, 128) for _ in range(2)], torch.empty(4096, dtype=torch.int64)
    norm = "with the norm, " if weight is not None else ""
    given = q, k, v, waves, waves, weight, 1e-6, weight, 1e-6
    made = _recorded(
        rotate_into_cache, lambda kernel: into_cache.written(*given, *caches, slots, None, None, kernel)
    )  # fmt: skip
    yield f"rotate_into_cache {norm}{dtype}", made
    codes, scales = (
        [torch.empty(64, 16, 8, *size, dtype=kind)] * 2 for size, kind in (((128,), torch.uint8), ((), torch.float32))
    )
    coded = _recorded(rotate_into_cache, lambda kernel: into_cache.written(*given, *codes, slots, *scales, kernel))
    yield f"rotate_into_cache to codes, {norm}{dtype}", coded
    for kind, gated in (("", False), ("silu", True)):
        layer = q.new_empty(2, 1024), q.new_empty(6144, 1024), None
        made = _recorded(multiply_few, partial(few_multiplied, *layer, kind, gated, False, None))
        if weight is None or dtype == "float32":
            yield f"multiply_few {kind}{', gated, ' * gated}{dtype}", made


def short_rows() -> Iterator[tuple[str, Launch]]:
    """What a graph of launches consists of."""
    with FakeTensorMode():
        x, weight = torch.empty(16, 1024, dtype=BF16), torch.empty(1024, dtype=BF16)
        for kind, gated in (("", False), ("silu", True)):
            layer = x, torch.empty(6144, 1024, dtype=BF16), None, kind, gated, False
            added = x.new_empty(16, 3072 if gated else 6144)
            for name, function, launch in (
                ("multiply_few", multiply_few, few_multiplied),
                ("multiply_rows", multiply_rows, multiplied_rows),
            ):
                made = _recorded(function, partial(launch, *layer, added))
                yield f"{name} {kind}{', gated, ' * gated}with a residual, bfloat16", made
        for centered in (False, True):
            said = x, weight, weight if centered else None, 1e-5, 0.0, centered
            yield f"norm_rows {'centered, ' * centered}bfloat16", _recorded(norm_rows, partial(normed_rows, *said))
        ids, tables = [torch.empty(16, dtype=torch.int64)] * 3, [torch.empty(512, 1024, dtype=BF16)] * 3
        yield "gather_rows bfloat16", _recorded(gather_rows, partial(gathered_rows, ids, tables))


def recurrences(architecture: Architecture) -> Iterator[tuple[str, Launch]]:
    """Every kernel of a recurrence, at real models' sizes and as the tunings of an architecture have it."""
    for case, name, operands, dtype in RECURRENT:
        with FakeTensorMode():
            given = operands(dtype)
            target = RECURRENT_TRITON[KINDS[name].varlen]
            kernels, launcher = LAUNCHERS[target]
            recorders = [Recorder() for _ in kernels]
            offsets, tiles = torch.empty(34, dtype=torch.int32), torch.empty(200, 4, dtype=torch.int32)
            after: tuple[Any, ...] = (offsets,)
            if name in ("causal_conv1d", "token_shift"):
                after = (tiles, True) if name == "causal_conv1d" else (tiles,)
            elif name in ("chunk_scan", "gated_delta_rule"):
                state = given[3 if name == "chunk_scan" else 0].shape[-1]
                listed = [tiles] if name == "gated_delta_rule" else []
                after = (offsets, *listed, list(tuning.scan_blocks(architecture.name, name, dtype, state)))
            launcher(*given, *after, *recorders)
        for function, recorder in zip(kernels, recorders, strict=True):
            for arguments, constants in recorder.launched:
                kind = str(dtype).removeprefix("torch.")
                yield f"{function.fn.__name__} {case}, {kind}", Launch(function, arguments, constants, ())


def _mamba2(heads: int, state: int) -> Any:
    """What Mamba-2's scan is given, its rows and groups beside one another as the convolution leaves them."""

    def made(dtype: torch.dtype) -> tuple[Any, ...]:
        width = heads * 64
        row = torch.empty(1, 4096, width + 2 * state, dtype=dtype)
        x, b, c = row.split((width, state, state), 2)
        a, d, bias = torch.empty(3, heads).unbind()
        dt = torch.empty(1, 4096, heads, dtype=dtype)
        return x.unflatten(2, (heads, 64)), dt, a, b[:, :, None], c[:, :, None], d, bias, True, 0.0, None

    return made


def _delta(heads: int, channels: bool) -> Any:
    """What the gated delta rule is given: keys of 128, two value heads a key head where a head decays as one."""

    def made(dtype: torch.dtype) -> tuple[Any, ...]:
        groups = heads if channels else heads // 2
        q, k = torch.empty(2, 1, 4096, groups, 128, dtype=dtype).unbind()
        v, beta = torch.empty(1, 4096, heads, 128, dtype=dtype), torch.empty(1, 4096, heads, dtype=dtype)
        return q, k, v, torch.empty(1, 4096, heads, 128) if channels else torch.empty(1, 4096, heads), beta, True

    return made


def _mamba(dtype: torch.dtype) -> tuple[Any, ...]:
    x, dt, z = torch.empty(3, 1, 4096, 1536, dtype=dtype).transpose(2, 3).unbind()
    b, c = torch.empty(2, 1, 4096, 16, dtype=dtype).transpose(2, 3).unbind()
    return x, dt, torch.empty(1536, 16), b, c, torch.empty(1536), z, torch.empty(1536), True


def _rows(count: int, *weights: tuple[int, ...]) -> Any:
    """Weights, then so many operands of a channel at a time."""
    return lambda dtype: (
        *(torch.empty(size) for size in weights), *(torch.empty(1, 4096, 2560, dtype=dtype) for _ in range(count)),
    )  # fmt: skip


# What each is given, and in which dtype: the sizes of Mamba-2, Falcon-H1, Qwen3-Next, Kimi Linear, Mamba, LFM2,
# RecurrentGemma, RWKV-4 and xLSTM.
RECURRENT: tuple[tuple[str, str, Any, torch.dtype], ...] = (
    ("Mamba-2", "chunk_scan", _mamba2(24, 128), BF16),
    ("Falcon-H1", "chunk_scan", _mamba2(24, 256), BF16),
    ("Mamba-2", "chunk_scan", _mamba2(24, 128), FP32),
    ("Qwen3-Next", "gated_delta_rule", _delta(32, channels=False), BF16),
    ("Qwen3-Next", "gated_delta_rule", _delta(32, channels=False), FP32),
    ("Kimi Linear", "gated_delta_rule", _delta(32, channels=True), BF16),
    ("Mamba", "selective_scan", _mamba, BF16),
    (
        "LFM2", "causal_conv1d",
        lambda dtype: (torch.empty(1, 4096, 1024, dtype=dtype).mT, torch.empty(1024, 3, dtype=dtype), None),
        BF16,
    ),
    ("RecurrentGemma", "linear_recurrence", _rows(2), BF16),
    ("RWKV-4", "wkv", _rows(2, (2560,), (2560,)), BF16),
    ("RWKV-4", "token_shift", _rows(1), BF16),
    (
        "xLSTM", "mlstm",
        lambda dtype: (
            *(torch.empty(1, 8, 4096, size, dtype=dtype) for size in (256, 256, 512)),
            *(torch.empty(1, 8, 4096, dtype=dtype) for _ in range(2)), 1e-6,
        ),
        BF16,
    ),
)  # fmt: skip
# Kernels of them: the gated delta rule of a decay a head has two.
RECURRENT_KERNELS = len(RECURRENT) + 2


def activated(kind: str, gated: bool, tuned: tuning.Product) -> Launch:
    """A layer of bert-base's size with its activation."""
    with FakeTensorMode():
        x, weight, bias = (torch.empty(shape, dtype=BF16) for shape in ((4096, 768), (3072, 768), (3072,)))
        made = lambda k: multiplied(x, weight, bias, kind, gated, False, tuned, k)  # noqa: E731
        return _recorded(multiply_activate, made)


def to_eighths(kind: str, gated: bool) -> Launch:
    """An activation of bert-base's size, rounded for a product in eight bits."""
    with FakeTensorMode():
        y = torch.empty(4096, 3072 * (1 + gated), dtype=BF16)
        return _recorded(round_rows, lambda k: round_activation(y, kind, gated, False, k))


def _recorded(function: Any, launch: Any) -> Launch:
    recorder = Recorder()
    launch(recorder)
    return _launch(function, recorder)


def _launch(function: Any, recorder: Recorder) -> Launch:
    ((arguments, constants),) = recorder.launched
    return Launch(function, arguments, constants, ())


def _row(launch: Launch, name: str, architecture: Architecture, multiplies: str | None) -> rows.Row:
    code = cross_compile.cross_compile(launch, architecture)
    spills = next((most for start, least, most in SPILLING if architecture.name.startswith(start) and name == least), 0)
    return rows.row("ours", name, [code], machine_code.faults(code, multiplies=multiplies, spills=spills))
