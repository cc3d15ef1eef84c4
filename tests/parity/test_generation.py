"""Bundles of a generation: recorded by definition, checked step by step on targets, and old bundles beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.backends import backend
from headrace.runtime.tools.parity.bundle import Bundle, read_bundle
from headrace.runtime.tools.parity.check.checking import check, measure_bundle
from headrace.runtime.tools.parity.record.generation import NEW, pieces_of
from headrace.runtime.tools.parity.record.programs import Tracing
from headrace.runtime.tools.parity.record.recording import record
from headrace.runtime.tools.parity.report.text import report_text
from tests.tiny import build

HEAD = "AutoModelForCausalLM"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`recorded(name, dtype)` is a bundle of a tiny model's generation."""
    made = dict[tuple[str, str], Path]()

    def of(name: str, dtype: str = "float32") -> Path:
        if (name, dtype) not in made:
            base = tmp_path_factory.mktemp("generation")
            build(name, HEAD).save_pretrained(base / name)
            result = record(base / name, base / "bundle", task="generate", target="reference", precisions=[dtype])
            assert result.passed, report_text([result])
            made[name, dtype] = base / "bundle"
        return made[name, dtype]

    return of


WINDOWS = pytest.mark.slow(reason="onnx/test_past.py makes gemma3's tokens on the engine; llama and lfm2 are checked")


@pytest.mark.parametrize("name", ["llama", pytest.param("gemma3", marks=WINDOWS), "lfm2"])
def test_onnx_passes(name: str, recorded: Callable[..., Path]) -> None:
    """Other code, which passes without being equal: keys, values and states of short convolutions."""
    result = check(recorded(name), target="onnx")
    assert result.passed, report_text([result])
    (run,) = result.runs
    assert any(reading.error != reading.floor for reading in run.readings)
    named = {reading.node.split()[0] for reading in run.readings}
    assert named == {"keys", "values", "generate"} | ({"state"} if name == "lfm2" else set())


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    ["cpu", pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("rocm", marks=pytest.mark.rocm)],
)
@pytest.mark.parametrize(("name", "dtype"), [("llama", "float32"), ("qwen3", "bfloat16"), ("gemma3", "float32")])
def test_compiled_targets_pass(name: str, dtype: str, target: str, recorded: Callable[..., Path]) -> None:
    result = check(recorded(name, dtype), target=target)
    assert result.passed, report_text([result])


def test_a_bundle_holds_prompts_in_pieces_and_the_tokens_that_follow(recorded: Callable[..., Path]) -> None:
    bundle = read_bundle(recorded("llama"))
    pieces = [pieces_of(one) for one in bundle.requests]
    assert [sum(one) for one in pieces] == [one.length for one in bundle.requests]
    assert all(one[-NEW:] == (1,) * NEW for one in pieces)
    answer = bundle.recording.nodes[-1]
    assert answer.rows == tuple(map(len, pieces))
    # Each token is the likeliest after the step before it.
    for one, rows in zip(bundle.requests, bundle.exact["float32"][-1], strict=True):
        assert rows[-NEW - 1 : -1].argmax(1).tolist() == one.ids[-NEW:].tolist()


DEFECTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "positions": lambda given: given.update(position_ids=given["position_ids"] + 1),
    "slots": lambda given: given.update(slots=np.roll(given["slots"], 1, -1)),
    "context": lambda given: given.update(context=np.maximum(given["context"] - 1, 0)),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_a_step_is_caught(
    defect: str, recorded: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows written to other slots, positions off by one, a past that is one token short."""
    bundle = read_bundle(recorded("llama"))
    target = backend("reference")
    plain = target.feed

    def feed(given: Any) -> Any:
        changed = dict(given)
        DEFECTS[defect](changed)
        return plain(changed)

    monkeypatch.setattr(target, "feed", feed)
    result = measure(bundle, target)
    assert not result.passed
    assert max(reading.share for reading in result.runs[0].readings) > 100


def measure(bundle: Bundle, target: Any) -> Any:
    assert bundle.folder is not None
    return measure_bundle(bundle, target, {"float32": Tracing(bundle.folder / "model")("float32").analysed})


def test_an_encoder_beside_a_decoder_is_refused(tmp_path: Path) -> None:
    build("t5", "AutoModelForSeq2SeqLM").save_pretrained(tmp_path / "t5")
    with pytest.raises(headrace.ParityError, match="The model has an encoder beside its decoder"):
        record(tmp_path / "t5", tmp_path / "b", task="generate", target="reference", precisions=["float32"])
    assert not (tmp_path / "b").exists()
