"""Ids of many requests in one array: answered as a list of them is, and refused by the caller's own number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow
import pytest

import headrace
from headrace import InputError, InputTooLongError, Ragged
from headrace.backends.reference import Reference
from headrace.ir import Layout
from headrace.runtime.ragged import as_ragged
from headrace.runtime.text.prefetch import PACKED
from tests.words import bert_like

ROWS = [[5, 6, 7, 8, 9], [11], [12, 13], [5, 6, 7], [60, 61, 62, 63, 64, 65, 66], [20, 21]]
FLAT = np.concatenate(ROWS)
OFFSETS = np.array([0, 5, 6, 8, 11, 18, 20])
WIDE = np.array([row + [90] * (8 - len(row)) for row in ROWS])
LISTS = pyarrow.array(ROWS, pyarrow.list_(pyarrow.int32()))
FORMS: dict[str, Callable[[], Any]] = {
    "int64": lambda: Ragged(FLAT, OFFSETS),
    "uint16": lambda: Ragged(FLAT.astype(np.uint16), OFFSETS.astype(np.uint32)),
    "inside": lambda: Ragged(np.concatenate([[1, 2], FLAT, [3]]), OFFSETS + 2),
    "padded": lambda: Ragged.from_padded(WIDE, [len(row) for row in ROWS]),
    "slice": lambda: Ragged(np.concatenate([[4, 4], FLAT]), [0, *(OFFSETS + 2)])[1:],
    "Arrow": lambda: LISTS,
    "Arrow, large": lambda: LISTS.cast(pyarrow.large_list(pyarrow.int64())),
    "Arrow, slice": lambda: pyarrow.array([[1], *ROWS, [2]]).slice(1, len(ROWS)),
    "Arrow, chunks": lambda: pyarrow.chunked_array([LISTS.slice(0, 2), LISTS.slice(2)]),
}


@pytest.fixture(scope="module")
def made(compiled: Any) -> Any:
    return compiled("bert", "AutoModel", "reference", tokenizer=bert_like(), pooling="mean")


@pytest.mark.parametrize("form", FORMS)
def test_answers_are_those_of_the_list_and_one_array(form: str, made: Any) -> None:
    found = made(FORMS[form](), task="embed")
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.stack(made(ROWS, task="embed")))
    np.testing.assert_array_equal(made.embed(FORMS[form]()), made.embed(ROWS))


def test_rows_of_one_length(made: Any) -> None:
    rows = [row[:1] * 3 for row in ROWS]
    wanted = np.stack(made(rows, task="embed"))
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.concatenate(rows)), 3)
    for given in (np.array(rows), np.array(rows, np.uint8), fixed, fixed.slice(0, 6)):
        np.testing.assert_array_equal(made(given, task="embed"), wanted)


def test_token_level_answers_are_one_array_a_request(made: Any) -> None:
    for found, wanted in zip(made(FORMS["int64"](), task="token_embed"), made(ROWS, task="token_embed"), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert [len(one) for one in made.token_embed(LISTS)] == [len(row) for row in ROWS]


def test_the_packed_program(analysed: Any) -> None:
    """D3: requests of one array beside a list of them, more than one row holds."""
    model = headrace.CompiledModel(analysed("xlm-roberta"), Reference(Layout.PACKED), None)
    rows = [[5 + (place + one) % 80 for one in range(1 + place % 40)] for place in range(100)]
    offsets = np.cumsum([0, *map(len, rows)])
    found = model(Ragged(np.concatenate(rows), offsets), task="embed")
    for one, row in zip(found, rows, strict=True):
        np.testing.assert_allclose(one, model([row], task="embed")[0], atol=1e-5)


def test_token_types_in_one_array(made: Any) -> None:
    kinds = [[place % 2 for place in range(len(row))] for row in ROWS]
    wanted = np.stack(made(ROWS, task="embed", token_type_ids=kinds))
    flat = Ragged(np.concatenate(kinds), OFFSETS)
    for ids, types in ((FORMS["int64"](), flat), (FORMS["int64"](), kinds), (ROWS, flat)):
        np.testing.assert_array_equal(np.stack(made(ids, task="embed", token_type_ids=types)), wanted)
    with pytest.raises(InputError, match=r"token_type_ids\[4\] holds 7; 0 to 1 are accepted"):
        made(FORMS["int64"](), "embed", Ragged(np.where(np.arange(20) == 15, 7, 0), OFFSETS))
    with pytest.raises(InputError, match=r"token_type_ids\[1\] has 2 numbers and token_ids\[1\] 1; one is"):
        made(FORMS["int64"](), "embed", Ragged(np.zeros(20, int), [0, 5, 7, 8, 11, 18, 20]))


def test_none_at_all(made: Any) -> None:
    assert made(Ragged(np.empty(0, int), [0]), task="embed").shape == (0, 32)
    assert made.embed(Ragged(np.empty(0, int), [0])).shape == (0, 32)
    assert made(np.empty((0, 4), int), task="embed").shape == (0, 32)


def test_the_other_tasks_and_iterators_take_them(made: Any) -> None:
    np.testing.assert_array_equal(np.stack(list(made.embed_iter(FORMS["int64"]()))), made.embed(ROWS))
    both = made.run(FORMS["int64"](), ("embed", "token_embed"))
    np.testing.assert_array_equal(both["embed"], made.embed(ROWS))
    assert [one.tolist() for one in both["token_ids"]] == ROWS


@pytest.mark.parametrize(
    ("changed", "met"),
    [
        ({14: -3}, r"token_ids\[4\] holds -3; 0 to 95 are accepted"),
        ({6: 96, 19: -1}, r"token_ids\[2\] holds 96; 0 to 95 are accepted"),
    ],
)
def test_ids_beyond_the_vocabulary(changed: dict[int, int], met: str, made: Any) -> None:
    ids = FLAT.copy()
    ids[list(changed)] = list(changed.values())
    for given in (Ragged(ids, OFFSETS), pyarrow.ListArray.from_arrays(OFFSETS.astype(np.int32), ids)):
        for call in (lambda one: made(one, task="embed"), made.embed):
            with pytest.raises(InputError, match=met):
                call(given)
    with pytest.raises(InputError, match=met.replace("[4", "[104").replace("[2", "[102")):
        made.counting_from(100).embed(Ragged(ids, OFFSETS))


def test_one_of_a_later_part_is_refused_by_its_number(made: Any) -> None:
    count = int(PACKED.first) + 9
    ids = np.full(count, 5)
    ids[-2] = 96
    with pytest.raises(InputError, match=rf"token_ids\[{count - 2}\] holds 96"):
        made.embed(Ragged(ids, np.arange(count + 1)))


def test_empty_and_long_requests(made: Any) -> None:
    empty = r"token_ids\[2\] is .*\[\].*; a sequence of one or more int is accepted, one a request"
    for given in (Ragged(FLAT, [0, 5, 6, 6, 20]), pyarrow.array([[5], [6], [], [7]])):
        with pytest.raises(InputError, match=empty):
            made(given, task="embed")
    with pytest.raises(InputTooLongError, match=r"token_ids\[1\] has 65 tokens; at most 64 are accepted"):
        made(Ragged(np.full(70, 5), [0, 5, 70]), task="embed")


@pytest.mark.parametrize("given", [[[5], None, [6]], [[5], [6, None], [7]]])
def test_what_is_missing_in_a_column_is_refused(given: Any, made: Any) -> None:
    for ask in (lambda one: made(one, task="embed"), made.embed):
        with pytest.raises(InputError, match=r"(token_ids\[1\]|Text 1) is (None|\[6, None\])"):
            ask(pyarrow.array(given, pyarrow.list_(pyarrow.int64())))


@pytest.mark.parametrize(
    ("ids", "offsets", "met"),
    [
        (FLAT, [0, 5, 4, 20], r"offsets\[2\] is 4, and offsets\[1\] 5: request 1 ends before it begins"),
        (FLAT, [0, 21], "offsets end at 21, and there are 20 ids"),
        (FLAT, [-1, 4], r"offsets\[0\] is -1; 0 and above"),
        (FLAT, [], "offsets are an array .* of float64; an array of int"),
        (FLAT, np.empty(0, int), "offsets are empty"),
        (FLAT / 2, OFFSETS, r"ids are an array \[20\] of float64; an array of int of one axis is accepted"),
        (WIDE, OFFSETS, r"ids are an array \[6, 8\] of int64"),
        (FLAT > 5, OFFSETS, "ids are an array .* of bool"),
        (FLAT, OFFSETS / 1.0, "offsets are an array .* of float64"),
        (np.ma.masked_equal(FLAT, 5), OFFSETS, "it is a masked array"),
    ],
)
def test_arrays_that_are_no_requests(ids: Any, offsets: Any, met: str) -> None:
    with pytest.raises(InputError, match=met):
        Ragged(ids, offsets)


@pytest.mark.parametrize(
    ("ids", "lengths", "met"),
    [
        (WIDE, [1, 2, 3, 4, 5, 9], r"lengths\[5\] is 9; 0 to 8, the width, are accepted"),
        (WIDE, [1, -2, 3, 4, 5, 6], r"lengths\[1\] is -2"),
        (WIDE, [1, 2], "ids have 6 rows and lengths are 2; one of each row"),
        (FLAT, [1, 2], r"ids are an array \[20\] of int64; an array of int \[requests, width\]"),
    ],
)
def test_padded_arrays_that_are_no_requests(ids: Any, lengths: Any, met: str) -> None:
    with pytest.raises(InputError, match=met):
        Ragged.from_padded(ids, lengths)


def test_they_are_a_sequence_of_arrays(made: Any) -> None:
    found = FORMS["int64"]()
    assert [one.tolist() for one in found] == ROWS
    assert [one.tolist() for one in found[2:5]] == ROWS[2:5]
    assert len(found[4:2]) == 0
    assert found[-1].tolist() == ROWS[-1]
    assert repr(found) == "<Ragged: 20 ids of 6 requests>"
    with pytest.raises(IndexError):
        found[6]
    with pytest.raises(InputError, match="step 2; neighbours are accepted"):
        found[::2]
    with pytest.raises(InputError, match="Request 0 is token ids, which are taken as they are: no prompt"):
        made.embed(found, prompt="say: ")


class Column:
    """Of another library than pyarrow, whose columns become lists too."""

    type = "list<int64>"

    def to_pylist(self) -> list[list[int]]:
        return ROWS

    def slice(self, begin: int, count: int) -> Any:
        return self if begin == 0 else None

    def __len__(self) -> int:
        return len(ROWS)


def test_a_column_of_another_library_is_read_by_its_lists(made: Any) -> None:
    np.testing.assert_array_equal(np.stack(made(Column(), task="embed")), np.stack(made(ROWS, task="embed")))


@pytest.mark.parametrize("given", [ROWS, FLAT, "text", pyarrow.array(["a"]), pyarrow.array([["a"]]), WIDE / 2])
def test_anything_else_is_read_request_by_request(given: Any) -> None:
    assert as_ragged(given) is None
