"""How long texts may be, and truncation that equals the tokenizer's own on the whole text."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.errors import HeadraceWarning, InputError, InputTooLongError
from headrace.ir import (
    Limits,
    TextRules,
)
from headrace.runtime.places import Places
from headrace.runtime.text.bounds import Bound
from headrace.runtime.text.texts import Texts
from headrace.runtime.text.truncation import clip
from tests.trained import (
    CORPUS,
    KINDS,
    Counting,
    byte_level,
    ids,
    limited,
    program,
    slow,
    wordpiece,
    words,
)

LONG = {
    "words": words(2000),
    "no spaces": "".join(words(1500, 1).split()),
    "one letter": "a" * 4001,
    "one emoji": "🎉" * 1501,
    "cjk": "東京都の天気。" * 400,
    "spaces inside": words(40, 2) + " " * 6000 + words(400, 3) + "\n" * 3000 + words(40, 4),
    "spaces outside": " \n\t " * 800 + words(300, 5) + " " * 2500,
    "only spaces": " \n" * 3000,
    "controls": "ab\x1c cd\x00 ef\x85 \u2028gh\r\n" * 400,
    "accents after spaces": "a \u0301e \u0308o " * 500,
    "special tokens": "the [SEP] quick [MASK] <s> fox " * 200,
    "code": CORPUS[3] * 60,
    "short": words(10, 6),
    "at the limit": "fox " * 20,
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_truncation_of_a_clipped_text_equals_that_of_the_whole(kind: str, side: str) -> None:
    """Case L4: exactly the ids that the tokenizer gives when it truncates the whole text."""
    tokenizer = KINDS[kind](truncation_side=side)
    for longest in (8, 20, 21):
        texts = Texts(tokenizer, limited(longest))
        for name, text in LONG.items():
            whole = tokenizer([text], truncation=True, max_length=longest)["input_ids"]
            if not whole[0]:
                continue  # white space alone, to a tokenizer that adds nothing
            assert ids(texts.encode([text], truncate=True)) == whole, (name, longest)


SIDES = [
    words(3, 1),
    words(60, 2),
    words(120, 3),
    words(250, 4),
    "a " * 500,
    "12 " * 340,
    "a" * 1000,
    "東京都の" * 200,
    words(160, 5) + " b" * 200,
    " " * 1000 + words(100, 6),
]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_truncation_of_clipped_pairs_equals_that_of_the_whole(kind: str, side: str) -> None:
    """Case L4 on pairs: which text loses the odd token depends on which is longer in tokens, not in characters."""
    tokenizer = KINDS[kind](truncation_side=side)
    generator = np.random.default_rng(7)
    pairs = [(SIDES[i], SIDES[j]) for i, j in generator.integers(len(SIDES), size=(30, 2))]
    # As many characters, but the tokens of one stand at an end.
    pairs += [(late := " " * 700 + "a b " * 50, "12 " * 300), ("12 " * 300, late), (late[::-1], "12 " * 300)]
    for longest in (40, 41):
        whole = tokenizer([a for a, _ in pairs], [b for _, b in pairs], truncation=True, max_length=longest)
        encoded = Texts(tokenizer, limited(longest)).encode(pairs, truncate=True, pairs=True)
        assert ids(encoded) == whole["input_ids"]
        if kind == "wordpiece":
            assert [one.types.tolist() for one in encoded if one.types is not None] == whole["token_type_ids"]


def test_two_long_texts_do_not_meet_in_every_combination() -> None:
    """What a fast tokenizer's own truncation does with a pair, in all of the machine's memory."""
    text = "the fox " * 8_000
    (one,) = Texts(wordpiece(), limited(16)).encode([(text, text)], truncate=True, pairs=True)
    assert len(one.ids) == 16


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level", "unigram"])
def test_a_long_text_costs_no_more_than_a_short_one(kind: str) -> None:
    """Case L4: a million characters, 512 tokens, against twenty thousand characters: counted in characters read."""
    read = {}
    for size in (20_000, 1_000_000):
        text = (CORPUS[0] + " " + CORPUS[1] + " ") * (size // 127)
        for truncate in (True, False):
            counting = Counting(KINDS[kind]())
            texts = Texts(counting, limited(512))
            if truncate:
                assert len(texts.encode([text], truncate=True)[0].ids) == 512
            else:
                with pytest.raises(InputTooLongError, match=r"more than \d+ tokens; at most 512"):
                    texts.encode([text], truncate=False)
            read[size, truncate] = counting.read
    assert read[1_000_000, True] <= 3 * min(20_000, read[20_000, True])
    assert read[1_000_000, False] <= 20_000


def test_all_looks_at_a_text_together_stay_in_proportion_to_it() -> None:
    """Where a cut never helps, clipping costs a few times the whole, not one whole a look."""
    counting = Counting(wordpiece())
    text = ("x" * 2000 + " ") * 300  # words of 2,000 letters, each one unknown
    Texts(counting, limited(512)).encode([text], truncate=True)
    assert counting.read <= 3 * len(text)


def test_a_clipped_text_ends_past_a_word_between_spaces() -> None:
    text = "one two  three\nfour "
    for size in range(len(text)):
        right, left = clip((text,), size, "right"), clip((text,), size, "left")
        assert right.parts[0] in ("one two", "one two  three", "one two  three\nfour", text)
        assert left.parts[0] in ("four ", "three\nfour ", "two  three\nfour ", text)
        assert min(len(right.parts[0]), len(left.parts[0])) >= size
        assert (right.spare is None) == (right.parts[0] == text)
        assert text[left.start :] == left.parts[0]


def test_p9_xlm_r_with_514_positions_takes_512_tokens() -> None:
    """Case P9: a text of 600 tokens is truncated to 512 where asked; else an error names both numbers."""
    texts = Texts(byte_level(), limited(512))
    text = "".join(chr(97 + i % 26) + "#" for i in range(300))
    assert len(byte_level()(text)["input_ids"]) == 600
    assert len(texts.encode([text], truncate=True)[0].ids) == 512
    for refused in (None, False):
        with pytest.raises(
            InputTooLongError, match=r"Text 0 has 600 tokens; at most 512 .*position table.*truncate=True"
        ):
            texts.encode([text], truncate=refused)


def test_p10_usable_length_10_takes_10_tokens_of_11() -> None:
    """Case P10: RobertaConfig(pad_token_id=3, max_position_embeddings=14)."""
    texts = Texts(byte_level(), limited(10))
    assert len(texts.encode(["#" * 10], truncate=False)[0].ids) == 10
    assert len(texts.encode(["#" * 11], truncate=True)[0].ids) == 10
    with pytest.raises(InputTooLongError, match="11 tokens; at most 10"):
        texts.encode(["#" * 11], truncate=None)


def test_l1_a_text_above_the_token_budget_is_an_error_or_truncated() -> None:
    """Case L1: budget 16, 40 tokens."""
    texts = Texts(byte_level(), limited(512), token_budget=16)
    with pytest.raises(InputTooLongError, match=r"40 tokens; at most 16 .*token_budget=16"):
        texts.encode(["#" * 40], truncate=False)
    assert len(texts.encode(["#" * 40], truncate=True)[0].ids) == 16


@pytest.mark.parametrize(
    ("text", "max_length", "budget", "stated", "length", "why"),
    [
        (TextRules(), None, None, None, 512, "a position table of 512 rows"),
        (TextRules(), None, None, 128, 128, "the tokenizer's model_max_length"),
        (TextRules(max_length=256, why="the folder"), None, None, 128, 256, "the folder"),
        (TextRules(max_length=256), 300, None, 128, 300, "max_length=300"),
        (TextRules(max_length=256), 300, 40, 128, 40, "token_budget=40"),
        (TextRules(max_length=1024), None, None, None, 512, "a position table of 512 rows"),
    ],
)
def test_the_bound_is_the_least_and_says_what_sets_it(
    text: TextRules, max_length: int | None, budget: int | None, stated: int | None, length: int, why: str
) -> None:
    tokenizer = wordpiece() if stated is None else wordpiece(model_max_length=stated)
    assert Texts(tokenizer, limited(512, text=text), max_length, budget).bound == Bound(length, why)


def test_nothing_bounds_a_model_without_limits() -> None:
    texts = Texts(byte_level(), program())
    assert texts.bound == Bound(None, "nothing in the model bounds the length")
    assert len(texts.encode(["#" * 5000], truncate=True)[0].ids) == 5000


def test_limits_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="max_length is 600, but the model reads at most 512 tokens"):
        Texts(wordpiece(), limited(512), max_length=600)
    with pytest.raises(InputError, match="token_budget is 0; an int of 1 and above"):
        Texts(wordpiece(), limited(512), token_budget=0)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_no_room_for_the_special_tokens_is_an_error(kind: str) -> None:
    """Tokenizers answer with the untruncated text then."""
    with pytest.raises(InputTooLongError, match=r"At most 1 tokens .*no room beside those that the tokenizer adds"):
        Texts(KINDS[kind](), limited(1)).encode(["the fox"], truncate=True)


def test_a_folder_that_truncates_does_so_with_one_warning() -> None:
    texts = Texts(byte_level(), limited(8, text=TextRules(max_length=4, truncates=True, why="the folder")))
    with pytest.warns(HeadraceWarning, match=r"2 of 3 texts, .* text 1, .* 4 tokens \(the folder\)") as caught:
        encoded = texts.encode(["##", "#####", "######"], truncate=None)
    assert [len(one.ids) for one in encoded] == [2, 4, 4]
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        texts.encode(["#####"], truncate=True)
    with pytest.raises(InputTooLongError, match="5 tokens; at most 4"):
        texts.encode(["#####"], truncate=False)


def test_a_text_too_long_is_named_by_its_number() -> None:
    with pytest.raises(InputTooLongError, match=r"Text 101 has 9 tokens.*\(1 more of these texts are too long\)"):
        Texts(byte_level(), limited(8)).encode(["#", "#" * 9, "#" * 10], truncate=False, places=Places(100))


def test_texts_of_later_parts_are_named_by_their_numbers() -> None:
    usual = ["the fox " * 300] * 100
    reader = Texts(wordpiece(), program(limits=Limits(2000, "a table")))
    assert len(list(reader.ahead(usual, truncate=None))) > 1
    refused = {
        "Text 107 is 5; here a str is accepted": 5,
        "Text 107 has half a surrogate pair": "\ud800",
        r"Text 107 has .* tokens; at most 2000 are accepted": "fox. " * 4000,
    }
    for met, text in refused.items():
        with pytest.raises(InputError, match=met):
            reader.encode([*usual, text], truncate=False, places=Places(7))
    folder = program(limits=Limits(2000, "a table"), text=TextRules(max_length=400, truncates=True, why="the folder"))
    with pytest.warns(HeadraceWarning, match="1 of 101 texts, the first of them text 107, were truncated") as caught:
        found = Texts(wordpiece(), folder).encode(
            ["the fox " * 150] * 100 + ["fox. " * 900], truncate=None, places=Places(7)
        )
    assert len(caught) == 1
    assert [one.lost > 0 for one in found] == [False] * 100 + [True]


@pytest.mark.parametrize("count", [1, 80])
@pytest.mark.parametrize("made", [wordpiece, slow])
def test_what_truncation_took_away_is_counted(made: Callable[..., Any], count: int) -> None:
    """Of a text that was read whole; of a longer one, as much as was read."""
    texts = ["the fox jumps over the dog", "the fox", "the fox " * 400] * count
    whole = [len(one.ids) for one in Texts(made(), program()).encode(texts[:3], truncate=False)]
    for one, tokens in zip(Texts(made(), limited(6)).encode(texts, truncate=True), whole * count, strict=True):
        assert len(one.ids) == min(6, tokens)
        assert 0 <= one.lost <= tokens - len(one.ids)
        assert (one.lost > 0) == (tokens > 6)
        assert tokens > 100 or one.whole == tokens


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_disturbs_fewer_tokens_than_are_spared(kind: str, side: str) -> None:
    """The tests above would pass by luck otherwise: how far from a cut do tokens differ at most?"""
    tokenizer = KINDS[kind]()
    back = -1 if side == "left" else 1
    for text in LONG.values():
        for size in (0, 400, 401, 402):
            piece = clip((text,), size, side)
            part, whole = tokenizer([piece.parts[0], text], add_special_tokens=False)["input_ids"]
            ends = zip(part[::back], whole[::back], strict=False)
            same = next((i for i, (a, b) in enumerate(ends) if a != b), len(part))
            assert len(part) - same <= (piece.spare or 0)
