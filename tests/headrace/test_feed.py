"""Feeds by role: both layouts, padding on either side, and the token that a head looks for."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import feed
from headrace.ir import OFFSETS, Positions, PositionSource, Role
from tests.synthetic import facts, token_inputs

IDS, TYPES = [np.array([7, 8]), np.array([4, 5, 6])], [np.array([0, 1]), None]


def test_padding_on_the_right_takes_the_first_position() -> None:
    """P8: the RoBERTa family starts past its padding id."""
    found = feed.padded(IDS, TYPES, offset=2, width=4)
    assert {role: array.tolist() for role, array in found.items()} == {
        Role.IDS: [[7, 8, 0, 0], [4, 5, 6, 0]],
        Role.PADDING: [[1, 1, 0, 0], [1, 1, 1, 0]],
        Role.POSITIONS: [[2, 3, 2, 2], [2, 3, 4, 2]],
        Role.TYPES: [[0, 1, 0, 0], [0, 0, 0, 0]],
    }


def test_padding_on_the_left_moves_no_position() -> None:
    found = feed.padded(IDS, TYPES, left=True)
    assert found[Role.IDS].tolist() == [[0, 7, 8], [4, 5, 6]]
    assert found[Role.POSITIONS].tolist() == [[0, 0, 1], [0, 1, 2]]
    assert found[Role.TYPES].tolist() == [[0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize("left", [False, True])
def test_what_none_attends_to_is_padding_to_the_mask_alone(left: bool) -> None:
    lengths, unseen = np.array([3, 2, 4]), np.array([1, -2, 0])
    found = feed.pad(np.arange(1, 10), lengths, width=5, left=left, unseen=unseen)
    for row, (length, hidden) in enumerate(zip(lengths, unseen, strict=True)):
        begin = 5 - length if left else 0
        mask = np.zeros(5, np.int64)
        mask[begin - min(hidden, 0) : begin + length - max(hidden, 0)] = 1
        assert found[Role.PADDING][row].tolist() == mask.tolist()
        assert found[Role.POSITIONS][row, begin : begin + length].tolist() == list(range(length))


def test_a_packed_row_has_what_the_program_takes() -> None:
    program = facts(
        inputs=token_inputs("input_ids", "position_ids", OFFSETS), positions=Positions(PositionSource.INPUT, 2)
    )
    found = feed.packed(program, IDS, TYPES, width=6)
    assert {role: array.tolist() for role, array in found.items()} == {
        Role.IDS: [[7, 8, 4, 5, 6, 0]],
        Role.POSITIONS: [[2, 3, 2, 3, 4, 2]],
        Role.OFFSETS: [0, 2, 5],
    }
    assert feed.packed(program, IDS[:1])[Role.OFFSETS].tolist() == [0, 2, 2]


def test_a_program_is_fed_by_its_own_names_in_its_order() -> None:
    signature = facts(inputs=token_inputs("attention_mask", "input_ids")).signature
    fed = signature.named(feed.padded(IDS))
    assert list(fed) == ["attention_mask", "input_ids"]
    assert signature.name(Role.PADDING) == "attention_mask"
    assert not signature.has(Role.TYPES)
    assert signature.names(Role.PADDING, Role.TYPES) == {"attention_mask"}


@pytest.mark.parametrize(("ids", "wanted"), [([5, 9, 5, 2], [5, 0, 5, 9]), ([9], [9]), ([], [])])
def test_the_marker_stands_at_the_end_and_nowhere_else(ids: list[int], wanted: list[int]) -> None:
    """It may be the last of the vocabulary."""
    marks = facts(marker=9, vocabulary=10).signature
    assert feed.marked(marks, np.array(ids, np.int64)).tolist() == wanted
    plain = facts(vocabulary=10).signature
    assert feed.marked(plain, np.array(ids, np.int64)).tolist() == ids


def test_random_texts_keep_to_the_vocabulary() -> None:
    signature, random = facts(marker=9, vocabulary=10).signature, np.random.default_rng(0)
    ids = feed.random_ids(signature, random, 500, first=3)
    assert ids[-1] == 9
    assert set(ids[:-1].tolist()) <= {0, *range(3, 9)}
    assert ids.dtype == np.int64
    assert feed.random_ids(facts(vocabulary=2).signature, random, 3, first=3).tolist() == [1, 1, 1]
