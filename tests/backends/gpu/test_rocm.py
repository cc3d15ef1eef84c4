"""The ROCm target without an AMD GPU: what it refuses, and what it decides about a program (cases R1 to R3)."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import headrace
from headrace.backends import backend
from headrace.backends.gpu.architecture import ARCHITECTURES, of_vendor
from headrace.backends.gpu.rocm import PLAIN, Rocm, require_own_attention
from headrace.backends.inductor.compile import DECOMPOSITIONS
from headrace.backends.inductor.precision import exact
from headrace.backends.kernels import tuning
from headrace.errors import TargetError
from headrace.ir import AttentionType, Layout, Task
from headrace.lowering.pipeline import prepare
from tests.conformance import oracle

TRITON = importlib.util.find_spec("triton") is not None


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have torch answer as its ROCm build does on a machine with that GPU; no name is none."""

    def here(architecture: str) -> None:
        monkeypatch.setattr(torch.version, "hip", "7.2.0")
        monkeypatch.setattr(torch.version, "cuda", None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(architecture))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "AMD something")
        properties = SimpleNamespace(gcnArchName=f"{architecture}:sramecc+:xnack-")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        tuning.family.cache_clear()

    yield here
    tuning.family.cache_clear()


@pytest.mark.skipif(torch.version.hip is not None, reason="needs torch without ROCm")
def test_without_a_build_for_it() -> None:
    """Names what was met, what to install, and what works on any machine."""
    with pytest.raises(
        TargetError, match=r"needs an AMD GPU and torch built for ROCm; torch 2.* is built for"
    ) as refused:
        backend("rocm")
    said = str(refused.value)
    assert "pytorch.org/get-started" in said
    assert "--target rocm:gfx942 --kernels-only" in said


def test_without_a_gpu(amd: Any) -> None:
    amd("")
    with pytest.raises(TargetError, match=r"\(for ROCm 7\.2\.0\) sees none.*rocminfo.*/dev/kfd.*cpu"):
        backend("rocm")


def test_an_architecture_that_nothing_was_compiled_for(amd: Any) -> None:
    amd("gfx1030")
    with pytest.raises(TargetError, match=r"gfx90a \(MI210, MI250\), gfx942.*AMD something is gfx1030"):
        backend("rocm")


def test_without_triton(amd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    amd("gfx942")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TargetError, match="needs Triton, which comes with torch for ROCm"):
        backend("rocm")


def test_an_architecture_by_name(amd: Any) -> None:
    """It suits where nothing is to run, or where it is the one that is here."""
    assert backend("rocm:gfx942", compiles=False).name == "rocm"
    amd("gfx1100")
    if TRITON:
        assert backend("rocm:gfx1100").name == "rocm"
        with pytest.raises(TargetError, match=r"rocm:gfx942 was asked for, and the device here is gfx1100"):
            backend("rocm:gfx942")
    with pytest.raises(TargetError, match=r"rocm knows no architecture 'sm90'\. Choose from gfx90a, gfx942"):
        backend("rocm:sm90", compiles=False)


@pytest.mark.skipif(torch.version.hip is not None, reason="needs a machine without the device")
@pytest.mark.parametrize("target", ["rocm:gfx942", "cuda:sm90"])
def test_lowers_anywhere_and_compiles_where_it_is(target: str, tiny: Any) -> None:
    """Compiling is refused before anything is loaded."""
    if target.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("needs a machine without the device")
    lowered = headrace.lower(tiny("bert"), target=target)
    assert list(lowered.tasks) == ["embed", "token_embed"]
    with pytest.raises(TargetError, match="needs"):
        lowered.compile()
    with pytest.raises(TargetError, match="needs"):
        headrace.compile("no such folder", target=target)


def test_r1_the_oracle_is_eager(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the conformance suite measures answers by never calls SDPA, on any machine, whatever the model is set to."""

    def sdpa(*_: Any, **__: Any) -> None:
        raise AssertionError("SDPA was called")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", sdpa)
    model, requests = tiny("bert"), [[5, 6, 7], [8]]
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(AssertionError, match="SDPA was called"):
        model(torch.tensor([[5, 6, 7]]))
    found = oracle.answers(model, requests, lambda output: output.last_hidden_state, torch.float32)
    assert [rows.shape for rows in found] == [(3, 32), (1, 32)]


def test_r2_no_attention_of_a_library(analysed: Any) -> None:
    """Padded programs: not a node is left that a library would attend by, where CUDA has SDPA."""
    program = prepare(analysed("bert"), Task.EMBED)
    assert program.nodes.attention[0].type is AttentionType.ENCODER_ONLY
    for table, library in ((DECOMPOSITIONS, True), (PLAIN, False)):
        left = program.graph.run_decompositions(dict(table)).graph.nodes
        assert any("scaled_dot_product" in str(node.target) for node in left) is library
    require_own_attention(program)
    with pytest.raises(TargetError, match=r"calls torch's scaled_dot_product_attention .* target=\"cpu\""):
        require_own_attention(program.with_(exported=program.graph.run_decompositions(dict(DECOMPOSITIONS))))


@pytest.mark.skipif(not TRITON, reason="needs Triton: pip install triton")
@pytest.mark.parametrize("name", ["bert", "qwen3", "modernbert", "gemma3-bidirectional"])
def test_r2_the_kernel_sees_what_the_type_says(name: str, analysed: Any) -> None:
    """What is launched for an ENCODER_ONLY attention is not causal, and for a DECODER is."""
    from headrace.backends.kernels.compile.launches import launches
    from headrace.backends.kernels.compile.machine_code import mask_faults

    program = prepare(analysed(name), Task.EMBED, Layout.PACKED)
    launched = [launch for launch in launches(program, "gfx942") if launch.attention]
    assert [spec.call_order for launch in launched for spec in launch.attention] != []
    for launch in launched:
        for spec in launch.attention:
            assert mask_faults(launch.constants, spec) == []
            causal = launch.constants["RIGHT"] == 0
            assert causal is (spec.type is AttentionType.DECODER)


def test_r3_the_plan_says_what_is_not_captured(analysed: Any) -> None:
    target = Rocm("gfx942")
    halves = analysed("bart", "AutoModelForSequenceClassification")
    plan = target.plan(prepare(halves, Task.CLASSIFY, Layout.PACKED))
    said = {choice.about: choice for choice in plan}
    assert said["captured in graphs"].what == "nothing"
    assert "another sequence than its queries" in said["captured in graphs"].why
    assert said["not captured"].what == "the encoder, and the decoder with its 2 cross attentions"
    assert "two lengths" in said["not captured"].why
    assert said["attention"].what == Rocm.attention
    encoder = {c.about: c for c in target.plan(prepare(analysed("t5"), Task.EMBED, Layout.PACKED))}
    assert encoder["captured in graphs"].what.startswith("rows of up to 2,048 tokens")
    assert encoder["not captured"].what == "the decoder and its cross attention"


def test_the_plan_is_explained(tiny: Any) -> None:
    lowered = headrace.lower(tiny("bert"), target="rocm:gfx1201")
    said = lowered.explain()
    assert "Plan for rocm" in said
    assert "gfx1201 (RX 9070): waves of 32, 65,536 bytes" in said
    assert "float32_matmul_precision=highest" in said
    assert "Plan for rocm" in lowered.explain("html")
    assert "Plan for" not in headrace.lower(tiny("bert"), target="reference").explain()


@pytest.mark.parametrize("before", ["highest", "high", "medium", "one library alone"])
def test_float32_is_exact_whatever_the_process_has_set(before: str) -> None:
    matmul: Any = torch.backends.cuda.matmul
    try:
        if before == "one library alone":
            matmul.fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision(before)
        set_before = matmul.fp32_precision
        with exact():
            assert torch.get_float32_matmul_precision() == "highest"
            assert matmul.fp32_precision not in ("tf32", "bf16")
        assert matmul.fp32_precision == set_before
        if before != "one library alone":
            assert torch.get_float32_matmul_precision() == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_every_architecture_has_its_numbers() -> None:
    """Tunings of other families would be taken without a word."""
    assert set(of_vendor("hip")) == {"gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"}
    assert {one.wave for one in ARCHITECTURES.values() if one.name.startswith(("gfx9",))} == {64}
    for one in ARCHITECTURES.values():
        blocks = tuning.choose(one.name, torch.bfloat16, 64, 128)
        assert 2 * blocks.stages * blocks.n * 64 * 2 <= one.local
