"""Inputs that look like requests and are none: refused in words before anything runs; nothing is lost in silence."""

from __future__ import annotations

import re
from collections import UserString, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import InputError
from headrace.ir import Input, Role
from headrace.runtime.arrays import Arrays
from headrace.runtime.tasks.answers.vectors import similarity
from headrace.runtime.text.texts import Texts
from headrace.runtime.text.validate import many
from tests.runtime.text.test_ids import checked
from tests.synthetic import facts, token_inputs
from tests.tiny import build
from tests.words import bert_like

WAVES = Input("input_values", Role.ARRAY, "float32", (headrace.ir.BATCH, headrace.ir.Axis("samples", None)))
TYPED = token_inputs("input_ids", "token_type_ids")
UNBOUND = headrace.runtime.text.bounds.Bound(None, "")
Two = namedtuple("Two", "first second")


class Frame:
    """A table as pandas has them: going through it draws the names of its columns."""

    def __init__(self, **columns: list[str]) -> None:
        self._columns = columns

    def keys(self) -> list[str]:
        return list(self._columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __getitem__(self, name: str) -> Column:
        return Column(self._columns[name])


class Column:
    """A column of it: it has keys too, and going through it draws its values."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def keys(self) -> range:
        return range(len(self._values))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __getitem__(self, place: int) -> Any:
        return self._values[place]


def shown(value: object) -> str:
    """A value as the name of a test, the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@pytest.fixture(scope="module")
def classifier() -> Any:
    eager = build("bert", "AutoModelForSequenceClassification", num_labels=3)
    return headrace.compile(eager, target="reference", tokenizer=bert_like())


# What gives something else than its texts


def test_a_table_gives_the_names_of_its_columns(classifier: Any) -> None:
    table = Frame(text=["w5", "w6 w7"], label=["w8", "w9"])
    for ask in (classifier.classify, classifier):
        with pytest.raises(InputError, match=r"its keys \(a table the names of its columns\).*list\(x\[column\]\)"):
            ask(table)
    assert len(classifier.classify(table["text"])) == 2


@pytest.mark.parametrize(
    "given",
    [Column(["w5"]), Column([["w5"]]), Column([{"w5"}]), Column([]), np.array(["w5"]), Two("w5", "w6")],
)
def test_what_gives_its_values_holds_requests(given: Any) -> None:
    assert many(given, "The texts")


# Tuples


@pytest.mark.parametrize("pair", [("w5", "w6"), Two("w5", "w6")])
def test_two_texts_in_a_tuple_are_a_pair_or_two_texts(classifier: Any, pair: Any) -> None:
    with pytest.raises(InputError, match=r"tuple of two.*one pair, or two texts.*\[\(a, b\)\] is one pair, \[a, b\]"):
        classifier.classify(pair)
    assert classifier.classify([pair]) == classifier.classify([list(pair)])
    assert classifier.classify([pair]) != classifier.classify(list(pair))


def test_a_tuple_holds_requests_as_a_list_does(classifier: Any) -> None:
    for texts in (("w5",), ("w5", "w6", "w7"), (("w5", "w6"), ("w7", "w8")), ()):
        assert classifier.classify(texts) == classifier.classify(list(texts))
    # Where a task takes no pairs, there is one meaning alone.
    assert list(Texts(bert_like(), facts()).drawn(("w5", "w6"))) == ["w5", "w6"]


@pytest.mark.parametrize("mixed", [["w5", ("w5", "w6")], [("w5", "w6"), "w5"], [("w5", "w6"), ("w5",)]])
def test_texts_and_pairs_do_not_go_together(classifier: Any, mixed: Any) -> None:
    with pytest.raises(InputError, match=r"Text 1 is .*; here a (str|pair of two str) is accepted"):
        classifier.classify(mixed)


@pytest.mark.parametrize("odd", [UserString("w5"), {"text": "w5"}, Column(["w5"]), np.array(["w5"]), 5, float("nan")])
def test_what_is_no_text_among_texts(classifier: Any, odd: Any) -> None:
    with pytest.raises(InputError, match=r"Text 1 is .*; here a str is accepted"):
        classifier.classify(["w5", odd])


# Token ids


@pytest.mark.parametrize(
    "row",
    [
        [5, True], [True, 7], [5, np.True_], (5, False), [5, torch.tensor(True)], [5, np.array(True)], [5.0, 6],
        [5, None], [2**70], np.array([5, 6], object), np.array([[1], [1, 2]], object), {5: 6}, {5, 6},
        torch.tensor([True]), torch.tensor([5.0], requires_grad=True), torch.tensor([5]).to_sparse(),
        torch.empty(2, device="meta"), torch.tensor([1j]).conj(), iter([5]), b"ab", np.array(["2020-01-01"], "M8[D]"),
    ],
    ids=shown,
)  # fmt: skip
def test_what_are_no_ids(row: Any) -> None:
    program = facts(inputs=TYPED)
    with pytest.raises(InputError, match=r"(?s)token_ids\[1\] is .*a sequence of one or more int is accepted"):
        checked(program, [[5], row], None, UNBOUND)
    with pytest.raises(InputError, match=r"(?s)token_type_ids\[0\] is .*a sequence of one or more int is accepted"):
        checked(program, [[5, 6]], [row], UNBOUND)


def test_numbers_of_any_library_are_ids() -> None:
    rows = [[np.int64(0), 1], [torch.tensor(0), torch.tensor(1)], np.array([0, 1], ">i8"), range(2)]
    assert [one.ids.tolist() for one in checked(facts(), rows, None, UNBOUND)] == [[0, 1]] * len(rows)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_nested_tensor_holds_requests(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.tensor([5, 6]), torch.tensor([7])], layout=layout)
    assert [one.ids.tolist() for one in checked(facts(), nested, None, UNBOUND)] == [[5, 6], [7]]
    with pytest.raises(InputError, match=r"(?s)token_ids\[0\] is .*a sequence of one or more int"):
        checked(facts(), [nested], None, UNBOUND)


# Arrays

WAVE = torch.zeros(9)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (torch.zeros(9, requires_grad=True), r"requires grad"),
        (WAVE.bfloat16(), "BFloat16"),
        (WAVE.to_sparse(), "to_dense"),
        (WAVE.to("meta"), "meta device"),
        (WAVE._neg_view(), "negative bit"),
        (np.ma.masked_equal(np.zeros(9), 0), "masked array"),
        (np.full(9, 1e300), "beyond float32"),
        (np.full(9, np.nan), "NaN"),
    ],
    ids=str,
)
def test_what_is_no_array(odd: Any, why: str) -> None:
    reader = Arrays(facts(inputs=(WAVES,), vocabulary=0))
    for given in (odd, [odd]):
        with pytest.raises(InputError, match=f"(?s)Request 0 .*({why}).*accepted|Request 0 .*({why}).*the model reads"):
            reader.encode(reader.drawn(given))


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (torch.zeros(9, requires_grad=True), "requires grad"),
        (WAVE.bfloat16(), "BFloat16"),
        (np.ma.masked_equal(np.zeros(9), 0), "masked array"),
        (np.zeros(9, complex), "complex128 values"),
        (["1.0"] * 9, "<U3 values"),
        (np.float32(1), "has an axis"),
    ],
    ids=shown,
)
def test_what_is_no_vector(odd: Any, why: str) -> None:
    for pair in ((odd, np.zeros(9)), (np.zeros((1, 9)), odd)):
        with pytest.raises(InputError, match=rf"(?s)cannot be compared as vectors \(.*{why}.*are accepted"):
            similarity(*pair)


# Token types


def test_token_types_of_texts_past_the_table() -> None:
    """F9: the table's row is looked up by number; on a GPU that ends the process."""
    model = headrace.compile(
        build("roberta", "AutoModelForSequenceClassification", type_vocab_size=1), target="reference",
        tokenizer=bert_like(),
    )  # fmt: skip
    assert len(model.classify(["w5", "w6 w7"])) == 2
    for pairs in ([("w5", "w6")], [("w5", "w6 w7")] * 70):
        with pytest.raises(InputError, match=r"Text 0 has token type 1, but the model has 1 token type embeddings"):
            model.classify(pairs)
