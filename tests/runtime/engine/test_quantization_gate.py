"""Compiling with quantize="fp8": what it costs is measured, shown, kept with the model, and refused past the gate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.backends.gpu.cuda import Cuda
from headrace.backends.gpu.rocm import Rocm
from headrace.backends.reference import Interpreted, Reference
from headrace.backends.several import Parallel, Several
from headrace.errors import InputError, TargetError, VerifyError
from headrace.ir import CacheDtype, Layout, Task
from headrace.lowering.pipeline import prepare, quantize, quantize_caches
from headrace.runtime.api import Lowered
from headrace.runtime.engine import quantization_gate
from headrace.target import parse_target
from tests.tiny import build

WIDE = {"hidden_size": 256, "intermediate_size": 512}
REQUESTS = [[0, 5, 6, 2], [0, 7, 2], [9] * 40]


class Eight(Reference):
    """The reference target on packed programs, taking quantised ones as cuda does."""

    schemes = ("fp8",)

    def __init__(self) -> None:
        super().__init__(Layout.PACKED)

    def require_scheme(self, scheme: str, dtype: str) -> None:
        assert (scheme, dtype) == ("fp8", "float32")


def lowered(model: Any, **options: Any) -> Lowered:
    made = headrace.lower(model, target="reference", **options)
    return Lowered(made.program, Eight(), made.tokenizer, made.side_files)


def with_outlier(model: Any) -> Any:
    """One channel between the layers of each feed-forward is huge, and nothing reads it."""
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.intermediate.dense.bias[5] = 1e6
            layer.output.dense.weight[:, 5] = 0
    return model


def test_the_cost_is_measured_and_shown() -> None:
    model = lowered(build("bert", **WIDE), pooling="mean").compile(quantize="fp8")
    found = model.quantized
    assert found is not None
    assert (found.scheme, found.layers, found.among, found.sequences) == ("fp8", 8, 8, 12)
    assert quantization_gate.GATE <= found.worst <= found.median < 1
    told = " ".join(model.explain().split())
    assert f"quantised fp8 in 8 of 8 linear layers, cosine to the answers without it {found.worst:.5f} at worst" in told
    assert "fp8 in 8 of 8" in model.explain("html")
    plain = lowered(build("bert", **WIDE), pooling="mean").compile()
    assert plain.quantized is None
    assert "quantised" not in plain.explain()
    for one, other in zip(model(REQUESTS), plain(REQUESTS), strict=True):
        cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert found.worst - 0.02 < cosine < 1 - 1e-6


@pytest.mark.parametrize(
    ("head", "labels"),
    [
        ("AutoModelForSequenceClassification", 3),
        ("AutoModelForSequenceClassification", 1),
        ("AutoModelForTokenClassification", 2),
    ],
)
def test_every_task_is_measured(head: str, labels: int) -> None:
    """Labels, a score, whose one number has no direction but among others, and the rows of tokens."""
    wide = lowered(build("bert", head, num_labels=labels, **WIDE))
    made, plain = wide.compile(quantize="fp8", force=True), wide.compile()
    ids = [one.ids for one in quantization_gate.samples(wide.program)]
    assert len({len(one) for one in ids}) > 6
    pairs = [[torch.from_numpy(answer.ravel()) for answer in model(ids)] for model in (made, plain)]
    if labels == 1:
        pairs = [[torch.cat(answers)] for answers in pairs]
    cosines = [float(torch.cosine_similarity(one, other, dim=0)) for one, other in zip(*pairs, strict=True)]
    assert made.quantized.worst == pytest.approx(min(cosines), abs=1e-5)
    assert made.quantized.median == pytest.approx(float(np.median(cosines)), abs=1e-5)
    assert min(cosines) < 1 - 1e-6


def test_answers_past_the_gate_are_refused_unless_forced() -> None:
    """An outlier takes the range of its whole row, and the others of the row round to little."""
    model = with_outlier(build("bert", **WIDE))
    with pytest.raises(VerifyError, match=r"fp8 answers otherwise than in float32.*at least 0\.97.*force=True"):
        lowered(model, pooling="mean").compile(quantize="fp8")
    kept = lowered(model, pooling="mean").compile(quantize="fp8", force=True)
    assert kept.quantized.worst < quantization_gate.GATE
    assert f"{kept.quantized.worst:.5f} at worst" in " ".join(kept.explain().split())


def test_it_is_saved_with_the_model(tmp_path: Path) -> None:
    model = lowered(build("bert", **WIDE), pooling="mean").compile(quantize="fp8")
    plain = lowered(build("bert", **WIDE), pooling="mean").compile()
    saved, whole = model.save(tmp_path / "saved"), plain.save(tmp_path / "plain")
    assert (saved / "embedding.pt2").stat().st_size < 0.6 * (whole / "embedding.pt2").stat().st_size
    loaded = headrace.load(saved)
    assert loaded.quantized == model.quantized
    assert loaded.explain() == model.explain()
    for one, other in zip(loaded(REQUESTS), model(REQUESTS), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in {"AVX2", "AVX512"}, reason="neither AVX2 nor AVX512")
def test_int8_on_the_cpu(tmp_path: Path) -> None:
    """Answers are those of the definition of the quantised program; what it costs goes with the model."""
    low = headrace.lower(build("bert", **WIDE), target="cpu", pooling="mean")
    model = low.compile(quantize="int8")
    found = model.quantized
    assert (found.scheme, found.layers, found.among) == ("int8", 8, 8)
    assert quantization_gate.GATE <= found.worst <= found.median < 1
    assert f"int8 in 8 of 8 linear layers, cosine to the answers without it {found.worst:.5f} at worst" in " ".join(
        model.explain().split()
    )
    program = quantize(prepare(low.program, Task.EMBED, Layout.PACKED), "int8")
    defined = Interpreted(program)
    for ids, answer in zip(REQUESTS, model(REQUESTS), strict=True):
        row = torch.tensor([ids])
        given = {"input_ids": row, "cu_seqlens": torch.tensor([0, len(ids)], dtype=torch.int32)}
        given |= {"position_ids": torch.arange(len(ids))[None], "token_type_ids": torch.zeros_like(row)}
        wanted = defined({name: given[name] for name in program.signature.input_names})
        np.testing.assert_allclose(answer, wanted[0].numpy(), atol=2e-5)
    loaded = headrace.load(model.save(tmp_path / "saved"))
    assert loaded.quantized == found
    for one, other in zip(loaded(REQUESTS), model(REQUESTS), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("target", ["reference", "cpu", "onnx"])
def test_other_targets_refuse(target: str) -> None:
    pytest.importorskip("onnxscript") if target == "onnx" else None
    with pytest.raises(TargetError, match=rf'target {target} does not run quantize="fp8"; cuda does.*dtype="int8"'):
        headrace.compile("no model is looked for", target=target, quantize="fp8")


def test_schemes_there_are() -> None:
    with pytest.raises(InputError, match=r"quantize is 'int4'; choose from fp8"):
        headrace.compile("no model is looked for", target="reference", quantize="int4")


def test_rocm_refuses_in_words() -> None:
    with pytest.raises(TargetError, match=r"rocm does not run.*yet.*e4m3fnuz.*Leave quantize out"):
        quantization_gate.require_scheme("fp8", Rocm("gfx942"), "bfloat16")


def test_cuda_asks_for_bfloat16_and_matrix_units(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in ("float32", "float16"):
        with pytest.raises(TargetError, match=rf'within bfloat16, not {dtype}.*dtype="bfloat16"'):
            quantization_gate.require_scheme("fp8", Cuda("sm90"), dtype)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    for found in ((8, 9), (9, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda found=found: found)
        quantization_gate.require_scheme("fp8", Cuda("sm90"), "bfloat16")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(TargetError, match=r"needs compute capability 8\.9.*NVIDIA A100 has 8\.0"):
        quantization_gate.require_scheme("fp8", Cuda("sm80"), "bfloat16")


def test_caches_in_eight_bits_are_for_whole_models_on_targets_with_kernels() -> None:
    """On every architecture: codes are converted bit by bit where no instruction does it."""
    target = parse_target("cuda:0-1")
    for backend in (
        Cuda("sm80"),
        Cuda("sm90"),
        Rocm("gfx942"),
        Reference(),
        Several(target, (), Cuda(), Parallel.DATA),
    ):
        assert quantization_gate.require_cache_dtype("fp8", backend) is CacheDtype.FP8
        assert quantization_gate.require_cache_dtype(None, backend) is None
    with pytest.raises(TargetError, match=r"cuda:0,1 does not run kv_cache_dtype.*not with parallel=.tensor"):
        quantization_gate.require_cache_dtype("fp8", Several(target, (), Cuda(), Parallel.TENSOR))


def test_caches_that_turn_answers_are_refused(analysed: Any) -> None:
    program = quantize_caches(prepare(analysed("llama", "AutoModelForCausalLM"), Task.GENERATE))
    quantization_gate.require_cache_quality(program)
    assert program.form.quantized_caches is not None
    turned = program.with_(quantized_caches=replace(program.form.quantized_caches, mean=0.5))
    with pytest.raises(VerifyError, match=r"keys and values in fp8.*0\.50000 in the mean.*0\.97.*force=True"):
        quantization_gate.require_cache_quality(turned)


def test_a_model_of_arrays_is_refused() -> None:
    with pytest.raises(InputError, match=r"measured on token ids, and this one reads pixel_values"):
        lowered(build("vit", hidden_size=256, intermediate_size=512), pooling="own").compile(quantize="fp8")


@pytest.mark.nvidia
@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    """Captured rows and long ones, and what was saved."""
    model = build("bert", **WIDE, max_position_embeddings=600).to(torch.bfloat16)
    made = headrace.compile(model, target="cuda", pooling="mean", quantize="fp8", progress=False)
    plain = headrace.compile(model, target="cuda", pooling="mean", progress=False)
    print(quantization_gate.words(made.quantized))
    requests = [np.arange(n) % 90 for n in (1, 3, 40, 500, 512) * 20]
    for one, other in zip(made(requests), plain(requests), strict=True):
        assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) > 0.97
    loaded = headrace.load(made.save(tmp_path / "saved"))
    assert loaded.quantized == made.quantized
    for one, other in zip(loaded(requests), made(requests), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-2, rtol=1e-2)
