"""Prompts in every form become the ids that transformers makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.errors import HeadraceError, InputError, InputTooLongError
from headrace.runtime.generate.prompts import Prompts
from tests import trained

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }} {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant{{ ' ' + mood if mood else '' }} {% endif %}"
)
CHAT = [{"role": "system", "content": "the quick"}, {"role": "user", "content": "lazy dog?"}]


def tokenizer(**settings: Any) -> Any:
    return trained.unsplit(chat_template=TEMPLATE, **settings)


def read(prompts: Any, length: int | None = None, **template: Any) -> list[list[int]]:
    made = Prompts(tokenizer(), trained.limited(length) if length else trained.program())
    return [ids.tolist() for ids in made.read(prompts, template)]


def chat_ids(chat: Any, **options: Any) -> list[int]:
    made = tokenizer().apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=True, **options)
    return list(made["input_ids"])


def test_texts_keep_the_tokenizers_own_tokens() -> None:
    texts = ["the quick brown fox", "  lazy\n"]
    assert read(texts) == [tokenizer()(text)["input_ids"] for text in texts]
    assert read(texts[0]) == read(texts[:1])


def test_chats_are_rendered_up_to_where_the_answer_begins() -> None:
    assert read(CHAT) == read([CHAT]) == [chat_ids(CHAT)]
    assert read(tuple(CHAT)) == [chat_ids(CHAT)]
    assert read([CHAT, CHAT[1:]], mood="happy") == [chat_ids(one, mood="happy") for one in (CHAT, CHAT[1:])]
    # The template's tokens are all there are: the tokenizer adds none of its own.
    assert read(CHAT)[0].count(1) == 2


def test_ids_are_taken_as_they_are() -> None:
    assert read([5, 6, 7]) == [[5, 6, 7]]
    assert read([[5, 6], np.array([7])]) == [[5, 6], [7]]
    assert read(np.array([[5, 6], [7, 8]])) == [[5, 6], [7, 8]]
    assert read(np.array([5, 6])) == [[5, 6]]
    assert all(ids.dtype == np.int64 for ids in Prompts(None, trained.program()).read([[1, 2], [3]]))


def test_forms_mix_and_keep_their_order() -> None:
    assert read(["lazy", [5, 6], CHAT, "dog"]) == [*read("lazy"), [5, 6], *read(CHAT), *read("dog")]
    assert read(iter(["lazy", "dog"])) == read(["lazy", "dog"])
    assert read([]) == []


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (3, r"Prompt 0 is 3; a text, a chat \(a list of mappings with role and content\) or a sequence of token ids"),
        (None, "Prompt 0 is None; a text, a chat"),
        (["a", None], "Prompt 1 is None; a text, a chat"),
        (["a", b"b"], "Prompt 1 is b'b'; a text, a chat"),
        ({"role": "user", "content": "a"}, "The prompts came as .* which has no order"),
        ([[]], r"Prompt 0: token_ids\[0\] is \[\]; a sequence of one or more int is accepted"),
        (["a", [4], [1.5]], r"Prompt 2: token_ids\[0\] is \[1.5\]; a sequence of one or more int"),
        ([[2_000_000]], r"token_ids\[0\] holds 2000000; 0 to 999999 are accepted"),
        (["a", ["b"]], r"Prompt 1: token_ids\[0\] is \['b'\]; a sequence of one or more int is accepted"),
        (["a", "b\ud800"], "Text 1 has half a surrogate pair"),
        ([[4], "b", "\ud800"], "Text 2 has half a surrogate pair"),
        ([[*CHAT, "no"]], "Prompt 0 has the message 'no'; a mapping with role and content is accepted"),
        ([[{"role": "user"}]], r"Prompt 0 has the message \{'role': 'user'\}; a mapping with role and content"),
    ],
)
def test_what_is_no_prompt_is_refused(prompts: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(prompts)


def test_a_chat_needs_a_template() -> None:
    with pytest.raises(InputError, match="Prompt 0 is a chat, and the tokenizer has no chat template"):
        Prompts(trained.unsplit(), trained.program()).read(CHAT)
    with pytest.raises(InputError, match="Prompt 0 is a chat, and the model has no tokenizer"):
        Prompts(None, trained.program()).read(CHAT)


def test_a_template_that_fails_says_of_what() -> None:
    strict = trained.unsplit(chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InputError, match=r"cannot render prompt 0, with messages of system, user: .*must alternate"):
        Prompts(strict, trained.program()).read(CHAT)


@pytest.mark.parametrize("prompts", ["the quick brown fox jumps over it", [CHAT], [[5] * 9]])
def test_a_prompt_longer_than_the_model_reads_is_refused(prompts: Any) -> None:
    with pytest.raises(InputTooLongError, match="at most 4 are accepted"):
        read(prompts, length=4)


def test_a_text_needs_a_tokenizer() -> None:
    with pytest.raises(HeadraceError, match="has no tokenizer, so it takes no texts"):
        Prompts(None, trained.program()).read("a")
