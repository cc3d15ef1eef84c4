"""Every line of ours in docs/coming-from.md runs, and theirs where the package is there; what both name is equal."""

from __future__ import annotations

import importlib.util
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import build
from tests.trained import trained, wrapped

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from.md").read_text()
ROW = re.compile(r"^\| `(.+?)` \| `(.+?)` \|$", re.MULTILINE)
SECTIONS = {title: ROW.findall(body) for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)}
OPENING, LAST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
# What a section's lines of theirs import; of the others they are commands, or have no package in the tests.
THEIRS = {
    "sentence-transformers: change the import": "sentence_transformers",
    "sentence-transformers: by our names": "sentence_transformers",
    "transformers' pipelines": "transformers",
    "vLLM's pooling models": "vllm",
    "fastembed": "fastembed",
    "Optimum's ONNX models": "optimum",
}
# What was traced, for all sections.
LOWERED: dict[str, Any] = {}
WIDE = {"vocab_size": 200, "num_hidden_layers": 1}
NAMES = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
ENTITIES = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}, "label2id": {"O": 0, "B-PER": 1, "I-PER": 2}}
HEADS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ms-marco-MiniLM-L6-v2": ("bert", "AutoModelForSequenceClassification", {"num_labels": 1}),
    "sst2": ("bert", "AutoModelForSequenceClassification", {"num_labels": 2}),
    "bert-base-NER": ("bert", "AutoModelForTokenClassification", ENTITIES),
    "bert-base-uncased": ("bert", "AutoModelForMaskedLM", {}),
    "SmolLM2-135M": ("llama", "AutoModelForCausalLM", {}),
}


def tokenizer(kind: str = "bert") -> Any:
    from tokenizers import processors

    backend = trained("wordpiece")
    if kind == "bert":
        ids = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
        )
    made = wrapped(backend, model_max_length=64, **NAMES)
    if kind == "bert":
        made.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return made


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that the page names, small and random, where it names them: in the working folder."""
    from sentence_transformers import SentenceTransformer, SparseEncoder
    from sentence_transformers.sentence_transformer.modules import Normalize

    root = tmp_path_factory.mktemp("models")
    for name, (kind, head, options) in HEADS.items():
        build(kind, head, **WIDE, **options).save_pretrained(root / name)
        tokenizer(kind).save_pretrained(root / name)
    build("bert", **WIDE).save_pretrained(root / "bare")
    tokenizer().save_pretrained(root / "bare")
    model = SentenceTransformer(str(root / "bare"), device="cpu", prompts={"query": "query: ", "document": ""})
    model.append(Normalize())
    model.save_pretrained(str(root / "all-MiniLM-L6-v2"))
    SparseEncoder(str(root / "bert-base-uncased"), device="cpu").save_pretrained(str(root / "splade"))
    return root


@pytest.fixture
def here(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with these models; what is compiled for this machine's best target runs on the reference."""
    from headrace import backends
    from headrace.runtime import api

    find, lower, kept = backends.backend, api.lower, {"auto", "cpu"}

    def traced_once(model: Any, **options: Any) -> Any:
        key = repr((str(model), sorted(options.items())))
        if key not in LOWERED:
            LOWERED[key] = lower(model, **options)
        return LOWERED[key]

    monkeypatch.setattr(api, "lower", traced_once)
    monkeypatch.setattr(api, "find_backend", lambda target, **o: find("reference" if target in kept else target, **o))
    shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield tmp_path


def ran(line: str, names: dict[str, Any], where: str) -> None:
    exec(compile(line, where, "exec"), names)


def numbers(found: Any) -> Any:
    """Of whatever library it comes, as numpy's or Python's."""
    if hasattr(found, "to_dense"):
        found = found.to_dense()
    if hasattr(found, "detach"):
        found = found.detach().numpy()
    if isinstance(found, (list, tuple)) and found and hasattr(found[0], "shape"):
        return [numbers(one) for one in found]
    return found


def require_equal(ours: Any, theirs: Any) -> None:
    ours, theirs = numbers(ours), numbers(theirs)
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs)
        for key, value in theirs.items():
            require_equal(ours[key], value)
    elif isinstance(theirs, str):
        assert ours == theirs
    elif isinstance(theirs, (list, tuple)) and any(not isinstance(one, (int, float)) for one in theirs):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            require_equal(one, other)
    else:
        np.testing.assert_allclose(np.asarray(ours, float), np.asarray(theirs, float), atol=1e-4)


@pytest.mark.parametrize("section", THEIRS | {"Text Embeddings Inference": ""})
def test_lines(section: str, here: Path) -> None:
    """Each pair of lines, in order; what they assign is compared where theirs can be run."""
    ours: dict[str, Any] = {}
    ran(OPENING, ours, "the opening")
    theirs = {name: ours[name] for name in ("texts", "text", "query", "documents", "pairs")}
    package = THEIRS.get(section)
    runs = bool(package) and importlib.util.find_spec(package) is not None
    compared = 0
    assert SECTIONS[section]
    for left, right in SECTIONS[section]:
        ran(right, ours, f"{section}: {right}")
        if not runs:
            continue
        ran(left, theirs, f"{section}: {left}")
        name = re.match(r"(\w+) = ", left)
        if (
            name is not None
            and right.startswith(name[0])
            and not callable(theirs[name[1]])
            and _is_answer(theirs, name[1])
        ):
            require_equal(ours[name[1]], theirs[name[1]])
            compared += 1
    assert not runs or compared >= 6


def _is_answer(names: dict[str, Any], name: str) -> bool:
    return not hasattr(names[name], "encode") and not hasattr(names[name], "predict")


def test_other_packages(here: Path) -> None:
    pytest.importorskip("keybert")
    pytest.importorskip("langchain_core")
    names: dict[str, Any] = {}
    ran(OPENING, names, "the opening")
    ran(LAST, names, "KeyBERT, LangChain and MTEB")
    assert names["keywords"]
    assert len(names["found"]) == 1


def test_every_section_is_run() -> None:
    assert set(SECTIONS) == {*THEIRS, "Text Embeddings Inference", "KeyBERT, LangChain and MTEB"}
    assert sum(map(len, SECTIONS.values())) == len(re.findall(r"^\| `", PAGE, re.MULTILINE))
