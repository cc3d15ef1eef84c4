"""The CPU target says what it does with a program, and follows what torch says of the processor."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace import graphs
from headrace.backends import cpu
from headrace.backends.inductor import compile as compiler
from headrace.backends.inductor.host.varlen import ATTENTION_VARLEN_HOST, use_host_varlen
from headrace.compat import torch_cpu
from headrace.errors import HeadraceWarning, TargetError
from headrace.ir import AttentionType, Cache, CacheGroup, CacheKind, Layout, MaskKind, Program, Quantized
from headrace.ops.packed import ATTENTION_VARLEN
from tests.synthetic import facts

FLOAT, HALF = torch.float32, torch.bfloat16


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    def have(capability: str, bfloat16: bool, amx: bool = False) -> None:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bfloat16)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)

    return have


@pytest.mark.parametrize(
    ("capability", "bfloat16", "amx", "dtypes"),
    [
        ("AVX512", True, False, {FLOAT, HALF}),
        ("AVX512", False, True, {FLOAT, HALF, torch.int8}),
        ("AVX512", False, False, {FLOAT}),
        ("AVX2", True, True, set()),
        ("DEFAULT", False, False, set()),
    ],
    ids=["bf16", "amx", "avx512", "avx2", "default"],
)
def test_tiles_are_of_what_the_processor_multiplies(
    capability: str, bfloat16: bool, amx: bool, dtypes: set[torch.dtype], processor: Any
) -> None:
    processor(capability, bfloat16, amx)
    assert torch_cpu.tile_dtypes() == dtypes


def laid_out(layout: Layout, dtype: str) -> Program:
    """Facts of a program with one attention, which keeps keys where it is cached."""
    program = facts(AttentionType.DECODER, dtype=dtype)
    if layout is not Layout.CACHED:
        return program.with_(layout=layout)
    group = CacheGroup("full", MaskKind.CAUSAL)
    kept = (Cache("k_0", CacheKind.PAGED, (1, 8), dtype, group.name),)
    return program.with_(layout=layout, caches=kept, groups=(group,), block=4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", [Layout.PACKED, Layout.PADDED, Layout.CACHED])
@pytest.mark.parametrize(
    ("capability", "there"), [("AVX512", True), ("AVX512", False), ("AVX2", False), ("DEFAULT", False)]
)
def test_bfloat16_is_warned_of_where_it_is_slower(
    dtype: str, layout: Layout, capability: str, there: bool, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(capability, there)
    done: list[Any] = []
    monkeypatch.setattr(compiler, "compile_program", done.append)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cpu.Cpu().compile(laid_out(layout, dtype))
    told = [str(one.message) for one in said if issubclass(one.category, HeadraceWarning)]
    assert len(done) == 1
    how = "as fast as" if layout is Layout.PACKED and capability != "DEFAULT" else "slower than"
    wanted = [f"bfloat16 is {how} float32"] * (dtype == "bfloat16" and not there)
    assert [text for one in told for text in wanted if text in one] == wanted
    assert len(told) == len(wanted)


@pytest.mark.parametrize("there", [True, False], ids=["products", "none"])
def test_the_plan_names_the_dtype_and_why(there: bool, processor: Any) -> None:
    processor("AVX512", there)
    plan = {choice.about: choice for choice in cpu.Cpu().plan(facts(AttentionType.ENCODER_ONLY))}
    assert plan["dtype"].what == "float32"
    assert ("multiplies twice as fast" in plan["dtype"].why) == there
    assert ("has no products of bfloat16" in plan["dtype"].why) == (not there)
    assert "dtype" not in {choice.about for choice in cpu.Cpu().plan(facts(dtype="bfloat16"))}


@pytest.mark.parametrize(
    ("capability", "there", "dtype", "layout", "whose", "why"),
    [
        ("AVX512", True, "float32", Layout.PADDED, "torch's, of tiles", "AVX512 multiplies tiles of float32"),
        ("AVX512", True, "bfloat16", Layout.PADDED, "torch's, of tiles", "AVX512 multiplies tiles of bfloat16"),
        ("AVX512", False, "bfloat16", Layout.PADDED, "torch's, of tiles", "float32, to which bfloat16 is widened"),
        ("AVX2", False, "float32", Layout.PADDED, "Headrace's, of tiles", "AVX2 multiplies tiles of float32"),
        ("AVX2", False, "bfloat16", Layout.PADDED, "Headrace's, of tiles", "float32, to which bfloat16 is widened"),
        ("AVX2", False, "float16", Layout.PADDED, "torch's", "AVX2 multiplies no tiles of float16"),
        ("AVX2", False, "float32", Layout.CACHED, "torch's", "AVX2 multiplies no tiles of float32"),
        ("DEFAULT", False, "float32", Layout.PADDED, "torch's", "DEFAULT multiplies no tiles of float32"),
    ],
)
def test_the_plan_names_what_multiplies(
    capability: str, there: bool, dtype: str, layout: Layout, whose: str, why: str, processor: Any
) -> None:
    processor(capability, there)
    (found,) = [choice for choice in cpu.Cpu().plan(laid_out(layout, dtype)) if choice.about == "products"]
    assert found.what.startswith(whose)
    assert why in found.why


def test_int8_is_refused_where_it_is_not_multiplied(processor: Any) -> None:
    processor("AVX2", False)
    cpu.Cpu().require_scheme("int8", "float32")
    with pytest.raises(TargetError, match=r'quantize="int8" within float32, not bfloat16. Add dtype="float32"'):
        cpu.Cpu().require_scheme("int8", "bfloat16")
    kept = laid_out(Layout.CACHED, "float32").with_(quantized=Quantized("int8", 4, 4))
    with pytest.raises(TargetError, match=r'quantize="int8" where texts run whole.*Leave quantize out'):
        cpu.Cpu().compile(kept)
    processor("DEFAULT", False)
    with pytest.raises(TargetError, match="needs AVX2 or AVX512, and torch runs DEFAULT here"):
        cpu.Cpu().require_scheme("int8", "float32")


class Attentions(nn.Module):
    """One attention over packed rows for each dtype of its keys and of its values."""

    def __init__(self, kinds: list[tuple[torch.dtype, torch.dtype]]) -> None:
        super().__init__()
        self.kinds = kinds

    def forward(self, q: Tensor, cu_seqlens: Tensor) -> list[Tensor]:
        form = (None, None, 1.0, "causal", [-1, 0], 0.0, "none", 8)
        given = [(q, q.to(keys), q.to(values)) for keys, values in self.kinds]
        return [ATTENTION_VARLEN(*each, cu_seqlens, *form) for each in given]


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ([(FLOAT, FLOAT)] * 2, [("each sequence alone, in C++ of Headrace", "its rows are packed")]),
        (
            [(FLOAT, FLOAT), (FLOAT, HALF)],
            [
                ("each sequence alone, in C++ of Headrace, for 1 of 2", "its rows are packed"),
                ("each sequence alone, operator by operator, for 1 of 2", "q, k and v are float32, float32, bfloat16"),
            ],
        ),
        (
            [(HALF, FLOAT)] * 2,
            [("each sequence alone, operator by operator, for 2 of 2", "q, k and v are float32, bfloat16, float32")],
        ),
    ],
    ids=["all", "some", "none"],
)
def test_the_plan_says_of_each_attention_what_the_compiled_graph_calls(
    kinds: list[tuple[torch.dtype, torch.dtype]], said: list[tuple[str, str]]
) -> None:
    given = torch.zeros(3, 1, 4), torch.tensor([0, 1, 3], dtype=torch.int32)
    graph = torch.export.export(Attentions(kinds), given)
    program = facts(*[AttentionType.DECODER] * len(kinds), exported=graph, layout=Layout.PACKED)
    plan = [(choice.what, choice.why) for choice in cpu.Cpu().plan(program) if choice.about == "attention"]
    assert plan == said
    targets = [node.target for node in graphs.rewrite(graph, use_host_varlen).graph.nodes]
    left = sum(len({FLOAT, *each}) > 1 for each in kinds)
    assert (targets.count(ATTENTION_VARLEN_HOST), targets.count(ATTENTION_VARLEN)) == (len(kinds) - left, left)


def test_programs_are_packed() -> None:
    assert cpu.Cpu().layout_of(facts(AttentionType.ENCODER_ONLY)) is Layout.PACKED
