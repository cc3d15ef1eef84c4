"""What a folder's weights become: all of them find their place, or are named; the folder's own code is run or named."""

from __future__ import annotations

import json
import shutil
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace.errors import HeadraceWarning, LoadError
from headrace.frontend.load import adapters
from headrace.frontend.load.checkpoint import load
from tests.tiny import build
from tests.words import bert_like

F32 = torch.float32
IDS = torch.arange(5, 11)[None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "bert"
    build("bert").save_pretrained(folder)
    bert_like().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of it, to change."""
    return shutil.copytree(saved, tmp_path / "bert")


def change(folder: Path, name: str = "config.json", **fields: Any) -> None:
    path = folder / name
    kept = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: value for key, value in kept.items() if value is not None}))


def rename(folder: Path, how: Any, bin_: bool = False) -> None:
    """Give every weight another name."""
    weights = {how(name): value for name, value in load_file(folder / "model.safetensors").items()}
    if bin_:
        (folder / "model.safetensors").unlink()
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def rows(module: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = module.eval()(IDS)[0]
        return found


def loaded_quietly(folder: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", HeadraceWarning)
        return load(folder, dtype=F32, **options)


def warned(folder: Path, **options: Any) -> tuple[Any, str]:
    with pytest.warns(HeadraceWarning) as said:
        found = load(folder, dtype=F32, **options)
    return found, str(next(one.message for one in said if one.category is HeadraceWarning))


@pytest.mark.parametrize(("layers", "count"), [(0, 32), (1, 16)])
def test_weights_without_a_place_are_named_and_counted(folder, layers, count):
    change(folder, num_hidden_layers=layers)
    _, text = warned(folder)
    assert text.startswith(f"{count} weights of {folder} have no place in the model that its configuration describes")
    assert f"left out: encoder.layer.{layers}.attention.output.LayerNorm.bias, " in text
    assert ", encoder.layer." in text.split(" ...", 1)[0]


def test_weights_of_a_head_that_the_class_lacks_are_named(tmp_path):
    build("bert", "AutoModelForSequenceClassification").save_pretrained(tmp_path)
    change(tmp_path, architectures=["BertModel"])
    assert "2 weights" in warned(tmp_path)[1]


def test_what_transformers_itself_leaves_out_is_not_named(folder):
    """Older versions wrote the positions' numbers."""
    weights = load_file(folder / "model.safetensors") | {"embeddings.position_ids": torch.arange(64)[None]}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    loaded_quietly(folder)


@pytest.fixture
def headed(tmp_path):
    """Sentence-transformers' folder over a masked LM: the head is not read."""
    folder = tmp_path / "headed"
    build("bert", "AutoModelForMaskedLM").save_pretrained(folder)
    bert_like().save_pretrained(folder)
    modules = [("", "Transformer"), ("1", "Pooling")]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text('{"word_embedding_dimension": 32, "pooling_mode": "mean"}')
    return folder


def test_a_head_is_left_out_of_the_base_model_in_silence(headed):
    loaded_quietly(headed)


def test_the_base_models_own_weights_are_not_taken_for_a_heads(headed):
    change(headed, num_hidden_layers=1)
    assert warned(headed)[1].startswith("16 weights")


@pytest.mark.parametrize("bin_", [False, True], ids=["safetensors", "bin"])
@pytest.mark.parametrize(
    "how",
    [
        lambda name: f"module.{name}",
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module._orig_mod.{name}",
        lambda name: name.replace("encoder.", "encoder._orig_mod."),
    ],
    ids=["DataParallel", "compile", "both", "a part compiled"],
)
def test_weights_of_a_wrapped_module_are_read(folder, how, bin_):
    rename(folder, how, bin_)
    found = loaded_quietly(folder)
    assert found.missing == ()
    assert torch.equal(rows(found.module), rows(build("bert")))


def test_a_prefix_that_nobody_knows_is_named(folder):
    rename(folder, lambda name: f"wrapper.{name}")
    found, text = warned(folder)
    assert "39 weights" in text
    assert "wrapper.embeddings" in text
    assert len(found.missing) == 39


# Code of the folder's own.

OWN = """
from transformers import {base}


class {base}({base}):
    def forward(self, *args, **options):
        found = super().forward(*args, **options)
        found["last_hidden_state"] = found["last_hidden_state"] + 1
        return found
"""


def with_code(folder: Path, kind: str, base: str) -> None:
    (folder / "own.py").write_text(OWN.format(base=base))
    change(folder, auto_map={kind: f"own.{base}"})


def test_f6_the_folders_class_is_taken_before_transformers_of_that_name(folder):
    with_code(folder, "AutoModel", "BertModel")
    found = loaded_quietly(folder, trust_remote_code=True)
    assert torch.allclose(rows(found.module), rows(build("bert")) + 1)


def test_f6_the_folders_class_in_a_sentence_transformers_folder(headed):
    with_code(headed, "AutoModel", "BertModel")
    plain, text = warned(headed)
    assert "auto_map: AutoModel: own.BertModel" in text
    assert torch.allclose(rows(loaded_quietly(headed, trust_remote_code=True).module), rows(plain.module) + 1)


def test_f6_without_trust_it_is_said(folder):
    with_code(folder, "AutoModel", "BertModel")
    found, text = warned(folder)
    assert text == (
        f"{folder / 'config.json'} names code of its own (auto_map: AutoModel: own.BertModel), which is not run: "
        "transformers' own classes answer, perhaps otherwise. Read that code, then pass trust_remote_code=True to run "
        "it."
    )
    assert torch.equal(rows(found.module), rows(build("bert")))


def test_f6_a_configuration_or_tokenizer_of_its_own_is_said_too(folder):
    change(folder, auto_map={"AutoConfig": "own.BertConfig"})
    assert "(auto_map: AutoConfig: own.BertConfig)" in warned(folder)[1]
    change(folder, auto_map=None)
    change(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Slow", "own.Fast"]})
    assert "AutoTokenizer: ['own.Slow', 'own.Fast']" in warned(folder)[1]


def test_f6_code_for_what_is_not_loaded_is_no_matter(folder):
    with_code(folder, "AutoModelForCausalLM", "BertLMHeadModel")
    loaded_quietly(folder)


# Adapters.


def with_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/base", "peft_type": "LORA"}')
    save_file({"base_model.model.x": torch.zeros(1)}, folder / "adapter_model.safetensors")


def refusal(folder: Path) -> str:
    with pytest.raises(LoadError) as refused:
        load(folder, dtype=F32)
    return str(refused.value)


@pytest.mark.parametrize("left", [(), ("config.json",)])
def test_f10_an_adapter_alone_says_what_it_is_and_names_its_base(folder, left):
    with_adapter(folder)
    for path in folder.iterdir():
        if not path.name.startswith("adapter_") and path.name not in left:
            path.unlink()
    text = refusal(folder)
    assert text.startswith(f"{folder} is an adapter (adapter_config.json) of the model somebody/base, and no model.")
    assert "merge_and_unload()" in text


def test_f10_an_adapter_beside_weights_is_refused_without_peft(folder, monkeypatch):
    with_adapter(folder)
    monkeypatch.setattr(adapters, "is_peft_available", lambda: False)
    text = refusal(folder)
    assert "holds an adapter (adapter_config.json) beside the weights of its base, and peft" in text
    assert "pip install peft" in text


@pytest.mark.parametrize("wrong", ["mismatched_keys", "unexpected_keys", "missing_keys"])
def test_f10_an_adapter_that_does_not_fit_is_refused(folder, monkeypatch, wrong):
    with_adapter(folder)
    found = types.SimpleNamespace(**{wrong: {"encoder.lora_A"}})
    monkeypatch.setattr(adapters, "is_peft_available", lambda: True)
    monkeypatch.setattr("transformers.PreTrainedModel.load_adapter", lambda *_args, **_options: found)
    assert f"the adapter does not fit its base, by {wrong.replace('_', ' ')} encoder.lora_A." in refusal(folder)


def test_f10_with_peft_the_adapter_answers(folder):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    adapted = peft.get_peft_model(build("bert"), settings)
    adapted.peft_config["default"].base_model_name_or_path = "somebody/base"
    adapted.save_pretrained(folder)
    found = loaded_quietly(folder)
    assert torch.equal(rows(found.module), rows(adapted))
    assert (rows(found.module) - rows(build("bert"))).abs().max() > 0.1
    assert "peft" in sys.modules
