"""Several answers of one pass: BGE-M3's folders beside what FlagEmbedding computes of each text alone, and others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import InputError, LoadError, TaskNotEnabledError
from headrace.ir import OutputKind, Task
from headrace.runtime.tasks.sparse_embed import SparseVectors, of_tokens
from tests.flag_embedding import MODULES, FlagEmbedding, write_folder, xlm_roberta_like
from tests.tiny import build
from tests.words import bert_like

TASKS = ("embed", "sparse_embed", "multi_embed")
# Twice the same word, an unknown one, a special token in the text, nothing, and the longest that the model takes.
TEXTS = ["w5 w6 w5 w7", "nothing w9", "<s> w8 w8", "", " ".join(f"w{5 + i % 80}" for i in range(58)), "w20 w21 w22"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: Any) -> dict[str, Path]:
    root: Path = tmp_path_factory.mktemp("m3")
    return {kind: write_folder(root / kind, kind == "modules") for kind in ("plain", "modules")}


@pytest.fixture(scope="module")
def m3(folders: dict[str, Path]) -> Any:
    return headrace.compile(folders["modules"], target="reference")


def require_flag_embedding(found: dict[str, Any], folder: Path) -> None:
    for place, (dense, lexical, vectors) in enumerate(map(FlagEmbedding(folder).encode, TEXTS)):
        np.testing.assert_allclose(found["embed"][place], dense, atol=1e-5)
        sparse = found["sparse_embed"][place]
        assert sparse.indices.tolist() == sorted(lexical)
        np.testing.assert_allclose(sparse.weights, [lexical[index] for index in sorted(lexical)], atol=1e-5)
        np.testing.assert_allclose(found["multi_embed"][place], vectors, atol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "modules"])
def test_three_answers_of_one_pass(kind: str, folders: dict[str, Path]) -> None:
    """In a batch, each as FlagEmbedding answers the text alone; the model ran once: the long text, and the others."""
    model = headrace.compile(folders[kind], target="reference")
    assert list(model.tasks) == ["embed", "multi_embed", "sparse_embed", "token_embed"]
    found = model.run(TEXTS, TASKS)
    executable = model.engine.joint_lane(TASKS).executable
    steps = executable.calls
    assert steps == 2
    assert list(found) == ["token_ids", *TASKS]
    assert isinstance(found["sparse_embed"], SparseVectors)
    require_flag_embedding(found, folders[kind])
    tokenizer = xlm_roberta_like()
    assert [ids.tolist() for ids in found["token_ids"]] == [tokenizer(text)["input_ids"] for text in TEXTS]
    one = model.run(TEXTS[0], TASKS)
    np.testing.assert_allclose(one["multi_embed"][0], found["multi_embed"][0], atol=1e-6)
    assert executable.calls == steps + 1
    # Alone, tasks that have no code of their own are answered by the same.
    np.testing.assert_allclose(model.embed(TEXTS), found["embed"], atol=1e-6)
    for got, wanted in zip(model.multi_embed(TEXTS, side="query"), found["multi_embed"], strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)
    np.testing.assert_allclose(np.asarray(model.sparse_embed(TEXTS)), np.asarray(found["sparse_embed"]), atol=1e-6)
    assert list(model.engine.lanes) == ["embedding", "embedding+lexical_weights+multi_embedding"]
    assert executable.calls == 3 * steps + 1


def test_answers_are_compared_by_what_they_are(m3: Any) -> None:
    """As FlagEmbedding scores pairs: dense by their product, weights by those of shared tokens, vectors by MaxSim."""
    found = m3.run(TEXTS, TASKS)
    dense, sparse, many = (found[task] for task in TASKS)
    # Summed in float64, as ours are: products in float32 are themselves off by more than the last place.
    rows, weights = dense.astype(np.float64), sparse.csr().astype(np.float64)
    np.testing.assert_allclose(m3.similarity(dense, dense), rows @ rows.T, rtol=1e-6)
    np.testing.assert_allclose(m3.similarity(sparse, sparse), (weights @ weights.T).todense(), rtol=1e-6)
    wanted = [[(q @ d.T).max(1).sum() / len(q) for d in many] for q in many]
    np.testing.assert_allclose(m3.similarity(many, many), wanted, atol=1e-6)
    assert m3.sparse_words(sparse, top=1)[0][0][0] in ("w5", "w6", "w7")


def test_saved_and_packed_models_answer_in_one_pass(m3: Any, folders: dict[str, Path], tmp_path: Path) -> None:
    from headrace.backends.reference import Reference
    from headrace.ir import Layout
    from headrace.runtime.engine.engine import Engine

    m3.run(TEXTS, TASKS)
    loaded = headrace.load(m3.save(tmp_path / "m"))
    require_flag_embedding(loaded.run(TEXTS, TASKS), folders["modules"])
    np.testing.assert_allclose(loaded.embed(TEXTS), m3.embed(TEXTS), atol=1e-6)
    with pytest.raises(headrace.ArtifactError, match=r"holds executables for embedding.*token_embed needs another"):
        loaded.token_embed(TEXTS)
    with pytest.raises(headrace.ArtifactError, match="Compile the model, run these together, and save it again"):
        loaded.run(TEXTS, ("embed", "token_embed"))
    packed = headrace.compile(folders["plain"], target="reference")
    packed.engine = Engine(packed.program, Reference(Layout.PACKED))
    require_flag_embedding(packed.run(TEXTS, TASKS), folders["plain"])
    lane = packed.engine.joint_lane(TASKS)
    assert lane.program.form.layout is Layout.PACKED
    assert lane.executable.calls == 1


@pytest.mark.parametrize("target", ["cpu", "onnx"])
@pytest.mark.slow(reason="test_three_answers_of_one_pass")
def test_compiled_targets_answer_in_one_pass(target: str, folders: dict[str, Path], tmp_path: Path) -> None:
    model = headrace.compile(folders["modules"], target=target)
    require_flag_embedding(model.run(TEXTS, TASKS), folders["modules"])
    loaded = headrace.load(model.save(tmp_path / "m"))
    require_flag_embedding(loaded.run(TEXTS, TASKS), folders["modules"])
    assert loaded.engine.joint_lane(TASKS).executable.calls > 0


def test_an_exported_model_returns_all_in_one_pass(m3: Any, folders: dict[str, Path], tmp_path: Path) -> None:
    import onnxruntime

    loaded = headrace.load(m3.export_onnx(tmp_path / "m"))
    require_flag_embedding(loaded.run(TEXTS, TASKS), folders["modules"])
    outputs = onnxruntime.InferenceSession(tmp_path / "m" / "onnx" / "model.onnx").get_outputs()
    assert {"sentence_embedding", "lexical_weights", "multi_vectors"} < {one.name for one in outputs}


def test_ids_rows_and_vector_of_one_pass(tmp_path: Path) -> None:
    """Of a plain encoder: everything that a pass makes, whose places agree."""
    build("bert").save_pretrained(tmp_path)
    bert_like(model_max_length=40).save_pretrained(tmp_path)
    model = headrace.compile(tmp_path, target="reference", pooling="mean")
    found = model.run(["w5 w6", "w7 w8 w9"], ("embed", "token_embed"))
    assert model.engine.joint_lane(("token_embed", "embed")).executable.calls == 1
    for vector, rows, ids in zip(found["embed"], found["token_embed"], found["token_ids"], strict=True):
        assert len(rows) == len(ids)
        np.testing.assert_allclose(rows.mean(0), vector, atol=1e-6)
    assert found["token_ids"][0].tolist() == [0, 5, 6, 2]
    nothing = model.run([], ("embed", "token_embed"))
    assert (nothing["embed"].shape, nothing["token_embed"], nothing["token_ids"]) == ((0, 32), [], [])


def test_arrays_share_a_pass(compiled: Any) -> None:
    model = compiled("vit", "AutoModel", "reference", pooling="cls")
    images = np.random.default_rng(0).standard_normal((2, 3, 24, 24)).astype(np.float32)
    found = model.run(images, ("embed", "token_embed"))
    assert list(found) == ["embed", "token_embed"]
    np.testing.assert_allclose(found["embed"], [rows[0] for rows in found["token_embed"]], atol=1e-6)


def test_what_shares_no_pass_is_refused(m3: Any, compiled: Any) -> None:
    for tasks in ("embed", (), 3, ("embed", "nothing"), None):
        with pytest.raises(InputError, match=r"several names of tasks are accepted.*multi_embed"):
            m3.run(TEXTS, tasks)
    with pytest.raises(TaskNotEnabledError, match="Choose one of: embed, multi_embed"):
        m3.run(TEXTS, ("embed", "classify"))
    tagger = compiled("bert", "AutoModelForTokenClassification", "reference")
    with pytest.raises(InputError, match=r"token_classify reads its texts in a way of its own.*embed, token_embed"):
        tagger.run(TEXTS, ("token_classify",))


def test_the_layers_are_read_with_care(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", modules=True)
    torch.save({"other": torch.ones(1)}, folder / "sparse_linear.pt")
    with pytest.raises(LoadError, match=r"sparse_linear\.pt holds other; the weight"):
        headrace.trace(folder)
    listed = MODULES["modules.json"][:1]
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(LoadError, match="stand beside modules that pool a text"):
        headrace.trace(folder)
    (folder / "modules.json").unlink()
    (folder / "sparse_linear.pt").unlink()
    program = headrace.trace(folder).program
    assert program.evidence.declared_tasks == (Task.EMBED, Task.MULTI_EMBED, Task.TOKEN_EMBED)
    assert program.signature.output(OutputKind.LEXICAL_WEIGHTS) is None


def test_the_greatest_weight_of_each_token() -> None:
    made = of_tokens(np.array([9, 0.5, 0.75, 0, 0.25], np.float32), np.array([0, 7, 5, 6, 7]), (0,))
    assert (made.indices.tolist(), made.weights.tolist()) == ([5, 7], [0.75, 0.5])
