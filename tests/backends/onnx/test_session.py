"""Programs as ONNX graphs: every profile answers as the eager model, padded on either side, and says what it is."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch

pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")

import onnx
import onnxruntime
import transformers
from onnx.reference import ReferenceEvaluator
from packaging.version import Version

from headrace import graphs
from headrace.backends.onnx import names
from headrace.backends.onnx.check.cases import BATCHES
from headrace.backends.onnx.check.verify import verify
from headrace.backends.onnx.export.graph import build
from headrace.backends.onnx.export.translate import table
from headrace.backends.onnx.export.weights import write
from headrace.backends.onnx.profiles import PROFILES, find_profile
from headrace.backends.onnx.session import HOST, Executable, Session, find_providers, right_padded
from headrace.errors import ArtifactError, InputError, TargetError
from headrace.ir import AttentionType, Output, OutputKind, PoolKind, Task
from headrace.lowering.pipeline import prepare
from headrace.utils import madvise
from tests.conformance import oracle
from tests.synthetic import program_of

# What each shows: a whole mask, windows on both sides, a causal window, grouped causal heads, a cap.
MODELS = [
    ("bert", "std"),
    ("modernbert", "std"),
    ("mistral", "std"),
    ("gemma2", "std"),
    ("modernbert", "fast"),
    ("llama", "fast"),
    ("modernbert", "portable"),
]
LENGTHS = ([1], [13], [5, 9, 2], [1, 30, 30])


@pytest.fixture(scope="module")
def files(analysed: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`files(name, profile)` is the path of a tiny embedding model and its program; written once."""
    made: dict[tuple[str, str], tuple[Path, Any]] = {}

    def find(name: str, profile: str) -> tuple[Path, Any]:
        if (name, profile) not in made:
            program = prepare(analysed(name), Task.EMBED)
            path = tmp_path_factory.mktemp("onnx") / "model.onnx"
            write(build(program, PROFILES[profile], finished=True), path, 1 << 30)
            made[name, profile] = path, program
        return made[name, profile]

    return find


def rows(lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(3, 96, (length,), generator=generator).tolist() for length in lengths]


def padded(requests: list[list[int]], left: bool) -> dict[str, Any]:
    width = max(map(len, requests))
    ids, mask = np.zeros((len(requests), width), np.int64), np.zeros((len(requests), width), np.int64)
    for row, own in enumerate(requests):
        place = slice(width - len(own), width) if left else slice(len(own))
        ids[row, place], mask[row, place] = own, 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0, "sequence_lengths": mask.sum(1)}


@pytest.mark.parametrize(("name", "profile"), MODELS)
def test_answers_as_the_eager_model(name: str, profile: str, files: Any, tiny: Any) -> None:
    """X3, X5, B9, D1: at shapes other than the trace's, padded on both sides, on onnxruntime's optimised graph."""
    path, program = files(name, profile)
    session = Session(path, (HOST,))
    kind = program.facts.pooling.kinds[0]
    for lengths in LENGTHS:
        requests = rows(lengths)
        for left in (False,) if PROFILES[profile].lengths else (False, True):
            got = session.run(padded(requests, left), "embedding")
            oracle.require_close(list(got), tiny(name), requests, oracle.pooled(kind))


FORMS: dict[str, dict[str, Any]] = {
    "grouped heads": {"groups": 2},
    "wider values": {"value": 6},
    "bias": {"bias": True},
    "bias under a cap": {"bias": True, "softcap": 3.0},
    "causal bias": {"bias": True, "kind": "causal", "window": (-1, 0)},
    "sinks": {"sinks": True, "groups": 2},
    "causal sinks": {"sinks": True, "kind": "causal", "window": (-1, 0)},
    "one-sided window": {"window": (2, 0), "kind": "causal", "softcap": 3.0},
    "blocks": {"window": (2, 0), "kind": "chunked"},
    "blocks without a mask": {"window": (2, 0), "kind": "chunked", "masked": False},
    "no mask": {"masked": False},
    "causal without a mask": {"masked": False, "kind": "causal", "window": (-1, 0)},
    "window without a mask": {"masked": False, "window": (1, 2)},
}


class Attending(torch.nn.Module):
    """One attention over embedded tokens, of any form that the operator has."""

    def __init__(
        self, kind: str = "bidirectional", window: tuple[int, int] = (-1, -1), softcap: float = 0.0, groups: int = 1,
        value: int = 4, bias: bool = False, sinks: bool = False, masked: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        torch.manual_seed(0)
        self.form, self.masked = (0.7, kind, list(window), softcap), masked
        self.q, self.k = torch.nn.Embedding(96, 4 * 4), torch.nn.Embedding(96, 4 // groups * 4)
        self.v, self.heads, self.kv_heads = torch.nn.Embedding(96, 4 // groups * value), 4, 4 // groups
        self.bias = torch.nn.Parameter(torch.randn(4)) if bias else None
        self.sinks = torch.nn.Parameter(torch.randn(4)) if sinks else None

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        batch, length = input_ids.shape
        heads = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = (
            table(input_ids).view(batch, length, h, -1).transpose(1, 2)
            for table, h in zip((self.q, self.k, self.v), heads, strict=True)
        )
        kind, window = self.form[1:3]
        mask = None
        if self.masked:
            shape = (batch, length, length, 0, 0)
            mask = torch.ops.headrace.mask(attention_mask, *shape, kind, window, torch.device("cpu"))
        bias = None
        if self.bias is not None:
            place = torch.arange(length)
            bias = self.bias[None, :, None, None] * (place[None] - place[:, None]).abs()
        out = torch.ops.headrace.attention(q, k, v, mask, bias, self.sinks, *self.form)
        return out.flatten(2) + attention_mask[:, :, None] * 0.0


class Forms(torch.nn.Module):
    """Several forms side by side: one export shows them all."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        forms = [form for form in FORMS.values() if form.get("masked", True) is masked]
        self.attentions, self.masked = torch.nn.ModuleList(Attending(**form) for form in forms), masked

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        return torch.cat([attention(input_ids, attention_mask) for attention in self.attentions], -1)


@functools.cache
def every_form(masked: bool) -> Any:
    """The forms as one program: one trace serves every profile."""
    outputs = (Output("hidden", OutputKind.HIDDEN, 16),)
    return program_of(Forms(masked), "input_ids", "attention_mask", outputs=outputs)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "without a mask"])
def test_every_form_of_attention(masked: bool, profile: str, tmp_path: Path) -> None:
    """What no tiny model has in each profile: the operator's definition is the reference."""
    program = every_form(masked)
    write(build(program, PROFILES[profile]), tmp_path / "model.onnx", 1 << 30)
    session = Session(tmp_path / "model.onnx", (HOST,))
    for left in (False,) if PROFILES[profile].lengths else (False, True):
        given = padded(rows([6, 3, 1] if masked else [6, 6]), left)
        ids, mask = torch.tensor(given["input_ids"]), torch.tensor(given["attention_mask"])
        got = session.run(given, "last_hidden_state")
        (wanted,), _ = graphs.run(program.graph, {"input_ids": ids, "attention_mask": mask})
        real = given["attention_mask"] == 1
        np.testing.assert_allclose(got[real], wanted.detach().numpy()[real], rtol=1e-5, atol=2e-6)


def test_every_pooling() -> None:
    """X6, S3: each kind of pooling by its definition, on either side of padding."""
    from headrace.ops.attention import pool_rows

    kinds = sorted(PoolKind)

    class Pooling(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(96, 8)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            rows = self.table(input_ids)
            return torch.stack([torch.ops.headrace.pool(rows, attention_mask, kind.value) for kind in kinds])

    module = Pooling()
    program = program_of(module, "input_ids", "attention_mask")
    made = torch.onnx.export(program.graph, (), dynamo=True, opset_version=18, verbose=False,
                             custom_translation_table=table(PROFILES["portable"]))  # fmt: skip
    session = onnxruntime.InferenceSession(made.model_proto.SerializeToString(), providers=[HOST])
    for left in (False, True):
        given = padded(rows([4, 7, 1]), left)
        feed = {name: given[name] for name in ("input_ids", "attention_mask")}
        (found,) = session.run(None, feed)
        hidden, mask = module.table(torch.tensor(feed["input_ids"])), torch.tensor(feed["attention_mask"])
        for kind, got in zip(kinds, found, strict=True):
            np.testing.assert_allclose(
                got, pool_rows(hidden, mask, kind).detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=kind
            )


def test_the_names_that_users_look_for(files: Any) -> None:
    """Positions are computed, so that a caller who knows nothing of them gives none."""
    path, _ = files("bert", "std")
    session = onnxruntime.InferenceSession(path, providers=[HOST])
    assert [(i.name, i.shape, i.type) for i in session.get_inputs()] == [
        (name, ["batch_size", "sequence_length"], "tensor(int64)")
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    assert {o.name: o.shape for o in session.get_outputs()} == {
        "embedding": ["batch_size", 32],
        "sentence_embedding": ["batch_size", 32],
    }


def test_the_file_says_what_it_is(files: Any) -> None:
    """Types stand on the nodes, and in the model's metadata, which onnxruntime keeps."""
    path, program = files("modernbert", "std")
    model = onnx.load(path)
    typed = {
        node.name: prop.value
        for node in model.graph.node
        for prop in node.metadata_props
        if prop.key == "headrace.attention_type"
    }
    session = onnxruntime.InferenceSession(path, providers=[HOST])
    facts = json.loads(session.get_modelmeta().custom_metadata_map[names.METADATA])
    assert list(typed.values()) == [AttentionType.ENCODER_ONLY] * len(program.nodes.attention)
    assert facts["attention"] == typed
    assert facts["profile"] == "std"
    assert len(facts["program"]["attention"]) == len(program.nodes.attention)


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_of_this_machine_is_inside(profile: str, files: Any) -> None:
    """torch writes where the traced code lay into every node."""
    path, _ = files("modernbert", profile)
    held = path.read_bytes()
    for place in (str(Path.home()), str(Path(__file__).parents[3]), "site-packages", "stack_trace"):
        assert place.encode() not in held, place


def test_profiles_use_what_they_say(files: Any) -> None:
    """Windows keep their masks in fast, whole attentions lose them; portable has no Attention operator."""
    operators = {profile: onnx.load(files("modernbert", profile)[0]) for profile in PROFILES}
    attentions = {
        profile: [node for node in model.graph.node if node.op_type == "Attention"]
        for profile, model in operators.items()
    }
    assert not attentions["portable"]
    assert all(node.input[3] for node in attentions["std"])
    assert {bool(node.input[3]): len(node.input) for node in attentions["fast"]} == {False: 7, True: 4}
    assert {p: m.opset_import[0].version for p, m in operators.items()} == {"std": 23, "fast": 24, "portable": 18}


def test_rotary_angles_are_computed_once(files: Any) -> None:
    """Layers share them; torch's exporter repeats them for each."""
    path, _ = files("llama", "fast")
    assert sum(node.op_type == "Cos" for node in onnx.load(path).graph.node) == 1


def test_nothing_is_checked_twice(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of padding share the oracle's answers and ONNX's own evaluator; a run answers with all outputs."""
    path, program = files("bert", "std")
    run, load = Mock(side_effect=graphs.run), Mock(side_effect=ReferenceEvaluator)
    monkeypatch.setattr(graphs, "run", run)
    monkeypatch.setattr("onnx.reference.ReferenceEvaluator", load)
    with patch.object(Session, "run_for", autospec=True, side_effect=Session.run_for) as answered:
        checks = verify(path, program, PROFILES["std"], "float32").checks
    assert answered.call_count == sum(check.name.startswith("onnxruntime") for check in checks)
    assert run.call_count == sum(map(len, BATCHES))
    assert load.call_count == 1
    assert sum(", padded " in check.name for check in checks) == 8
    assert all(check.passed and "left out" not in check.found for check in checks)


def test_left_padding_cannot_be_said_in_lengths(files: Any) -> None:
    given = padded([[5, 6], [7, 8, 9]], left=True)
    with pytest.raises(InputError, match="padding stands on the right"):
        right_padded(given["attention_mask"])
    path, _ = files("bert", "fast")
    assert "attention_mask" not in Session(path, (HOST,)).inputs


def test_weights_in_a_file_of_their_own(analysed: Any, tmp_path: Path) -> None:
    """X4: the data lies beside the model and is found from wherever both are moved; without it, a clear error."""
    program = prepare(analysed("bert"), Task.EMBED)
    path = tmp_path / "made" / "model.onnx"
    path.parent.mkdir()
    write(build(program, PROFILES["std"]), path, external_from=1)
    assert (path.parent / "model.onnx_data").stat().st_size > path.stat().st_size / 10
    moved = path.parent.rename(tmp_path / "moved") / "model.onnx"
    given = padded(rows([5, 9, 2]), left=False)
    assert np.isfinite(Session(moved, (HOST,)).run(given, "embedding")).all()
    (tmp_path / "moved" / "model.onnx_data").unlink()
    with pytest.raises(ArtifactError, match=r"cannot read .*model\.onnx"):
        Session(moved, (HOST,))


@pytest.mark.parametrize("external_from", [1, 1 << 30])
def test_one_copy_of_large_weights_is_in_memory_at_a_time(
    external_from: int, analysed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Before a session maps the file's, the pages of the program's own go back: after its last use, and only there."""
    program, path = prepare(analysed("bert"), Task.EMBED), tmp_path / "model.onnx"
    write(build(program, PROFILES["std"]), path, external_from)
    happened = Mock()
    happened.run.side_effect, happened.load.side_effect = graphs.run, Session
    monkeypatch.setattr(graphs, "run", happened.run)
    monkeypatch.setattr(madvise, "give_back", happened.give_back)
    monkeypatch.setattr("headrace.backends.onnx.check.verify.Session", happened.load)
    assert all(check.passed for check in verify(path, program, PROFILES["std"], "float32").checks)
    order = [name for name, *_ in happened.mock_calls]
    assert order[-2:] == ["give_back" if external_from == 1 else "run", "load"]
    assert order.count("give_back") == (external_from == 1)


def test_an_operator_without_a_translation_is_refused_by_name(analysed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.backends.onnx.export import graph
    from headrace.ops.attention import POOL

    def lacking(profile: Any) -> Any:
        return {target: made for target, made in table(profile).items() if target is not POOL}

    monkeypatch.setattr(graph, "table", lacking)
    with pytest.raises(TargetError, match=r"headrace\.pool.*cannot write"):
        build(prepare(analysed("bert"), Task.EMBED), PROFILES["std"])


@pytest.mark.skipif(
    Version(torch.__version__) < Version("2.12"), reason="torch before 2.12 cannot trace DeBERTa's loops"
)
@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.23"), reason="TorchScript hides DeBERTa's number, and it is refused"
)
def test_a_program_is_written_again_and_again(analysed: Any) -> None:
    """DeBERTa's own code counts tokens: what a writing makes anew of such sizes is not looked for in the next."""
    program = prepare(analysed("deberta"), Task.EMBED)
    first, second = (build(program, PROFILES["std"]) for _ in range(2))
    assert [node.op_type for node in first.graph] == [node.op_type for node in second.graph]


def test_what_torch_cannot_translate_is_refused_by_name(analysed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the grouped product of routed experts, were it not translated here."""
    from headrace.backends.onnx.export import graph

    monkeypatch.setattr(graph, "GROUPED", frozenset())
    with pytest.raises(TargetError, match=r"no translation of \w+ \(transformers\.grouped_mm_fallback\)"):
        build(prepare(analysed("gpt-oss"), Task.EMBED), PROFILES["std"])


def test_unknown_profiles_and_providers_are_refused() -> None:
    with pytest.raises(InputError, match="choose from std, fast, portable"):
        find_profile("turbo")
    with pytest.raises(TargetError, match="onnx:cuda"):
        find_providers("gpu")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(TargetError, match="built without CUDAExecutionProvider"):
            find_providers("cuda")


def test_an_onnxruntime_too_old_for_the_profile_is_refused(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """1.24 reads opset 24 and answers padded batches wrongly."""
    path, _ = files("bert", "fast")
    monkeypatch.setattr(onnxruntime, "__version__", "1.24.4")
    with pytest.raises(ArtifactError, match=r"profile fast, which needs onnxruntime 1\.25 or newer; this is 1\.24\.4"):
        Session(path, (HOST,))
    Session(files("bert", "std")[0], (HOST,))
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ArtifactError, match=r"cannot read .*fast needs 1\.25"):
        Session(tmp_path / "model.onnx", (HOST,))


def test_a_provider_is_believed_when_the_session_names_it(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime lists providers whose libraries are missing, and falls back in silence."""
    path, _ = files("bert", "std")
    with pytest.raises(TargetError, match="fell back to CPUExecutionProvider"):
        Session(path, ("CUDAExecutionProvider",))
    with pytest.warns(match="CUDAExecutionProvider"):
        session = Session(path, ("CUDAExecutionProvider", HOST))
    assert session.provider == HOST


def test_fixed_shapes_answer_alike(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a provider gets that compiles for every shape, shown on the CPU: batches are filled up, few graphs kept."""
    from headrace.backends.onnx import session as module

    path, _ = files("modernbert", "portable")
    given = [padded(rows(lengths), left=False) for lengths in ([5, 9, 2], [9, 1, 4, 4], [9], [2, 9, 3])]
    wanted = [Session(path, (HOST,)).run(feed, "embedding") for feed in given]
    monkeypatch.setattr(module, "FIXED", {HOST})
    monkeypatch.setattr(module, "KEPT", 1)
    fixed = Session(path, (HOST,))
    for feed, other in zip(given, wanted, strict=True):
        np.testing.assert_allclose(fixed.run(feed, "embedding"), other, atol=1e-5)
    assert list(fixed._fixed()) == [(4, 9)]


def test_an_output_that_is_not_there(files: Any) -> None:
    path, _ = files("bert", "std")
    with pytest.raises(ArtifactError, match="no output 'logits'; it has embedding"):
        Executable(Session(path, (HOST,)), (names.OUTPUTS[OutputKind.SEQUENCE_LOGITS],))


@pytest.mark.parametrize(("said", "kept"), [({}, "1 1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")])
def test_onnxruntime_tells_its_maker_nothing(said: dict[str, str], kept: str) -> None:
    """It has no thread that would, unless the user wants that."""
    code = (
        "import os, headrace.backends.onnx.session; "
        "print(os.environ['ORT_DISABLE_TELEMETRY'], len(os.listdir('/proc/self/task')))"
    )
    others = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run([sys.executable, "-c", code], env=others | said, capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith(kept)
