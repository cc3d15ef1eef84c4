"""Token ids that callers bring: taken as they are, or refused by the caller's own number of the request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.errors import InputError, InputTooLongError
from headrace.ir import Program
from headrace.runtime.text.bounds import Bound
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.ids import read_ids
from headrace.runtime.text.prefetch import PACKED
from tests.synthetic import facts, token_inputs

# The second part of requests of one token begins here.
SECOND = int(PACKED.first)


def checked(*given: Any) -> list[Encoded]:
    count, parts = read_ids(*given, PACKED)
    encoded = [one for part in parts for one in part]
    assert len(encoded) == count
    return encoded


def typed_facts(**changes: Any) -> Program:
    return facts(inputs=token_inputs("input_ids", "token_type_ids"), **changes)


def ids(encoded: list[Encoded]) -> list[list[int]]:
    return [one.ids.tolist() for one in encoded]


def test_ids_are_taken_as_they_are() -> None:
    rows = [[1, 2, 3], np.array([4, 5], np.int32), (6,)]
    encoded = checked(facts(vocabulary=7), rows, None, Bound(3, "why"))
    assert ids(encoded) == [[1, 2, 3], [4, 5], [6]]
    assert all(one.types is None and one.ids.dtype == np.int64 for one in encoded)
    (typed,) = checked(typed_facts(vocabulary=7), [[1, 2]], [[0, 1]], Bound(None, ""))
    assert typed.types is not None
    assert typed.types.tolist() == [0, 1]


def test_tensors_are_ids_too() -> None:
    import torch

    assert ids(checked(facts(), torch.tensor([[1, 2], [3, 4]]), None, Bound(None, ""))) == [[1, 2], [3, 4]]


@pytest.mark.parametrize("row", [[], [1.0, 2.0], ["a"], [None], [[1, 2]], 5, "text", [True, False], [[1], [1, 2]]])
def test_what_are_no_ids_is_refused(row: Any) -> None:
    with pytest.raises(InputError, match=r"token_ids\[1\] is .*a sequence of one or more int is accepted"):
        checked(facts(), [[1], row], None, Bound(None, ""))


@pytest.mark.parametrize(("row", "named"), [([1, 7], "7"), ([1, -1], "-1"), ([2**63], str(2**63))])
def test_ids_out_of_the_vocabulary_are_refused(row: list[int], named: str) -> None:
    with pytest.raises(InputError, match=rf"token_ids\[0\] holds {named}; 0 to 6 are accepted"):
        checked(facts(vocabulary=7), [row], None, Bound(None, ""))


def test_ids_too_long_are_refused() -> None:
    with pytest.raises(InputTooLongError, match=r"token_ids\[1\] has 4 tokens; at most 3 are accepted \(the table\)"):
        checked(facts(), [[1], [1, 2, 3, 4]], None, Bound(3, "the table"))


def test_token_types_must_fit() -> None:
    for types, met in (
        ([[0]], r"token_type_ids\[0\] has 1 numbers and token_ids\[0\] 2; one is"),
        ([[0, 0], [0]], "token_type_ids are of 2 requests and token_ids of 1; one"),
        ([[0, -1]], r"token_type_ids\[0\] holds -1; 0 to 1 are"),
    ):
        with pytest.raises(InputError, match=met):
            checked(typed_facts(), [[1, 2]], types, Bound(None, ""))
    with pytest.raises(InputError, match="takes no token_type_ids; its inputs are input_ids"):
        checked(facts(inputs=token_inputs("input_ids")), [[1]], [[0]], Bound(None, ""))


@pytest.mark.parametrize(
    ("row", "types", "met"),
    [
        ([], [0], "token_ids[{n}] is []"),
        ([9], [0], "token_ids[{n}] holds 9"),
        ([1] * 4, [0], "token_ids[{n}] has 4 tokens"),
        ([1], [0, 0], "token_type_ids[{n}] has 2 numbers and token_ids[{n}] 1"),
        ([1], ["a"], "token_type_ids[{n}] is ['a']"),
        ([1], [2], "token_type_ids[{n}] holds 2; 0 to 1"),
        ([1], [-1], "token_type_ids[{n}] holds -1; 0 to 1"),
        (np.ma.masked_equal([1, 2], 2), [0, 0], "token_ids[{n}] is masked_array"),
    ],
)
def test_a_request_of_a_later_part_is_refused_by_its_number(row: Any, types: Any, met: str) -> None:
    rows, kinds = [[1]] * (SECOND + 1), [[0]] * (SECOND + 1)
    count, parts = read_ids(typed_facts(vocabulary=7), [*rows, row], [*kinds, types], Bound(3, "why"), PACKED)
    coming = iter(parts)
    assert count == SECOND + 2
    assert len(next(coming)) == SECOND
    with pytest.raises(InputError) as refused:
        next(coming)
    assert str(refused.value).startswith(met.format(n=SECOND + 1))


def test_one_that_has_no_length_is_refused_in_its_turn() -> None:
    with pytest.raises(InputError, match=r"token_ids\[1\] is array\(5\)"):
        checked(facts(), [[1], np.array(5)], None, Bound(None, ""))


def test_ids_may_come_from_an_iterator() -> None:
    assert ids(checked(facts(), iter([[1], [2, 3]]), None, Bound(None, ""))) == [[1], [2, 3]]
    assert checked(facts(), [], None, Bound(None, "")) == []
