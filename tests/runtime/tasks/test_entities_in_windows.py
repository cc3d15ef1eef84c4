"""Entities of long texts beside the pipeline's: where they differ, a window of its own cut a word or an entity."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import TokenClassificationPipeline

from headrace.runtime.tasks.answers.tagged import Aggregation
from headrace.runtime.tasks.token_classify import Entity, token_classify
from tests.runtime.tasks.test_entities import (
    TEXTS,
    Asked,
    as_entities,
    place,
    read,
    recogniser,  # noqa: F401 - a fixture
    wordpiece_tokenizer,
)

JOINING: tuple[Aggregation, ...] = ("simple", "first", "average", "max")
LONG = "\n".join(TEXTS[:2] + TEXTS[4:7]) * 2


class WholeWords(TokenClassificationPipeline):
    """The pipeline, each of whose windows holds whole words alone. All else is its own code."""

    def postprocess(self, *given: Any, **options: Any) -> Any:
        outputs, *others = given
        return super().postprocess(with_whole_words(self.tokenizer, list(outputs)), *others, **options)


def with_whole_words(tokenizer: Any, outputs: list[Any]) -> list[Any]:
    """What the windows' edges cut is left to the window that holds the word whole, or the word is completed."""
    held = [begins(one["offset_mapping"][0].tolist(), one["special_tokens_mask"][0].tolist()) for one in outputs]
    for number, (output, places) in enumerate(zip(outputs, held, strict=True)):
        later = outputs[number + 1 :], held[number + 1 :]
        for word in words_of(tokenizer, outputs[0]["sentence"]):
            part = [start for start in word if start in places]
            if not part or len(part) == len(word):
                continue
            if word[0] not in places or (later[1] and word[0] in later[1][0]):
                output["special_tokens_mask"][0, [places[start] for start in part]] = 1
            else:
                complete(output, [start for start in word if start not in places], *later)
    return outputs


def begins(offsets: list[list[int]], special: list[int]) -> dict[int, int]:
    return {start: place for place, ((start, _), own) in enumerate(zip(offsets, special, strict=True)) if not own}


def words_of(tokenizer: Any, text: str) -> list[list[int]]:
    """Where each token of each word begins."""
    read, words = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False), list[list[int]]()
    for token, (start, _) in zip(
        tokenizer.convert_ids_to_tokens(read["input_ids"]), read["offset_mapping"], strict=True
    ):
        words[-1].append(start) if token.startswith("##") else words.append([start])
    return words


def complete(output: Any, missing: list[int], later: list[Any], held: list[dict[int, int]]) -> None:
    """Put the rest of a window's last word behind it, ahead of the tokenizer's own last token."""
    for start in missing:
        other, at = next((one, places[start]) for one, places in zip(later, held, strict=True) if start in places)
        for name in ("logits", "input_ids", "offset_mapping", "special_tokens_mask"):
            mine, more = output[name], other[name][:, at : at + 1]
            output[name] = torch.cat([mine[:, :-1], more, mine[:, -1:]], 1)


def found_by(kind: type[TokenClassificationPipeline], model: Any, aggregation: str, limit: int, stride: int) -> Any:
    tokenizer = wordpiece_tokenizer()
    tokenizer.model_max_length = limit
    peer = kind(model=model, tokenizer=tokenizer, aggregation_strategy=aggregation, stride=stride)
    return as_entities(peer(LONG))


def edges(limit: int, stride: int) -> list[range]:
    """The characters between the edges of neighbouring windows: where either ends in the midst of the text."""
    cut: Any = wordpiece_tokenizer()(
        LONG, max_length=limit, stride=stride, truncation=True, return_overflowing_tokens=True,
        return_offsets_mapping=True, return_special_tokens_mask=True,
    )  # fmt: skip
    spans = [
        [span for span, own in zip(offsets, special, strict=True) if not own]
        for offsets, special in zip(cut["offset_mapping"], cut["special_tokens_mask"], strict=True)
    ]
    return [range(min(after[0][0], one[-1][1]), max(after[0][0], one[-1][1]) + 1) for one, after in pairwise(spans)]


@pytest.mark.parametrize(("limit", "stride"), [(64, 16), (32, 8), (32, 0)])
@pytest.mark.parametrize("aggregation", JOINING)
def test_a_difference_is_what_a_window_of_theirs_cut(
    recogniser: Any,  # noqa: F811
    aggregation: Aggregation,
    limit: int,
    stride: int,
) -> None:
    """Words given whole, its entities are ours but for those that lie across windows, of which it has parts."""
    kind = TokenClassificationPipeline if aggregation == "simple" else WholeWords
    theirs = found_by(kind, recogniser, aggregation, limit, stride)
    asked = Asked(wordpiece_tokenizer(), read(recogniser), recogniser, limit)
    (ours,) = token_classify(asked, LONG, aggregation, stride=stride)
    mine, other = {place(one): one for one in ours}, {place(one): one for one in theirs}
    assert all(mine[one].score == pytest.approx(other[one].score, abs=1e-5) for one in mine.keys() & other.keys())
    joined = [mine[one] for one in mine.keys() - other.keys()]
    for part in (other[one] for one in other.keys() - mine.keys()):
        assert any(one.label == part.label and one.start <= part.start and part.end <= one.end for one in joined), part
    assert all(across(one, limit, stride) for one in joined)
    assert len(mine.keys() & other.keys()) >= 10
    assert aggregation == "simple" or not any(cuts_a_word(LONG, one) for one in ours)
    assert all(one.end <= after.start for one, after in pairwise(ours))


def cuts_a_word(text: str, one: Entity) -> bool:
    return any(text[at - 1 : at].isalnum() and text[at : at + 1].isalnum() for at in (one.start, one.end))


def across(one: Entity, limit: int, stride: int) -> bool:
    return any(set(range(one.start, one.end + 1)) & set(edge) for edge in edges(limit, stride))


def test_without_it_a_part_of_a_word_is_an_entity_of_theirs(recogniser: Any) -> None:  # noqa: F811
    """What the test above mends is there: else it would hold of windows that cut no word."""
    texts = {
        kind: {place(one) for limit in (20, 24, 32) for one in found_by(kind, recogniser, "first", limit, 0)}
        for kind in (TokenClassificationPipeline, WholeWords)
    }
    assert texts[TokenClassificationPipeline] != texts[WholeWords]
