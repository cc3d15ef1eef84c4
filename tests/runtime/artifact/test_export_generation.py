"""Folders of models that generate: what deployment tools look for, and the model's own tokens without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

import headrace
from headrace.runtime.tools.cli.commands.onnx import check_export
from tests import generating
from tests.test_packaging import BLOCK
from tests.tiny import build
from tests.words import gpt_like

HEAD = "AutoModelForSeq2SeqLM"
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


@pytest.mark.parametrize(("dtype", "file", "least", "most"), [("int4", "q4", 0.9, 1.25), ("int8", "int8", 0.999, 1.02)])
def test_weights_in_blocks(dtype: str, file: str, least: float, most: float, lowered: Any, tmp_path: Path) -> None:
    """Every product's are, a few in eight bits or all; what that costs the model's own texts is told."""
    folder = lowered.export_onnx(tmp_path / "m", dtype=dtype)
    nodes = list(ir.load(folder / "onnx" / f"model_{file}.onnx").graph)
    kinds = [node.op_type for node in nodes]
    assert kinds.count("MatMulNBits") == 9
    assert "MatMul" not in kinds
    assert kinds.count("GatherBlockQuantized") == 1
    bits = {node.attributes["bits"].as_int() for node in nodes if node.op_type == "MatMulNBits"}
    assert bits == ({4, 8} if dtype == "int4" else {8})
    report = json.loads((folder / "verification.json").read_text())
    (check,) = (one for one in report["checks"] if "that it wrote" in one["name"])
    cosine, perplexity, plain = map(float, re.findall(r"(?:cosine|perplexity|float32's is) ([\d.]+)", check["found"]))
    assert least < cosine < 1
    assert 1 / most < perplexity / plain < most
    loaded = headrace.load(folder)
    assert len(loaded.generate([[5, 6, 7]], **OPTIONS[0])[0].token_ids) == 8


def test_routed_experts_make_the_tokens_of_the_eager_model(tiny: Any, tmp_path: Path) -> None:
    """In other dtypes than float32 they would be wrong, which is told in place of done."""
    model = tiny("mixtral", "AutoModelForCausalLM")
    routed = headrace.lower(model, target="reference", tokenizer=gpt_like())
    prompts = generating.prompts(96, 5, 17, 3, 11)
    loaded = headrace.load(routed.export_onnx(tmp_path / "m", logits="last"))
    found = [list(one.token_ids) for one in loaded.generate(prompts, **OPTIONS[0])]
    assert found == [generating.greedy(model, own, 8) for own in prompts]
    for dtype in ("float16", "int8", "int4"):
        with pytest.raises(headrace.InputError, match=f"an export in {dtype} would stay in float32"):
            routed.export_onnx(tmp_path / dtype, dtype=dtype)


CROSSING = """
import json, sys
import headrace
model = headrace.load({folder!r})
made = [list(one.token_ids) for one in model.generate({prompts!r}, max_new_tokens=8, ignore_eos=True, beams=1)]
encoded = model.engine.lanes["cross"].executable.calls
loaded = {{name.split(".")[0] for name in sys.modules}}
print(json.dumps([made, encoded, sorted(loaded & {{"torch", "transformers", "onnx", "onnxscript"}})]))
"""


@pytest.fixture(scope="module")
def crossing(tiny: Any) -> Any:
    """`crossing(name)` is an encoder-decoder, lowered once."""
    return cache(lambda name: headrace.lower(tiny(name, HEAD), target="reference", tokenizer=gpt_like()))


MARIAN = pytest.mark.slow(reason="BART's layers with other positions, whose files bart's are")


@pytest.mark.parametrize(
    ("name", "profile"), [("t5", "std"), ("bart", "portable"), pytest.param("marian", "std", marks=MARIAN)]
)
def test_an_encoder_and_its_decoder_are_two_files(
    name: str, profile: str, tiny: Any, crossing: Any, tmp_path: Path
) -> None:
    """Without torch: the tokens of the eager model, each text encoded once."""
    model, prompts = tiny(name, HEAD), generating.prompts(96, 5, 17, 3, 11, seed=7)
    folder = Path(crossing(name).export_onnx(tmp_path / "m", task="generate", profile=profile))
    files = {path.name for path in (folder / "onnx").iterdir()}
    assert files == {"encoder_model.onnx", "decoder_model_merged.onnx"}
    assert not (folder / "genai_config.json").exists()
    replayed = [(passed, said) for passed, said in check_export(folder) if "targets" in said]
    assert len(replayed) == 2
    assert all(passed for passed, _ in replayed), replayed
    code = BLOCK + CROSSING.format(folder=str(folder), prompts=prompts)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    made, encoded, loaded = json.loads(ran.stdout.splitlines()[-1])
    assert loaded == []
    assert encoded == len(prompts)
    assert made == [generating.transformers_tokens(model, own, 8, eos_token_id=None) for own in prompts]


def test_a_decoder_is_run_as_deployment_tools_do(tiny: Any, crossing: Any, tmp_path: Path) -> None:
    """No mask or position of its own tokens; rows in the first step, what that made of them in those after it."""
    model = tiny("bart", HEAD)
    folder = Path(crossing("bart").export_onnx(tmp_path / "m", task="generate")) / "onnx"
    encoder, decoder = (
        ort.InferenceSession(str(folder / name), providers=["CPUExecutionProvider"])
        for name in ("encoder_model.onnx", "decoder_model_merged.onnx")
    )
    ids = np.array([[5, 6, 7, 8, 9]])
    given = {"encoder_attention_mask": np.ones_like(ids)}
    (given["encoder_hidden_states"],) = encoder.run(
        ["last_hidden_state"], {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    )
    taken = [one.name for one in decoder.get_inputs()]
    assert "decoder_attention_mask" not in taken
    pasts = [name for name in taken if name.startswith("past")]
    given |= {name: np.zeros((1, 4, 0, 8), np.float32) for name in pasts}
    token, made = model.config.decoder_start_token_id, list[int]()
    for _ in range(6):
        given |= {"input_ids": np.array([[token]]), "use_cache_branch": np.array([bool(made)])}
        logits, *presents = decoder.run(
            ["logits", *(name.replace("past_key_values", "present") for name in pasts)], given
        )
        given |= dict(zip(pasts, presents, strict=True))
        given["encoder_hidden_states"] = given["encoder_hidden_states"][:, :0]  # read in the first step alone
        token = int(logits[0, -1].argmax())
        made.append(token)
    # The last token that is asked for may be one that the configuration forces.
    assert made == generating.transformers_tokens(model, ids[0].tolist(), 8, eos_token_id=None)[:6]


def test_an_encoder_and_its_decoder_are_in_float32(crossing: Any, tmp_path: Path) -> None:
    with pytest.raises(headrace.InputError, match="An encoder with its decoder is exported in float32, not in int4"):
        crossing("t5").export_onnx(tmp_path / "m", task="generate", dtype="int4")
    assert not list(tmp_path.iterdir())


def test_options_that_are_none(lowered: Any, tmp_path: Path) -> None:
    with pytest.raises(headrace.InputError, match="logits is 'some'; choose from all, last"):
        lowered.export_onnx(tmp_path / "m", logits="some")
    with pytest.raises(headrace.TargetError, match="The profile fast tells real keys by their number"):
        lowered.export_onnx(tmp_path / "m", profile="fast")
    assert not list(tmp_path.iterdir())


def test_a_decoder_of_sound_needs_no_mask_of_it(tmp_path: Path) -> None:
    """Of arrays every row is real: the decoder's file takes a mask of the encoder's rows, and callers give none."""
    model = build("whisper", "WhisperForConditionalGeneration")
    lowered = headrace.lower(model, target="reference")
    folder = Path(lowered.export_onnx(tmp_path / "m", task="generate"))
    report = json.loads((folder / "verification.json").read_text())
    assert [check["name"] for check in report["checks"]].count("onnxruntime, arrays, in steps") == 2
    session = ort.InferenceSession(
        str(folder / "onnx" / "decoder_model_merged.onnx"), providers=["CPUExecutionProvider"]
    )
    assert {one.name for one in session.get_overridable_initializers()} == {
        "decoder_attention_mask", "encoder_attention_mask"
    }  # fmt: skip
    loaded, compiled = headrace.load(folder), lowered.compile(task="generate")
    (bins, frames) = (one.size for one in loaded.program.signature.arrays[0].axes[-2:])
    sounds = [*np.random.default_rng(0).standard_normal((2, bins, frames)).astype(np.float32)]
    found, right = (
        [one.token_ids for one in made.generate(sounds, max_new_tokens=8, ignore_eos=True)]
        for made in (loaded, compiled)
    )
    assert found == right
