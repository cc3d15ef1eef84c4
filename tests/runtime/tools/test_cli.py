"""The command line: what it prints."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.runtime.tasks.answers.records import shortest
from headrace.runtime.tools.cli import lines
from headrace.runtime.tools.cli.console import option_words
from tests.command import REFERENCE, process, refused
from tests.tiny import build, randomise
from tests.words import bert_like

# Answers


def test_embed_answers_in_order(headrace_: Any, saved: dict[str, str]) -> None:
    texts = ["w5 w6 w7 w8", "", "w9", "w5 w6 w7 w8 w9 w10 w11 w12 w13 w14"]
    ran = headrace_("embed", saved["saved_encoder"], *texts)
    expected = headrace.load(saved["saved_encoder"]).embed(texts)
    np.testing.assert_array_equal(np.asarray([one["embedding"] for one in ran.answers], np.float32), expected)
    assert ran.err == "headrace: target reference, float32\n"


def test_embed_options_reach_the_model(headrace_: Any, folders: dict[str, str]) -> None:
    options = ("--normalize", "--dimensions", "4", "--prompt", "w7 ", "--pooling", "cls", "--pooling", "mean")
    ran = headrace_("embed", folders["encoder"], "w5 w6", *options, "--batch-size", "1", *REFERENCE)
    model = headrace.compile(folders["encoder"], target="reference", pooling=("cls", "mean"))
    expected = model.embed(["w5 w6"], normalize=True, dimensions=4, prompt="w7 ")
    np.testing.assert_array_equal(np.asarray([one["embedding"] for one in ran.answers], np.float32), expected)


def test_quantising_is_refused_where_the_target_does_not(headrace_: Any, folders: dict[str, str]) -> None:
    ran = headrace_("compile", folders["encoder"], folders["encoder"] + "-out", "--quantize", "fp8", *REFERENCE)
    refused(ran, "target reference does not run --quantize fp8; cuda does", "--dtype int8")
    ran = headrace_("compile", folders["encoder"], "--quantize", "fp8", "--kernels-only", "--target", "cuda:sm90")
    refused(ran, "compiles the kernels of the model as it is. Leave --quantize out")


def test_caches_in_eight_bits_are_refused_where_nothing_is_kept(headrace_: Any, folders: dict[str, str]) -> None:
    given = ("compile", folders["encoder"], folders["encoder"] + "-out", "--kv-cache-dtype", "fp8")
    refused(headrace_(*given, *REFERENCE), "--kv-cache-dtype fp8 is in what keys and values are kept between steps")
    refused(headrace_(*given, "--target", "cpu"), "target cpu does not run --kv-cache-dtype fp8; reference, cuda and")
    ran = headrace_(*given, "--kernels-only", "--target", "cuda:sm90")
    refused(ran, "compiles the kernels of the model as it is. Leave --kv-cache-dtype out")


def test_a_saved_model_is_not_quantised_again(headrace_: Any, saved: dict[str, str]) -> None:
    ran = headrace_("compile", saved["saved_classifier"], saved["saved_classifier"] + "-out", "--quantize", "fp8")
    refused(ran, "is a saved model, which has settled --quantize. Leave")
    ran = headrace_("compile", saved["saved_classifier"], saved["saved_classifier"] + "-out", "--kv-cache-dtype", "fp8")
    refused(ran, "is a saved model, which has settled --kv-cache-dtype. Leave")


def test_warnings_take_a_line_each(headrace_: Any, folders: dict[str, str]) -> None:
    ran = headrace_("embed", folders["encoder"], "w5", "--dtype", "bfloat16", *REFERENCE)
    assert re.fullmatch(r"headrace: warning: [^\n]*--pooling[^\n]*\nheadrace: target reference, bfloat16\n", ran.err)


def test_classify_takes_texts_and_pairs(headrace_: Any, saved: dict[str, str]) -> None:
    model = headrace.load(saved["saved_classifier"])
    (alone,) = headrace_("classify", saved["saved_classifier"], "w5 w6").answers
    assert alone["label"] == model.classify("w5 w6")[0].label
    assert list(alone["scores"]) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    lines = '{"text": "w5 w6", "pair": "w7"}\n{"text": "w8", "pair": "w9"}\n'
    pairs = headrace_("classify", saved["saved_classifier"], stdin=lines).answers
    expected = model.classify([("w5 w6", "w7"), ("w8", "w9")])
    assert [np.float32(one["score"]) for one in pairs] == [np.float32(one.score) for one in expected]


def test_token_classify(headrace_: Any, saved: dict[str, str]) -> None:
    ran = headrace_("token-classify", saved["saved_tagger"], "w5 w6", "--aggregation", "simple")
    expected = headrace.load(saved["saved_tagger"]).token_classify("w5 w6", "simple")
    (answer,) = ran.answers
    assert [(e["label"], e["start"], e["end"], e["word"]) for e in answer["entities"]] == [
        (e.label, e.start, e.end, e.word) for e in expected[0]
    ]


def test_token_classify_takes_words_and_its_options(headrace_: Any, saved: dict[str, str]) -> None:
    given = ("token-classify", saved["saved_tagger"], "--aggregation", "first", "--ignore-labels", "", "--no-join")
    (answer,) = headrace_(*given, "--scores", stdin='{"text": ["w5", "w6w7"]}\n').answers
    (expected,) = headrace.load(saved["saved_tagger"]).token_classify(
        [["w5", "w6w7"]], "first", ignore_labels=[], join=False, scores=True
    )
    assert [one["words"] for one in answer["entities"]] == [list(one.words) for one in expected] == [[0, 1], [1, 2]]
    assert [list(one["scores"]) for one in answer["entities"]] == [list(one.scores) for one in expected]
    long = headrace_("token-classify", saved["saved_tagger"], "w5 " * 99, "--stride", "5", "--ignore-labels", "")
    assert [one["index"] for one in long.answers[0]["entities"]] == list(range(1, 100))
    refused = headrace_("embed", saved["saved_encoder"], stdin='{"text": ["w5", "w6"]}\n')
    assert refused.code == 2
    assert "Line 1 of standard input is a text in words; this command takes whole ones" in refused.err


def test_lines_of_every_form(headrace_: Any, saved: dict[str, str], tmp_path: Path) -> None:
    lines = ["w5 w6", '"w5 w6"', '{"text": "w5 w6", "id": 7}', 'w5 "w6', "", "[w5"]
    file = tmp_path / "lines.txt"
    file.write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    by_file = headrace_("embed", saved["saved_encoder"], "--input", str(file)).answers
    by_stdin = headrace_("embed", saved["saved_encoder"], stdin="\n".join(lines)).answers
    assert by_file == by_stdin
    assert len(by_file) == len(lines)
    assert by_file[0] == by_file[1] == by_file[2] != by_file[3]


def test_plain_lines_are_texts_whatever_they_look_like() -> None:
    given = [b"42\n", b'{"text": \n', b'"quoted"\n', b"null"]
    source = lines.Source([], None, plain=True)
    assert list(source._read(io.BytesIO(b"".join(given)))) == [["42", '{"text": ', '"quoted"', "null"]]


def test_lines_of_questions_and_of_choices() -> None:
    asked = lines.parse('{"question": "a?", "context": "b"}', "Line 1", ("question", "context"))
    assert asked == ("a?", "b")
    assert lines.parse('{"text": "a", "choices": ["b", "c"]}', "Line 1", ("text", "choices")) == ("a", ["b", "c"])
    assert lines.parse('{"text": ["a", "b"]}', "Line 1") == ["a", "b"]
    with pytest.raises(headrace.InputError, match='Line 1 is a JSON object without "question"; its keys are: text'):
        lines.parse('{"text": "a"}', "Line 1", ("question", "context"))
    with pytest.raises(headrace.InputError, match=r'"choices" is a JSON list, .* and no string'):
        lines.parse('{"text": "a", "choices": [1]}', "Line 1", ("text", "choices"))
    with pytest.raises(headrace.InputError, match=r'"pair" is a JSON list, .* and no string'):
        lines.parse('{"text": "a", "pair": ["b"]}', "Line 1")


def test_long_input_is_read_in_chunks(headrace_: Any, saved: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.runtime.tools.cli.lines.CHUNK", 2)
    lines = "\n".join(["w5", "w6 w7", "w8", "w9", "w10"])
    ran = headrace_("embed", saved["saved_encoder"], stdin=lines)
    assert len(ran.answers) == 5
    assert ran.err.count("target reference") == 1
    broken = headrace_("embed", saved["saved_encoder"], stdin=lines + "\n" + "w5 " * 99)
    assert broken.code == 2
    assert "After 5 texts: Text 6 has 10" in broken.err
    assert broken.err.endswith(" The lines before it are answered; go on from line 6.\n")
    assert broken.out == ran.out


def test_no_lines_give_no_answers(headrace_: Any) -> None:
    """Nor is the model looked at."""
    ran = headrace_("embed", "/nowhere", stdin="")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_numbers_have_no_digits_that_float32_has_not() -> None:
    assert shortest(float(np.float32(0.1))) == 0.1
    value = float(np.float32(1 / 3))
    assert np.float32(shortest(value)) == np.float32(value)


# Reading a model


def test_explain(headrace_: Any, folders: dict[str, str], tmp_path: Path) -> None:
    text = headrace_("explain", folders["encoder"])
    assert "bidirectional encoder" in text.out
    assert not text.err
    page = tmp_path / "page.html"
    both = headrace_("explain", folders["encoder"], "--html", str(page), "--json")
    assert both.err == f"headrace: wrote {page}\n"
    assert page.read_text().startswith("<!DOCTYPE html>")
    told = json.loads(both.out)
    assert [spec["type"] for spec in told["attention"]] == ["ENCODER_ONLY", "ENCODER_ONLY"]


def test_tasks(headrace_: Any, folders: dict[str, str]) -> None:
    refused_ = headrace_("tasks", folders["labels"]).out
    assert re.match(r"token_classify +refused ", refused_)
    told = json.loads(headrace_("tasks", folders["labels"], "--prefill", "single_pass", "--json").out)
    assert told["default"] == "token_classify"
    assert [task["supported"] for task in told["tasks"]] == [True]


def test_probe(headrace_: Any, folders: dict[str, str]) -> None:
    ran = headrace_("probe", folders["decoder"])
    assert ran.code == 0
    assert re.search(r"attention_1 +DECODER +causal +none +proven +0: 0..11  4: 4..11  11: 11\n", ran.out)
    assert "left the rows before it bit-equal" in ran.out


def test_probe_shows_every_disagreement_and_exits_1(
    headrace_: Any, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.frontend.probe.behaviour import Behaviour

    true = Behaviour.reach
    blind = [None, {0: frozenset({1}), 4: frozenset(), 11: frozenset()}]
    monkeypatch.setattr(Behaviour, "reach", lambda *a: [x if x else y for x, y in zip(blind, true(*a), strict=True)])
    ran = headrace_("probe", folders["decoder"])
    assert ran.code == 1
    assert re.search(r"attention +DECODER .* proven ", ran.out)
    assert re.search(r"attention_1 +DECODER .* DISAGREES +0: 0..1 ", ran.out)


def test_compile_saves_what_the_other_commands_take(headrace_: Any, folders: dict[str, str], tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    ran = headrace_("compile", folders["encoder"], out, "--pooling", "mean", *REFERENCE)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == f"headrace: target reference, float32; wrote {out}\n"
    embedded = ("embed", folders["encoder"], "w5 w6", "--pooling", "mean", *REFERENCE)
    assert headrace_("embed", out, "w5 w6").answers == headrace_(*embedded).answers
    refused(headrace_("embed", out, "w5", "--pooling", "cls"), "a saved model, which has settled --pooling. Leave")
    refused(headrace_("probe", out), "is a saved model", "headrace explain")


def test_what_was_found_out_is_read_from_a_saved_model(
    headrace_: Any, folders: dict[str, str], saved: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without loading it, so that this runs where its target does not."""
    sourced = headrace_("tasks", folders["classifier"], "--json").answers_text
    monkeypatch.setattr("headrace.runtime.artifact.saved_model.load", None)
    assert headrace_("tasks", saved["saved_classifier"], "--json").answers_text == sourced
    assert "bidirectional encoder" in headrace_("explain", saved["saved_classifier"]).out
    refused(headrace_("explain", saved["saved_classifier"], "--prefill", "chunked"), "has settled --prefill")
    refused(headrace_("tasks", saved["saved_classifier"], "--task", "embed"), "The model offers: classify")


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", "{encoder}", "{empty}/../encoder", *REFERENCE),
        ("compile", "{encoder}", "/proc/x", *REFERENCE),
        ("export", "{encoder}", "{encoder}"),
        ("export", "{encoder}", "/proc/x"),
        ("parity", "record", "{encoder}", "--out", "{encoder}"),
        ("explain", "{encoder}", "--html", "{empty}"),
        ("parity", "check", "{encoder}", "--json", "{empty}"),
    ],
    ids=" ".join,
)
def test_where_nothing_can_be_written_is_said_before_the_work(
    headrace_: Any, folders: dict[str, str], arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def worked(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("headrace.frontend.load.checkpoint.load", worked)
    monkeypatch.setattr("headrace.runtime.api.load", worked)
    ran = headrace_(*(argument.format(**folders) for argument in arguments))
    assert ran.code == 2
    assert re.search("nothing was written|cannot be written", ran.err)


def test_version_and_help(headrace_: Any) -> None:
    assert headrace_("--version").out == f"headrace {headrace.__version__}\n"
    for arguments in (("--help",), ("embed", "--help"), ("-h",)):
        ran = headrace_(*arguments)
        assert ran.code == 0
        assert "Usage" in ran.out


def test_no_arguments_show_the_help(headrace_: Any) -> None:
    ran = headrace_()
    assert "token-classify" in ran.out + ran.err
    assert "headrace:" not in ran.err


def test_libraries_make_no_noise(tmp_path: Path) -> None:
    """Weights that a checkpoint lacks or has too many make transformers print a table."""
    model = randomise(build("bert", "AutoModelForMaskedLM"))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    bert_like().save_pretrained(tmp_path)
    ran = process("embed", str(tmp_path), "w5", "--pooling", "mean", *REFERENCE)
    assert ran.answers
    ours, target = ran.err.splitlines()  # and no table of a library's
    assert ours.startswith("headrace: warning: 5 weights of ")
    assert target == "headrace: target reference, float32"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('use target="reference", which', "use --target reference, which"),
        ("or pass truncate=True.", "or pass --truncate."),
        ("truncate=False to refuse", "--no-truncate to refuse"),
        ("Pass pooling= to choose", "Pass --pooling to choose"),
        ("pass trust_remote_code=True to", "pass --trust-remote-code to"),
        ("(max_length=40)", "(--max-length 40)"),
        ('compile with prefill="single_pass".', "compile with --prefill single_pass."),
        ('leave quantize="fp8" out, or pass force=True', "leave --quantize fp8 out, or pass --force"),
        ('where the model is, by model="FOLDER".', "where the model is, by --model FOLDER."),
        ("is_causal=False says", "is_causal=False says"),
        ("hold(attention_mask)", "hold(attention_mask)"),
    ],
)
def test_options_are_named_as_the_command_line_has_them(said: str, shown: str) -> None:
    assert option_words(said) == shown
