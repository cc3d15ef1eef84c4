"""Facts survive JSON unchanged, and what is no fact is refused."""

import dataclasses
import json
from typing import NamedTuple

import pytest

from headrace.ir import (
    AttentionSpec,
    AttentionType,
    Labels,
    Limits,
    MaskKind,
    Pooling,
    PoolKind,
    Positions,
    Program,
    Route,
    State,
    Task,
    TaskDecision,
    TextRules,
    Window,
)
from headrace.ir.program import PART_OF, PARTS
from headrace.ir.serialize import decode, encode
from tests.synthetic import facts, labels, spec

DECODER = AttentionType.DECODER
# Between them: every head, route, mask, window, sinks, softcap, labels, claims, a refusal.
ANALYSED = [
    ("bert", "AutoModel", {}),
    ("bert", "AutoModelForMaskedLM", {}),
    ("modernbert", "AutoModelForTokenClassification", {"num_labels": 5}),
    ("llama", "AutoModelForSequenceClassification", {"num_labels": 1}),
    ("qwen2-mixed-window", "AutoModelForCausalLM", {}),
    ("mistral-long-window", "AutoModel", {}),
    ("gemma2", "AutoModel", {}),
    ("gemma3-bidirectional", "AutoModel", {}),
    ("gpt-oss", "AutoModel", {}),
    ("fnet", "AutoModel", {}),
]


@pytest.mark.parametrize(("name", "head", "config"), ANALYSED, ids=lambda v: v if isinstance(v, str) else "")
def test_analysed_programs_survive(analysed, name, head, config):
    program = analysed(name, head, **config)
    again = decode(Program, json.loads(json.dumps(encode(program))))
    assert again == program.with_(exported=None)
    assert again.exported is None
    assert again.as_text() == program.as_text()
    assert type(again.nodes.attention) is tuple
    assert all(isinstance(s.window, Window) for s in again.nodes.attention)


def full() -> Program:
    """A program that has something in every field."""
    return facts(
        DECODER,
        labels=labels(3),
        pooling=Pooling((PoolKind.CLS, PoolKind.MEAN), True, "modules.json"),
        head_rows=PoolKind.LAST,
        text=TextRules(
            max_length=9, truncates=True, prompts=(("query", "Find: "),), default_prompt="query", why="said so"
        ),
        route=Route(State.CUSTOM, "B1", "registered", custom="mine"),
        tasks=(TaskDecision(Task.EMBED, False, "because"),),
        declared_tasks=(Task.SPARSE_EMBED,),
        declared_default=Task.EMBED,
        missing=("a", "b"),
        limits=Limits(None, "nothing"),
    )


def test_a_full_program_survives():
    program = full()
    assert decode(Program, json.loads(json.dumps(encode(program)))) == program


def test_the_graph_is_left_out(analysed):
    assert "exported" not in encode(analysed("bert"))


def test_a_float_that_json_shortened():
    assert decode(AttentionSpec, encode(spec(DECODER)) | {"scale": 1}).scale == 1.0


def broken(**changes):
    return encode(full()) | changes


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"surplus": 1}, r"Program has no surplus; its fields are source, "),
        ({"exported": None}, r"Program has no exported"),
        (
            {"labels": {"names": ["a"], "activation": "softmax"}},
            r"Labels lacks why",
        ),
        ({"limits": []}, r"Limits lacks length, why"),
    ],
)
def test_unknown_or_missing_fields(change, says):
    with pytest.raises(KeyError, match=says):
        decode(Program, broken(**change))


@pytest.mark.parametrize("field", sorted(encode(full())))
def test_any_missing_field(field):
    data = encode(full())
    del data[field]
    part = PART_OF.get(field)
    holder = Program if part is None else PARTS[part]
    declared = holder.__dataclass_fields__[field]
    if declared.default is dataclasses.MISSING and declared.default_factory is dataclasses.MISSING:
        with pytest.raises(KeyError, match=f"{holder.__name__} lacks {field}"):
            decode(Program, data)
    else:
        # A later version's field: a program that was written before it has what was meant then.
        made = declared.default is dataclasses.MISSING
        default = declared.default_factory() if made else declared.default
        again = decode(Program, data)
        assert getattr(again if part is None else getattr(again, part), field) == default


def test_a_field_that_came_later():
    """By a default, or by what makes one; of a dataclass, or at the end of a named tuple, which is stored as a list."""

    class Place(NamedTuple):
        name: str
        size: int | None = None

    @dataclasses.dataclass(frozen=True)
    class Fact:
        name: str
        place: Place
        rules: TextRules = dataclasses.field(default_factory=TextRules)
        count: int = 3

    hints = {"Place": Place, "Fact": Fact}
    Fact.__annotations__ = {name: hints.get(kind, kind) for name, kind in Fact.__annotations__.items()}
    assert decode(Fact, {"name": "a", "place": ["b"]}) == Fact("a", Place("b"), TextRules(), 3)
    with pytest.raises(ValueError, match=r"Place has the fields name, size, met \[\]"):
        decode(Fact, {"name": "a", "place": []})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"head": "heads"}, "'heads' is not a valid Head"),
        ({"head": "SEQUENCE"}, "'SEQUENCE' is not a valid Head"),
        ({"prefill": "whole"}, "'whole' is not a valid Prefill"),
        ({"declared_default": "dance"}, "'dance' is not a valid Task"),
        ({"declared_tasks": [None]}, "None is not a valid Task"),
        ({"stage": 3}, "3 is not a valid Stage"),
    ],
)
def test_wrong_enums(change, says):
    with pytest.raises(ValueError, match=says):
        decode(Program, broken(**change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": 3}, "expected str, met 3"),
        ({"dtype": None}, "expected str, met None"),
        ({"vocabulary": "96"}, "expected int, met '96'"),
        ({"vocabulary": True}, "expected int, met True"),
        ({"vocabulary": 96.5}, "expected int, met 96.5"),
        ({"routed_experts": 1}, "expected bool, met 1"),
        ({"inputs": "input_ids"}, "met 'input_ids'"),
        ({"missing": [3]}, "expected str, met 3"),
        ({"attention": None}, "met None"),
        ({"limits": {"length": "9", "why": ""}}, "expected int, met '9'"),
    ],
)
def test_wrong_types(change, says):
    with pytest.raises(TypeError, match=says):
        decode(Program, broken(**change))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"window": [1, 2, 3]}, ValueError),
        ({"window": ["a", "b"]}, TypeError),
        ({"window": "ab"}, TypeError),
        ({"scale": True}, TypeError),
        ({"kv_heads": 3}, ValueError),
        ({"mask": "bidirectional"}, ValueError),
    ],
)
def test_attention_that_cannot_be(changes, error):
    with pytest.raises(error):
        decode(AttentionSpec, encode(spec(DECODER)) | changes)


def test_what_an_attention_cannot_be_is_said():
    with pytest.raises(ValueError, match="attention: 4 query heads do not divide into 3 key heads"):
        spec(DECODER, kv_heads=3)
    with pytest.raises(ValueError, match="attention: DECODER needs a causal mask, not bidirectional"):
        spec(DECODER, mask=MaskKind.BIDIRECTIONAL)


def test_optional_fields_may_be_null():
    assert decode(Positions, {"source": "graph", "offset": 0, "table": None}).table is None
    assert decode(Labels | None, None) is None
