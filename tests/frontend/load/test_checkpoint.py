"""What can be loaded and what is refused: each bad input is one clear LoadError."""

import json
import pickle
import shutil
import socket

import pytest
import torch
from torch import nn

from headrace.errors import LoadError
from headrace.frontend.load.checkpoint import load
from tests.tiny import build, config_of
from tests.words import bert_like

F32 = torch.float32


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder as `save_pretrained` writes it."""
    folder = tmp_path_factory.mktemp("saved") / "bert"
    build("bert").save_pretrained(folder)
    bert_like().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of it, to damage."""
    return shutil.copytree(saved, tmp_path / "bert")


def refused(source, **options):
    with pytest.raises(LoadError) as error:
        load(source, **({"dtype": F32} | options))
    text = str(error.value)
    assert "\n" not in text
    return text


def change(folder, **fields):
    """Write other values into config.json; None removes one."""
    path = folder / "config.json"
    kept = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: value for key, value in kept.items() if value is not None}))


def rows(module):
    with torch.no_grad():
        return module.eval()(torch.arange(5, 11)[None])[0]


def test_a_folder(folder):
    loaded = load(folder, dtype=F32)
    assert torch.equal(rows(loaded.module), rows(build("bert")))
    assert not loaded.module.training
    assert loaded.config is loaded.module.config
    assert loaded.tokenizer("w5 w6")["input_ids"] == [0, 5, 6, 2]
    assert (loaded.name, loaded.missing, loaded.sentence) == (str(folder), (), None)


def test_a_folder_by_a_string_and_without_a_tokenizer(folder):
    for file in folder.glob("token*"):
        file.unlink()
    assert load(str(folder), dtype=F32).tokenizer is None


def test_in_the_dtype_that_was_asked_for(folder):
    module = load(folder, dtype=torch.bfloat16).module
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}


def test_the_class_that_wrote_the_folder(tmp_path):
    build("bert", "AutoModelForTokenClassification", num_labels=3).save_pretrained(tmp_path)
    loaded = load(tmp_path, dtype=F32)
    assert loaded.module.num_labels == 3
    assert loaded.missing == ()


def test_weights_that_the_folder_lacks_are_named(folder):
    change(folder, architectures=["BertForSequenceClassification"])
    assert load(folder, dtype=F32).missing == ("classifier.bias", "classifier.weight")


def test_no_architectures_means_no_head(folder):
    change(folder, architectures=None)
    assert torch.equal(rows(load(folder, dtype=F32).module), rows(build("bert")))


def test_a_missing_folder(tmp_path):
    text = refused(tmp_path / "nothing")
    assert text.startswith(f"There is no folder {tmp_path / 'nothing'}.")
    assert "config.json, or a hub id (owner/name)" in text


def test_a_missing_relative_folder():
    assert refused("./nothing").startswith("There is no folder ./nothing.")


def test_a_file_instead_of_a_folder(folder):
    text = refused(folder / "model.safetensors")
    assert "is a file. Give the folder that holds config.json and the weights." in text


def test_no_config(folder):
    (folder / "config.json").unlink()
    assert refused(folder) == f"{folder} has no config.json. Give the folder that `save_pretrained` wrote."


@pytest.mark.parametrize("content", ["", "{", '{"model_type": "bert"', "[]", "\x00\xff"])
def test_a_corrupt_config(folder, content):
    (folder / "config.json").write_text(content)
    assert f"{folder / 'config.json'} cannot be read:" in refused(folder)


def test_an_unknown_model_type(folder):
    change(folder, model_type="never-heard-of")
    text = refused(folder)
    assert "cannot be read" in text
    assert "never-heard-of" in text


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert refused(folder).startswith(f"{folder} holds no weights (*.safetensors or *.bin).")


@pytest.mark.parametrize("keep", [0, 4, 200, 20_000])
def test_truncated_weights(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert f"{folder} cannot be read:" in refused(folder)


@pytest.mark.parametrize("content", [b"not weights at all", b"\xff" * 100])
def test_corrupt_weights(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    assert f"{folder} cannot be read:" in refused(folder)


def test_weights_of_another_shape(folder):
    change(folder, type_vocab_size=5, intermediate_size=48)
    text = refused(folder)
    assert text.startswith(
        f"{folder}: weights of another shape than config.json says: embeddings.token_type_embeddings"
    )
    assert "encoder.layer.0.intermediate.dense.bias" in text
    assert text.endswith(" ....")


def test_an_architecture_that_transformers_lacks(folder):
    change(folder, architectures=["BertForTeleportation"])
    text = refused(folder)
    assert text.startswith("config.json names the class BertForTeleportation, which transformers")
    assert "pass trust_remote_code=True" in text


@pytest.mark.parametrize("name", ["pipeline", "AutoConfig", "__version__", "models"])
def test_an_architecture_that_is_no_model(folder, name):
    """Any attribute of transformers can be written there."""
    change(folder, architectures=[name])
    refused(folder)


def test_code_of_its_own_is_not_run_unasked(folder):
    (folder / "code.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    own = {"AutoConfig": "code.Config", "AutoModel": "code.Model"}
    change(folder, model_type="its-own", architectures=["Model"], auto_map=own)
    text = refused(folder)
    assert f"{folder} needs its own Python code (auto_map in config.json)." in text
    assert "Read that code, then pass trust_remote_code=True" in text
    assert not (folder / "ran").exists()


def test_code_beside_a_known_type_is_not_run_either(folder):
    (folder / "code.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    change(folder, architectures=["Model"], auto_map={"AutoModel": "code.Model"})
    assert "names the class Model" in refused(folder)
    assert not (folder / "ran").exists()


def as_bin(folder):
    """The same weights in the older form."""
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_bin_weights(folder):
    as_bin(folder)
    assert torch.equal(rows(load(folder, dtype=F32).module), rows(build("bert")))


class Malice:
    """Unpickled without care, it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("legacy", [False, True])
def test_a_malicious_pickle_is_refused_and_nothing_runs(folder, legacy):
    as_bin(folder)
    state = {"embeddings.word_embeddings.weight": Malice(folder / "ran")}
    if legacy:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(state))
    else:
        torch.save(state, folder / "pytorch_model.bin")
    assert f"{folder} cannot be read:" in refused(folder)
    assert not (folder / "ran").exists()


def test_the_malice_would_run_if_it_were_unpickled(folder):
    """Else the test above could not fail."""
    pickle.loads(pickle.dumps(Malice(folder / "ran"))).close()
    assert (folder / "ran").exists()


@pytest.fixture
def no_network(monkeypatch):
    """Any attempt to connect is recorded."""
    tried = []

    def connect(*args):
        tried.append(args)
        raise OSError("the test has no network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    return tried


@pytest.mark.parametrize("name", ["sentence-transformers/all-MiniLM-L6-v2", "gpt2"])
def test_a_hub_id_offline(name, no_network, monkeypatch, tmp_path):
    """conftest.py sets HF_HUB_OFFLINE, which the hub's client reads when it is imported."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert constants.HF_HUB_OFFLINE
    text = refused(name)
    assert text.startswith(f"There is no folder {name}, and the model hub gave no model of that name (")
    assert "Check the spelling and the network, or give the folder of a downloaded model." in text
    assert no_network == []


@pytest.mark.parametrize("name", ["a b/c", "x/y/z", "../up", "", "name with spaces", "owner/na:me"])
def test_what_is_no_hub_id_is_not_asked_for(name, no_network):
    text = refused(name) if name else "There is no folder"
    assert text.startswith("There is no folder")
    assert no_network == []


def test_a_tower_where_there_is_no_router(folder):
    assert f"{folder} has no Router, and so no tower 'query'. Leave it out." in refused(folder, tower="query")
    assert "The BertModel has no Router, and so no tower 'query'" in refused(build("bert"), tower="query")


def test_a_module():
    module = build("bert")
    loaded = load(module, dtype=F32)
    assert loaded.module is module
    assert loaded.config is module.config
    assert loaded.name == "a BertModel module"


def test_a_module_keeps_its_mode():
    module = build("bert").train()
    load(module, dtype=F32)
    assert module.training


def test_a_module_in_another_dtype():
    text = refused(build("bert"), dtype=torch.bfloat16)
    assert text.startswith("The module's weights are float32, but bfloat16 was asked for. Load it with dtype=bfloat16")
    assert 'pass dtype="float32"' in text


def test_a_module_that_keeps_some_weights_in_float32():
    module = build("bert").to(torch.bfloat16)
    module.pooler.to(F32)
    assert load(module, dtype=torch.bfloat16).module is module


def test_a_module_without_a_config():
    module = nn.Sequential(nn.Embedding(9, 4))
    assert load(module, dtype=F32).config is None


def test_the_config_is_found_inside_a_wrapper():
    inner = build("bert")
    assert load(nn.ModuleList([inner]), dtype=F32).config is inner.config


def test_a_tokenizer_by_its_folder_or_as_it_is(folder):
    given = bert_like()
    assert load(build("bert"), dtype=F32, tokenizer=given).tokenizer is given
    assert load(build("bert"), dtype=F32, tokenizer=folder).tokenizer("w7")["input_ids"] == [0, 7, 2]


def test_a_folder_that_holds_no_tokenizer(tmp_path):
    assert f"{tmp_path} cannot be read" in refused(build("bert"), tokenizer=tmp_path)


def test_names_do_not_leak_into_the_config_hash(folder):
    from headrace.frontend.facts.config_claims import config_hash

    one, other = config_of("bert"), config_of("bert")
    other.architectures, other._name_or_path = ["Renamed"], "elsewhere"
    assert config_hash(one) == config_hash(other)
    assert config_hash(one) != config_hash(config_of("bert", intermediate_size=48))


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("named", ["flash_attention_2", "no_such", 3])
def test_an_attention_implementation_that_is_not_here(folder, key, named):
    """Tracing brings its own, so that it does not matter which one the folder was used with."""
    change(folder, **{key: named})
    assert torch.equal(rows(load(folder, dtype=F32).module), rows(build("bert")))


def test_a_head_whose_class_is_not_named(tmp_path):
    build("bert", "AutoModelForSequenceClassification", num_labels=3).save_pretrained(tmp_path)
    change(tmp_path, architectures=None)
    text = refused(tmp_path)
    assert "names no class in architectures" in text
    assert "classifier.bias, classifier.weight" in text


def test_a_bare_model_whose_class_is_not_named(folder):
    change(folder, architectures=None)
    assert torch.equal(rows(load(folder, dtype=F32).module), rows(build("bert")))


@pytest.mark.parametrize("names", ["BertModel", [None], [3], {"a": 1}, ["pipeline"], ["BertConfig"], ["nn"]])
def test_architectures_that_name_no_model(folder, names):
    change(folder, architectures=names)
    text = refused(folder)
    assert f"architectures in {folder}" in text or "does not have as a model" in text


def test_weights_that_were_not_fetched(folder):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (folder / "model.safetensors").write_bytes(pointer)
    assert "git lfs pull" in refused(folder)


def test_a_damaged_tokenizer_is_named(folder):
    (folder / "tokenizer.json").write_text("{")
    assert f"The tokenizer of {folder} cannot be read: JSONDecodeError" in refused(folder)
