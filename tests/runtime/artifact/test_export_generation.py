"""Folders of models that generate: what deployment tools look for, and the model's own tokens without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")

import onnx_ir as ir

import headrace
from headrace.runtime.tools.cli.commands.onnx import check_export
from tests import generating
from tests.test_packaging import BLOCK
from tests.tiny import build
from tests.words import gpt_like

TEXTS = ["w5 w6 w7", "w8", "w9 w10 w11 w12 w13 w14"]
OPTIONS = [
    {"max_new_tokens": 8, "ignore_eos": True},
    {"max_new_tokens": 8, "seed": 3, "temperature": 0.9, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2},
]


@pytest.fixture(scope="module")
def model() -> Any:
    return build("qwen3", "AutoModelForCausalLM")


@pytest.fixture(scope="module")
def lowered(model: Any) -> Any:
    return headrace.lower(model, target="reference", tokenizer=gpt_like(), pooling="last")


@pytest.fixture(scope="module")
def exported(lowered: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(lowered.export_onnx(tmp_path_factory.mktemp("export") / "model"))


def test_a_language_model_is_exported_to_generate(exported: Path) -> None:
    files = {str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file()}
    tools = {"config.json", "generation_config.json", "genai_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert files >= {*tools, "headrace.json", "verification.json", "onnx/model.onnx"}
    report = json.loads((exported / "verification.json").read_text())
    assert all(check["passed"] for check in report["checks"])
    assert {"padded left, in pieces", "padded right, in pieces"} <= {
        check["name"].partition("tokens, ")[2] for check in report["checks"]
    }
    assert json.loads((exported / "headrace.json").read_text())["task"] == "generate"


def test_the_configuration_of_genai_says_what_the_program_is(exported: Path) -> None:
    config = json.loads((exported / "genai_config.json").read_text())
    decoder = config["model"]["decoder"]
    sizes = ("head_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "hidden_size")
    assert [decoder[name] for name in sizes] == [8, 4, 2, 2, 32]
    assert decoder["filename"] == "onnx/model.onnx"
    assert decoder["inputs"]["position_ids"] == "position_ids"
    assert (config["model"]["vocab_size"], config["model"]["context_length"]) == (96, 64)


WITHOUT_TORCH = """
import json, sys
import headrace
model = headrace.load({folder!r})
made = [[list(one.token_ids) for one in model.generate({texts!r}, **options)] for options in {options!r}]
parts = "".join(part.text for part in model.generate_iter({texts!r}[:1], **{options!r}[0]))
loaded = {{name.split(".")[0] for name in sys.modules}}
print(json.dumps([made, parts, sorted(loaded & {{"torch", "transformers", "onnx", "onnxscript"}})]))
"""


def test_a_machine_without_torch_generates(exported: Path, lowered: Any) -> None:
    """Greedily and drawn by a seed: the tokens of the model on torch."""
    code = BLOCK + WITHOUT_TORCH.format(folder=str(exported), texts=TEXTS, options=OPTIONS)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    made, parts, loaded = json.loads(ran.stdout.splitlines()[-1])
    assert loaded == []
    model = lowered.compile(task="generate")
    right = [model.generate(TEXTS, **options) for options in OPTIONS]
    assert made == [[list(one.token_ids) for one in some] for some in right]
    assert parts == right[0][0].text


def test_tokens_are_those_of_the_eager_model(exported: Path, model: Any) -> None:
    loaded, prompts = headrace.load(exported), generating.prompts(96, 5, 17, 3, 11)
    found = [list(one.token_ids) for one in loaded.generate(prompts, **OPTIONS[0])]
    assert found == [generating.greedy(model, own, 8) for own in prompts]
    assert set(loaded.tasks) == {"embed", "generate"}
    with pytest.raises(headrace.ArtifactError, match="holds executables for vocabulary_logits; embed needs another"):
        loaded.embed("w5")


def test_what_was_recorded_holds_here(exported: Path) -> None:
    found = list(check_export(exported))
    assert len(found) > 3
    assert all(passed for passed, _ in found), found


def test_weights_in_four_bits(lowered: Any, tmp_path: Path) -> None:
    """Every product's are, the head's too, which the embedding may share; what it costs is told."""
    folder = lowered.export_onnx(tmp_path / "m", dtype="int4")
    kinds = [node.op_type for node in ir.load(folder / "onnx" / "model_q4.onnx").graph]
    assert kinds.count("MatMulNBits") == 9
    assert "MatMul" not in kinds
    report = json.loads((folder / "verification.json").read_text())
    assert 0.9 < float(report["checks"][-1]["found"].partition("cosine ")[2].split()[0]) < 1
    loaded = headrace.load(folder)
    assert len(loaded.generate([[5, 6, 7]], **OPTIONS[0])[0].token_ids) == 8


def test_an_encoder_beside_a_decoder_has_no_place_in_one_file(tmp_path: Path) -> None:
    lowered = headrace.lower(build("t5", "AutoModelForSeq2SeqLM"), target="reference")
    with pytest.raises(headrace.TargetError, match=r"attention_\d+ \(.*\) reads an encoder's rows"):
        lowered.export_onnx(tmp_path / "m", task="generate")
    assert not list(tmp_path.iterdir())


def test_options_that_are_none(lowered: Any, tmp_path: Path) -> None:
    with pytest.raises(headrace.InputError, match="logits is 'some'; choose from all, last"):
        lowered.export_onnx(tmp_path / "m", logits="some")
    with pytest.raises(headrace.TargetError, match="The profile fast tells real keys by their number"):
        lowered.export_onnx(tmp_path / "m", profile="fast")
    assert not list(tmp_path.iterdir())
