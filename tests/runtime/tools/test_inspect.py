"""What `explain` says of tiny models, as text and as a page."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest

from headrace.errors import InputError
from headrace.ir import (
    Activation,
    AttentionType,
    Head,
    Labels,
    MaskKind,
    Prefill,
    RecurrentSpec,
    Route,
    Source,
    State,
    Task,
    Verdict,
    Window,
)
from headrace.lowering.decide.enable import EnableTasks
from headrace.runtime.tools.inspect.picture import CELLS, picture, tokens_a_cell
from headrace.runtime.tools.inspect.report import explain
from headrace.runtime.tools.inspect.words import summary
from headrace.tasks import select
from tests.synthetic import facts, labels, spec

SOURCE = Source("models/tiny", "0123456789abcdef", (("torch", "2.x"), ("transformers", "5.x")), 12345)
D, E, X = AttentionType.DECODER, AttentionType.ENCODER_ONLY, AttentionType.ENCODER_DECODER
VOID = {"meta", "path", "br", "link", "img", "input"}


class Page(HTMLParser):
    """What is on a page: tags, attributes, text; refuses what does not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags, self.attributes, self.text = Counter[str](), list[tuple[str, str]](), list[str]()
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def routed(program: Any, state: State = State.ENCODER_ONLY, rule: str = "B3", prefill: Prefill | None = None) -> Any:
    return EnableTasks(prefill)(program.with_(route=Route(state, rule, "made by hand"), source=SOURCE))


MODELS = [
    ("bert", "AutoModel", {}),
    ("modernbert", "AutoModelForTokenClassification", {"num_labels": 5}),
    ("qwen3", "AutoModelForTokenClassification", {"num_labels": 3}),
    ("gpt-oss", "AutoModel", {}),
    ("llama", "AutoModelForCausalLM", {}),
    ("fnet", "AutoModel", {}),
]


@pytest.mark.parametrize(("name", "head", "changes"), MODELS, ids=lambda value: str(value) if value else "")
def test_text(analysed: Any, golden: Any, name: str, head: str, changes: dict[str, Any]) -> None:
    program = analysed(name, head, **changes).with_(source=SOURCE)
    task, _ = select(program, None)
    text = explain(program, target="reference", task=task)
    golden(f"explain/{name}-{head.removeprefix('Auto')}", text)
    assert max(map(len, text.splitlines())) < 100
    assert not re.search(r"[ \t]$", text, re.MULTILINE)


@pytest.mark.parametrize(("name", "head", "changes"), MODELS, ids=lambda value: str(value) if value else "")
def test_page_names_every_node_with_its_type(analysed: Any, name: str, head: str, changes: dict[str, Any]) -> None:
    program = analysed(name, head, **changes)
    page = Page(explain(program, "html", target="reference"))
    text = "|".join(page.text)
    for node in program.nodes.attention:
        assert f"|{node.call_order}|{node.node}|{node.type}|" in text
    assert program.decision.route.name in text
    assert program.decision.route.reason in text
    for decision in program.decision.tasks:
        assert decision.task in text
        assert decision.reason in text
    assert page.tags["svg"] == len({(s.type, s.window, s.softcap, s.verdict) for s in program.nodes.attention})


def test_page_asks_for_nothing_outside_itself(analysed: Any) -> None:
    page = Page(explain(analysed("bert"), "html"))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "href")]
    assert "url(" not in explain(analysed("bert"), "html")


HOSTILE = ('<script>alert("1")</script>', "' onload='x", "a&b", "\x1b[31mred\x07", "two\nlines")


def hostile() -> Any:
    names = Labels(HOSTILE, Activation.SOFTMAX, "<b>why</b>")
    program = facts(E, head=Head.TOKEN, labels=names, head_note="<i>note</i>")
    return routed(program).with_(source=Source("<img src=x>", "", (("<u>", "</p>"),), 1))


def test_page_escapes_what_a_model_folder_says() -> None:
    page = Page(explain(hostile(), "html"))
    assert not {"script", "img", "b>why", "u", "i>note"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert HOSTILE[0] in page.text


def test_text_shows_control_characters_as_what_they_are() -> None:
    text = explain(hostile())
    assert "\x1b" not in text
    assert "\\x1b[31mred" in text


def test_unknown_form() -> None:
    with pytest.raises(InputError, match="'text' or 'html', not 'pdf'"):
        explain(facts(E), "pdf")


def test_a_program_without_decisions_is_explained_as_far_as_it_goes() -> None:
    assert "not decided yet" in explain(facts(E))
    Page(explain(facts(E), "html"))


def test_unequal_layers_get_lines_of_their_own() -> None:
    """In call order as text; by kind, with all their places, on the page."""
    window = Window(64, 64)
    mixed = tuple(spec(E, i, **({"window": window} if i % 3 else {})) for i in range(7))
    program = routed(facts(attention=mixed))
    starts = re.findall(r"^  (\d[\d-]*) +ENCODER_ONLY", explain(program), re.MULTILINE)
    assert starts == ["0", "1-2", "3", "4-5", "6"]
    page = Page(explain(program, "html"))
    assert {"Layers 0, 3, 6", "Layers 1-2, 4-5"} <= set(page.text)
    assert page.tags["svg"] == 2


def test_recurrent_layers_are_shown() -> None:
    recurrent = (RecurrentSpec("scan", 1, "selective_scan", (64, 8), True, Verdict.PROVEN),)
    program = routed(facts(D, recurrent=recurrent), State.HYBRID, "B4")
    assert re.search(r"^  1 +selective_scan +64x8 +back only +proven$", explain(program), re.MULTILINE)
    assert {"selective_scan", "looks back only", "proven"} <= set(Page(explain(program, "html")).text)


WHOLE, BEFORE = "every token sees every token", "a token sees itself and those before it"
EMBEDS = "it runs in one pass; it can embed texts and embed single tokens."
LABELLED = facts(D, D, head=Head.TOKEN, labels=labels(2))


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (routed(facts(*[E] * 6)), f"A 6-layer bidirectional encoder; {WHOLE}; {EMBEDS}"),
        (
            routed(facts(*[D] * 8), State.DECODER, "B5"),
            f"An 8-layer causal decoder; {BEFORE}; it may read a text in chunks; it can embed texts.",
        ),
        (
            routed(LABELLED, State.DECODER, "B5"),
            f"A 2-layer causal decoder; {BEFORE}; it may read a text in chunks; it serves no task as it stands.",
        ),
        (
            routed(LABELLED, State.DECODER, "B5", Prefill.SINGLE_PASS),
            f"A 2-layer causal decoder; {BEFORE}; it runs in one pass; it can label tokens.",
        ),
        (
            routed(facts(attention=(spec(E), spec(E, 1, window=Window(4, 4))))),
            f"A 2-layer bidirectional encoder; {WHOLE}, in 1 of 2 layers no further than 4 either way; {EMBEDS}",
        ),
        (routed(facts(D, E)), f"A model of 1 DECODER and 1 ENCODER_ONLY attentions; {EMBEDS}"),
        (
            routed(facts(AttentionType.ENCODER, D, X), State.ENCODER_DECODER, "B2"),
            f"An encoder-decoder of 1 DECODER, 1 ENCODER and 1 ENCODER_DECODER attentions; {EMBEDS}",
        ),
    ],
)
def test_summary(program: Any, sentence: str) -> None:
    assert summary(program) == sentence


def test_a_decoder_says_what_a_text_that_grows_keeps() -> None:
    program = routed(facts(D, head=Head.CAUSAL_LM), State.DECODER, "B5")
    said = " ".join(explain(program).split())
    # Keys and values of four heads, each 8 wide in float32.
    assert "a text that grows keeps 256 bytes a token; a step reads" in said
    assert "generate text" in summary(program)


def test_a_traced_model_names_the_task_that_it_would_be_compiled_for(traced: Any) -> None:
    from headrace.runtime.api import Traced

    said = Traced(traced("bert", "AutoModel"), None, None, {}).explain()
    assert re.search(r"\n  default task +embed\n", said)


def test_default_task_is_marked() -> None:
    program = routed(facts(E))
    assert re.search(r"embed +supported +default", explain(program, task=Task.EMBED))
    assert "default" in Page(explain(program, "html", task=Task.EMBED)).text


def seen_cells(svg: str) -> int:
    match = re.search(r'class="seen" d="([^"]*)"', svg)
    assert match
    return match[1].count("M")


@pytest.mark.parametrize(
    ("node", "cells", "tokens"),
    [
        (spec(E), CELLS * CELLS, 1),
        (spec(D), CELLS * (CELLS + 1) // 2, 1),
        (spec(D, window=Window(0, 0)), CELLS, 1),
        (spec(D, window=Window(2, 0)), 3 * CELLS - 3, 1),
        (spec(E, window=Window(64, 64)), 9 * CELLS - 20, 16),
        (spec(D, window=Window(4095, 0)), 4 * CELLS - 6, 1024),
    ],
)
def test_mask_pictures(node: Any, cells: int, tokens: int) -> None:
    assert tokens_a_cell(node) == tokens
    assert seen_cells(picture(node)) == cells
    assert f"{node.mask}" in picture(node)


@pytest.mark.parametrize("kind", sorted(set(MaskKind) - {MaskKind.OPAQUE}))
def test_every_mask_kind_of_a_typed_program_has_a_picture(kind: MaskKind) -> None:
    window = Window(3, 0) if kind is MaskKind.CHUNKED else Window()
    assert f'aria-label="Mask: {kind},' in picture(spec(D if kind.causal else E, mask=kind, window=window))
