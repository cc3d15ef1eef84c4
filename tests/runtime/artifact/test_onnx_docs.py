"""Every Python and Node line of docs/onnx.md runs, in order and in one folder, and all answer alike."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")

from tests.conformance.test_real_weights import folder

DOCS = (Path(__file__).parents[3] / "docs" / "onnx.md").read_text()
SNIPPETS = {kind: re.findall(rf"```{kind}\n(.*?)```", DOCS, re.DOTALL) for kind in ("python", "js")}
MODULES = "HEADRACE_NODE_MODULES"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder that the Python snippets ran in, and the names that they bound."""
    folder("minilm")  # fails where the weights cannot be had
    where, names = tmp_path_factory.mktemp("docs"), dict[str, Any]()
    before = Path.cwd()
    os.chdir(where)
    try:
        for number, snippet in enumerate(SNIPPETS["python"]):
            exec(compile(snippet, f"docs/onnx.md, Python snippet {number}", "exec"), names)
    finally:
        os.chdir(before)
    return where, names


def test_python(ran: tuple[Path, dict[str, Any]]) -> None:
    """S3: the plain consumer's vectors are the model's."""
    _, names = ran
    assert names["vectors"].shape == (2, 384)
    assert np.abs(names["plain"] - names["vectors"]).max() <= 1e-5


def test_a_consumer_that_pools_by_itself(ran: tuple[Path, dict[str, Any]]) -> None:
    """As sentence-transformers does: the mean of `last_hidden_state` over the mask, at unit length."""
    _, names = ran
    (rows,) = names["session"].run(["last_hidden_state"], names["feed"])
    mask = names["feed"]["attention_mask"][:, :, None]
    means = (rows * mask).sum(1) / mask.sum(1)
    unit = means / np.linalg.norm(means, axis=1, keepdims=True)
    assert (unit * names["vectors"]).sum(1).min() >= 1 - 1e-6


def test_sentence_transformers(ran: tuple[Path, dict[str, Any]]) -> None:
    """S3: cosine 1 with the library that the folder comes from."""
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    _, names = ran
    texts = ["A kitten naps in the sun.", "The cat sleeps."]
    wanted = library.SentenceTransformer(str(folder("minilm")), device="cpu").encode(texts)
    assert (wanted * names["vectors"]).sum(1).min() >= 1 - 1e-6
    assert (wanted * names["plain"]).sum(1).min() >= 1 - 1e-6


def test_node(ran: tuple[Path, dict[str, Any]]) -> None:
    """The folder unchanged in Transformers.js: cosine 1."""
    where, names = ran
    modules = os.environ.get(MODULES, "")
    if not shutil.which("node") or not (Path(modules) / "@huggingface" / "transformers").is_dir():
        pytest.skip(
            f"needs node, and {MODULES} set to a node_modules with Transformers.js: "
            "npm install --ignore-scripts @huggingface/transformers"
        )
    (where / "node_modules").symlink_to(Path(modules).absolute())
    (where / "run.mjs").write_text("".join(SNIPPETS["js"]))
    found = subprocess.run(["node", "run.mjs"], cwd=where, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == 0, found.stderr
    vectors = np.array(json.loads(found.stdout.splitlines()[-1]), np.float32)
    assert (vectors * names["vectors"]).sum(1).min() >= 1 - 1e-6


def test_links_and_commands() -> None:
    import typer

    from headrace.runtime.tools.cli.app import app

    assert set(re.findall(r"^headrace ([\w-]+)", DOCS, re.MULTILINE)) <= set(typer.main.get_command(app).commands)
