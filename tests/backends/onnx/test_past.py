"""Files that take a past: the tokens of the eager model, padded on either side, in pieces, by the engine's steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")

import onnx_ir as ir
import onnxruntime as ort

from headrace import feed
from headrace.backends.onnx import names
from headrace.backends.onnx.export import graph
from headrace.backends.onnx.export.graph import build
from headrace.backends.onnx.past import PastExecutable, Rows
from headrace.backends.onnx.profiles import PROFILES
from headrace.backends.onnx.session import Session, find_providers
from headrace.errors import ArtifactError, TargetError
from headrace.ir import Task
from headrace.lowering.pipeline import prepare
from tests import generating

LENGTHS, NEW = (5, 17, 3, 11), 6
HEAD = "AutoModelForCausalLM"
# Grouped queries and rotations; windows beside whole; slopes of alibi; learned positions of an offset; routed experts,
# and those with biases beside sinks.
CASES = (
    ("llama", "std"), ("llama", "portable"), ("gemma3", "std"), ("bloom", "portable"), ("opt", "std"),
    ("mixtral", "std"), ("gpt-oss", "portable"),
)  # fmt: skip
TWICE = pytest.mark.slow(reason="test_export_generation.py makes tokens by both of its files, without torch")


@pytest.fixture(scope="module")
def written(analysed: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`written(name, profile, last)` is the cached program of a tiny model, and its file."""
    made: dict[tuple[str, str, bool], tuple[Any, Path]] = {}
    programs: dict[str, Any] = {}

    def make(name: str, profile: str, last: bool = False) -> tuple[Any, Path]:
        if name not in programs:
            programs[name] = prepare(analysed(name, HEAD), Task.GENERATE)
        if (name, profile, last) not in made:
            path = tmp_path_factory.mktemp("past") / "model.onnx"
            ir.save(build(programs[name], PROFILES[profile], last=last), path)
            made[name, profile, last] = programs[name], path
        return made[name, profile, last]

    return make


def deployed(path: Path, program: Any, prompts: list[list[int]], left: bool, sizes: tuple[int, ...]) -> Any:
    """The tokens that a caller makes who pads, runs prompts in pieces of those sizes, and goes on with the presents."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken, pasts = {one.name for one in session.get_inputs()}, names.pasts(program)
    width = max(map(len, prompts))
    ids, mask = np.ones((len(prompts), width), np.int64), np.zeros((len(prompts), width), np.int64)
    for row, own in enumerate(prompts):
        place = slice(width - len(own), width) if left else slice(len(own))
        ids[row, place], mask[row, place] = own, 1
    held = {one.before: np.zeros(one.shape(0, len(prompts)), np.float32) for one in pasts.values()}
    ends = [width - 1 if left else len(own) - 1 for own in prompts]

    def run(tokens: Any, seen: Any, positions: Any) -> Any:
        given = {names.IDS: tokens, names.PADDING: seen, names.POSITIONS: positions, **held}
        logits, *presents = session.run(None, {name: given[name] for name in taken})
        held.update(zip(held, presents, strict=True))
        return logits

    counted, begin, rows = np.maximum(mask.cumsum(1) - 1, 0), 0, [np.empty(0)] * len(prompts)
    for size in sizes:
        end = begin + size
        logits = run(ids[:, begin:end], mask[:, :end], counted[:, begin:end])
        for row, last in enumerate(ends):
            if begin <= last < end:
                rows[row] = logits[row, last - begin]
        begin = end
    assert begin == width
    made: list[list[int]] = [[] for _ in prompts]
    for _ in range(NEW):
        tokens = np.array([row.argmax() for row in rows])
        for own, token in zip(made, tokens.tolist(), strict=True):
            own.append(token)
        mask = np.concatenate([mask, np.ones((len(prompts), 1), np.int64)], 1)
        rows = [*run(tokens[:, None], mask, mask.sum(1, keepdims=True) - 1)[:, -1]]
    return made


@pytest.mark.parametrize(("name", "profile"), CASES)
def test_a_file_makes_the_tokens_of_the_eager_model(name: str, profile: str, written: Any, tiny: Any) -> None:
    program, path = written(name, profile)
    model = tiny(name, HEAD)
    prompts = generating.prompts(program.signature.vocabulary, *LENGTHS, seed=7)
    right = [generating.greedy(model, own, NEW) for own in prompts]
    assert deployed(path, program, prompts, True, (17,)) == right
    assert deployed(path, program, prompts, True, (7, 2, 8)) == right
    assert deployed(path, program, prompts, False, (7, 2, 8)) == right


def test_inputs_and_outputs_have_the_names_of_deployment(written: Any) -> None:
    _, path = written("llama", "std")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [(one.name, one.shape) for one in session.get_inputs()] == [
        ("input_ids", ["batch_size", "sequence_length"]),
        ("attention_mask", ["batch_size", "total_sequence_length"]),
        ("position_ids", ["batch_size", "sequence_length"]),
        *(
            (f"past_key_values.{layer}.{what}", ["batch_size", 2, "past_sequence_length", 8])
            for layer in range(2)
            for what in ("key", "value")
        ),
    ]
    assert [(one.name, one.shape) for one in session.get_outputs()] == [
        ("logits", ["batch_size", "sequence_length", 96]),
        *(
            (f"present.{layer}.{what}", ["batch_size", 2, "total_sequence_length", 8])
            for layer in range(2)
            for what in ("key", "value")
        ),
    ]


def test_an_attention_is_one_operator_with_its_past(written: Any) -> None:
    _, path = written("llama", "std")
    model = ir.load(path)
    attentions = [node for node in model.graph if node.op_type == "Attention"]
    assert [(len(node.inputs), len(node.outputs)) for node in attentions] == [(6, 3)] * 2
    assert all(node.metadata_props["headrace.attention_type"] == "DECODER" for node in attentions)
    # One mask for all layers.
    assert len({node.inputs[3] for node in attentions}) == 1


@pytest.mark.parametrize("name", ["llama", "gemma3", "opt"])
def test_rows_of_heads_lie_beside_one_another(name: str, written: Any) -> None:
    """From a product to the attention and back no element moves, past a rotation, and a norm of each head, too."""
    nodes = list(ir.load(written(name, "std")[1]).graph)
    assert [node.name for node in nodes if node.op_type == "Transpose" and "perm" in node.attributes][1:] == []
    kinds = [node.op_type for node in nodes]
    assert kinds.count("Attention") == 2
    assert kinds.count("RotaryEmbedding") == (0 if name == "opt" else 4)
    given = {value for node in nodes if node.op_type == "Attention" for value in node.inputs[:3]}
    assert all(value.producer().op_type == "Reshape" for value in given)


def test_the_last_rows_alone_on_request(written: Any) -> None:
    program, path = written("llama", "std", True)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert session.get_outputs()[0].shape == ["batch_size", 1, 96]
    prompts = generating.prompts(96, *LENGTHS, seed=7)
    whole = deployed(written("llama", "std")[1], program, prompts, True, (17,))
    pasts = names.pasts(program)
    ids = np.array([[1] * (17 - len(own)) + own for own in prompts])
    mask = (np.arange(17) >= 17 - np.array(LENGTHS)[:, None]).astype(np.int64)
    held = {one.before: np.zeros(one.shape(0, 4), np.float32) for one in pasts.values()}
    given = {names.IDS: ids, names.PADDING: mask, names.POSITIONS: np.maximum(mask.cumsum(1) - 1, 0), **held}
    logits = session.run(["logits"], given)[0]
    assert logits.argmax(-1)[:, 0].tolist() == [own[0] for own in whole]


@pytest.mark.parametrize("name", ["lfm2", "bamba"])
def test_states_go_on_past_padding_on_the_left(name: str, written: Any, tiny: Any) -> None:
    """A short convolution's last inputs, and the state of a scan: in pieces that begin within the padding, too."""
    program, path = written(name, "std")
    prompts = generating.prompts(program.signature.vocabulary, *LENGTHS, seed=7)
    right = [generating.greedy(tiny(name, HEAD), own, NEW) for own in prompts]
    assert deployed(path, program, prompts, True, (7, 2, 8)) == right
    kept = {one.before for one in names.pasts(program).values()}
    assert "past_conv.0" in kept
    assert ("past_ssm.0" in kept) is (name == "bamba")


BY_PARITY = pytest.mark.slow(reason="tests/parity/test_generation.py checks each step of these on the engine")


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=BY_PARITY) for name in ("llama", "lfm2")), "gemma3"])
def test_the_engine_makes_the_tokens_of_the_eager_model(name: str, compiled: Any, tiny: Any) -> None:
    """A window's blocks are given back, and texts that join are in pieces beside others that make a token."""
    model = compiled(name, HEAD, "onnx", task="generate", token_budget=6)
    assert model.target == "onnx"
    prompts = generating.prompts(96, *LENGTHS, 1, 2, seed=7)
    right = [generating.greedy(tiny(name, HEAD), own, 20) for own in prompts]
    found = model.generate(prompts, max_new_tokens=20, ignore_eos=True)
    assert [list(one.token_ids) for one in found] == right
    assert not model.engine.decoding().lane.state.store.used()


@TWICE
def test_an_encoder_decoder_writes_what_its_decoder_crosses_to_once(compiled: Any) -> None:
    """T5: an encoder's file, whose rows go into the caches, and a decoder's, with a bias by the distance."""
    model = compiled("t5", "AutoModelForSeq2SeqLM", "onnx", task="generate")
    prompts = generating.prompts(96, *LENGTHS, seed=7)
    options = {"max_new_tokens": NEW, "ignore_eos": True, "beams": 1}
    found = model.generate(prompts, **options)
    right = compiled("t5", "AutoModelForSeq2SeqLM", "reference", task="generate").generate(prompts, **options)
    assert [one.token_ids for one in found] == [one.token_ids for one in right]
    encoder = model.engine.lanes["cross"].executable
    assert encoder.calls == len(prompts)


def test_other_rows_than_the_last_need_a_file_that_returns_them(written: Any, analysed: Any) -> None:
    program, path = written("llama", "std", True)
    made = PastExecutable(Session(path, find_providers("cpu")), program)
    step = generating_step(program, [5, 6, 7])
    with pytest.raises(ArtifactError, match="logits of the last token alone; 2 of others are asked for"):
        made(step)
    whole = PastExecutable(Session(written("llama", "std")[1], find_providers("cpu")), program)
    assert whole(generating_step(program, [5, 6, 7])).shape == (1, 3, 96)


def generating_step(program: Any, ids: list[int]) -> dict[str, Any]:
    """A step of one text, an answer to each of its tokens asked for."""
    pieces = [feed.Piece(np.array(ids), 0, [[0]] * len(program.form.groups), 0, len(ids))]
    caches = {one.name: np.zeros((1, program.form.block, *one.sizes), np.float32) for one in program.form.caches}
    return program.signature.named(feed.cached(program, pieces)) | caches


def test_what_no_text_holds_is_not_read() -> None:
    cache = np.full((3, 2, 1, 1), np.nan, np.float32)
    cache[1, :, 0, 0], cache[2, 0, 0, 0] = (1, 2), 3
    rows = Rows.of(np.array([[1, 2], [-1, 2]]), np.array([3, 3]), np.array([[5], [-1]]), 2)
    held = rows.read(cache)
    assert held[:, 0, :, 0].tolist() == [[1, 2, 3], [0, 0, 3]]
    rows.write(cache, np.array([7, 8], np.float32).reshape(2, 1, 1, 1))
    assert cache[2, :, 0, 0].tolist() == [3, 7]
    assert np.isnan(cache[0]).all()


def test_a_profile_of_lengths_has_no_place_for_a_past(written: Any) -> None:
    with pytest.raises(TargetError, match="The profile fast tells real keys by their number"):
        written("llama", "fast")


def test_what_is_not_written_is_refused_by_node_and_operator(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "GROUPED", frozenset())
    with pytest.raises(TargetError, match=r"no translation of \w+ \(transformers\.grouped_mm_fallback\)"):
        written("mixtral", "std", True)
