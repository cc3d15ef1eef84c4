"""Texts to token ids: limits, truncation that equals the tokenizer's own on the whole text, and what is refused."""

from __future__ import annotations

import functools
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from headrace.errors import HeadraceWarning, InputError, InputTooLongError
from headrace.ir import (
    Head,
    Input,
    Limits,
    Output,
    OutputKind,
    Positions,
    PositionSource,
    Program,
    Source,
    Stage,
    TextRules,
)
from headrace.runtime import weights
from headrace.runtime.text.bounds import Bound
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.pieces import clip
from headrace.runtime.text.tokens import Texts

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CORPUS = [
    "the quick brown fox jumps over the lazy dog, and doesn't stop.",
    "Pack my box with five dozen liquor jugs! 12345 67890 aaaa abab",
    "naïve café 東京都 こんにちは 世界 🎉🎊 Привет мир\nline two\tafter a tab",
    "def f(x):\n    return x + 1  # a comment\n\n\nprint(f(2))",
]


def program(**facts: Any) -> Program:
    """A program of facts alone."""
    plain: dict[str, Any] = {
        "exported": None,
        "source": Source("test", "", (), 0),
        "stage": Stage.TYPED,
        "dtype": "float32",
        "inputs": tuple(map(Input, ("input_ids", "attention_mask", "position_ids", "token_type_ids"))),
        "outputs": (Output("hidden", OutputKind.HIDDEN, 8),),
        "head": Head.NONE,
        "vocabulary": 1_000_000,
        "positions": Positions(PositionSource.INPUT),
        "limits": Limits(None, "nothing in the model bounds the length"),
    }
    return Program(**(plain | facts))


def limited(length: int | None, **facts: Any) -> Program:
    return program(limits=Limits(length, f"a position table of {length} rows"), **facts)


def wrapped(backend: Tokenizer, **settings: Any) -> Any:
    import transformers

    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(backend.to_str()), **settings)


@functools.cache  # training twice does not give the same ids
def trained(kind: str) -> Tokenizer:
    if kind == "wordpiece":
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL))
        backend.decoder = decoders.WordPiece()
    elif kind == "byte_level":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
        backend.decoder = decoders.ByteLevel()
    elif kind == "unigram":
        backend = Tokenizer(models.Unigram())
        backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="[UNK]")
        backend.train_from_iterator(CORPUS, trainer)
        backend.decoder = decoders.Metaspace()
    else:
        backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        special = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=special))
    return backend


def templated(backend: Tokenizer, single: str, pair: str, **special: int) -> Tokenizer:
    tokens = [(f"[{name}]", number) for name, number in special.items()] if "CLS" in special else [("<s>", 1)]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
    return backend


def wordpiece(**settings: Any) -> Any:
    """BERT's: a normaliser that drops and spaces out characters, words, [CLS] and [SEP], token types."""
    backend = templated(trained("wordpiece"), "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", CLS=2, SEP=3)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return wrapped(backend, unk_token="[UNK]", pad_token="[PAD]", **({"model_input_names": names} | settings))


def byte_level(**settings: Any) -> Any:
    """GPT's: every byte is a token or part of one, and the tokenizer adds none of its own."""
    return wrapped(trained("byte_level"), **settings)


def newline_eating(**settings: Any) -> Any:
    """Llama 3's: punctuation takes the line ends after it into its own token."""
    made = byte_level(**settings)
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, text])
    return made


def unigram(**settings: Any) -> Any:
    """XLM-R's: the best path through each word; a sign for the space before it."""
    backend = templated(trained("unigram"), "[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]", CLS=2, SEP=3)
    return wrapped(backend, unk_token="[UNK]", **settings)


def unsplit(**settings: Any) -> Any:
    """Llama 2's: trained on words, but its merges run over the whole text."""
    made = wrapped(templated(trained("unsplit"), "<s> $A", "<s> $A <s> $B"), unk_token="<unk>", **settings)
    backend = made.backend_tokenizer
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = None
    return made


def slow(**settings: Any) -> Any:
    """One that runs in Python: a token a byte."""
    import transformers

    return transformers.ByT5Tokenizer(**settings)


KINDS: dict[str, Callable[..., Any]] = {
    made.__name__: made for made in (wordpiece, byte_level, newline_eating, unigram, unsplit, slow)
}


class Counting:
    """A tokenizer that counts the characters that it is given to read."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.read = 0

    def __call__(self, *columns: list[str], **settings: Any) -> Any:
        self.read += sum(len(text) for column in columns for text in column)
        return self._tokenizer(*columns, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def ids(encoded: list[Encoded]) -> list[list[int]]:
    return [one.ids.tolist() for one in encoded]


def words(count: int, seed: int = 0) -> str:
    """Random words with their punctuation, white space of all kinds between them."""
    generator = np.random.default_rng(seed)
    vocabulary = " ".join(CORPUS).split()
    spaces = [" "] * 12 + ["  ", "\n", "\n\n\n", "\t", " \u3000 ", "\u00a0", "     ", ".\n\n"]
    picked = generator.choice(np.array(vocabulary, object), count)
    between = generator.choice(np.array(spaces, object), count)
    return "".join(word + space for word, space in zip(picked, between, strict=True))


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


def test_p11_token_types_belong_to_the_tokens_that_truncation_left() -> None:
    """Case P11: 4 query tokens and 20 document tokens, truncated from the left to 8."""
    tokenizer = wordpiece(truncation_side="left")
    query, document = "the fox the dog", "the quick dog " * 6 + "my box"
    (one,) = Texts(tokenizer, limited(8)).encode([(query, document)], truncate=True, pairs=True)
    tokens = tokenizer.convert_ids_to_tokens(one.ids.tolist())
    assert tokens == ["[CLS]", "the", "dog", "[SEP]", "dog", "my", "box", "[SEP]"]
    assert one.types is not None
    assert one.types.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_p12_token_types_tell_query_from_document() -> None:
    """Case P12: equal to transformers' own, and not all zero."""
    tokenizer = wordpiece()
    (one,) = Texts(tokenizer, program()).encode([("the fox", "the dog")], truncate=None, pairs=True)
    assert one.types is not None
    assert one.types.tolist() == tokenizer("the fox", "the dog")["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


def test_p13_no_token_types_where_the_tokenizer_or_the_model_has_none() -> None:
    """Case P13: None, which the batch feeds as zeros."""
    names = ["input_ids", "attention_mask"]
    for tokenizer, inputs in (
        (wordpiece(model_input_names=names), program()),
        (wordpiece(), program(inputs=(Input("input_ids"),))),
    ):
        (one,) = Texts(tokenizer, inputs).encode([("the fox", "the dog")], truncate=None, pairs=True)
        assert one.types is None


@pytest.mark.parametrize("kind", ["byte_level", "unsplit", "slow"])
def test_p14_a_pair_without_a_separator_holds_no_none(kind: str) -> None:
    """Case P14: what the tokenizer lacks does not turn into the text "None"."""
    tokenizer = KINDS[kind]()
    (one,) = Texts(tokenizer, program()).encode([("ab", "cd")], truncate=None, pairs=True)
    assert "None" not in tokenizer.decode(one.ids.tolist())
    assert one.ids.tolist() == tokenizer("ab", "cd")["input_ids"]


def test_l1_a_text_above_the_token_budget_is_an_error_or_truncated() -> None:
    """Case L1: budget 16, 40 tokens."""
    texts = Texts(byte_level(), limited(512), token_budget=16)
    with pytest.raises(InputTooLongError, match=r"40 tokens; at most 16 .*token_budget=16"):
        texts.encode(["#" * 40], truncate=False)
    assert len(texts.encode(["#" * 40], truncate=True)[0].ids) == 16


def test_l3_an_empty_text_is_what_the_tokenizer_adds_or_an_error() -> None:
    """Case L3."""
    assert ids(Texts(wordpiece(), limited(8)).encode(["", "fox"], truncate=None))[0] == [2, 3]
    with pytest.raises(InputError, match=r"Text 1 has no tokens: .*adds no special tokens"):
        Texts(byte_level(), limited(8)).encode(["fox", ""], truncate=None)


@pytest.mark.parametrize("kind", KINDS)
def test_s5_texts_are_not_stripped(kind: str) -> None:
    """Case S5: white space goes to the tokenizer as it is."""
    tokenizer = KINDS[kind]()
    text = " text\n"
    assert ids(Texts(tokenizer, limited(30)).encode([text], truncate=None)) == [tokenizer(text)["input_ids"]]


def test_s5_real_weights_equal_sentence_transformers() -> None:
    """Case S5, and padding and truncation to 128 that MiniLM's tokenizer.json brings."""
    from sentence_transformers import SentenceTransformer
    from transformers import AutoTokenizer

    folder = weights.folder("minilm")
    peer = SentenceTransformer(str(folder), device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    backend: Any = tokenizer.backend_tokenizer
    assert backend.padding["length"] == backend.truncation["max_length"] == 128
    rules = TextRules(max_length=peer.max_seq_length, truncates=True)
    texts = Texts(tokenizer, limited(512, text=rules))
    samples = [" text\n", "text", "", "Two  Words\t", "fox " * 200, "fox " * 3000, "東京 🎉"]
    for sample, one in zip(samples, texts.encode(samples, truncate=True), strict=True):
        assert one.ids.tolist() == peer.preprocess([sample])["input_ids"][0].tolist(), sample


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
    assert Texts(tokenizer, limited(512, text=text), max_length, budget)._bound == Bound(length, why)


def test_nothing_bounds_a_model_without_limits() -> None:
    texts = Texts(byte_level(), program())
    assert texts._bound == Bound(None, "nothing in the model bounds the length")
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
        Texts(byte_level(), limited(8)).encode(["#", "#" * 9, "#" * 10], truncate=False, first=100)


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
            reader.encode([*usual, text], truncate=False, first=7)
    folder = program(limits=Limits(2000, "a table"), text=TextRules(max_length=400, truncates=True, why="the folder"))
    with pytest.warns(HeadraceWarning, match="1 of 101 texts, the first of them text 107, were truncated") as caught:
        found = Texts(wordpiece(), folder).encode(["the fox " * 150] * 100 + ["fox. " * 900], truncate=None, first=7)
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


@pytest.mark.parametrize("thing", [None, 5, b"bytes", ["nested"], ("a", "b"), float("nan")])
def test_what_is_no_text_is_refused(thing: Any) -> None:
    with pytest.raises(InputError, match=r"Text 1 is .*; here a str is accepted"):
        Texts(wordpiece(), program()).encode(["fox", thing], truncate=None)


@pytest.mark.parametrize("thing", [None, "fox", "ab", ("a",), ("a", "b", "c"), ("a", None), (("a", "b"), "c")])
def test_what_is_no_pair_is_refused(thing: Any) -> None:
    with pytest.raises(InputError, match=r"Text 1 is .*; here a pair of two str is accepted"):
        Texts(wordpiece(), program()).encode([("a", "b"), thing], truncate=None, pairs=True)


def test_no_texts_are_no_requests() -> None:
    for pairs in (False, True):
        assert Texts(wordpiece(), limited(8)).encode([], truncate=None, pairs=pairs) == []


def test_half_a_surrogate_pair_is_refused() -> None:
    for tokenizer in (wordpiece(), slow()):
        with pytest.raises(InputError, match="Text 0 has half a surrogate pair at character 2"):
            Texts(tokenizer, program()).encode(["ab\ud800"], truncate=None)


def test_a_tokenizer_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"Text 0 has token id .* 5 token embeddings"):
        Texts(wordpiece(), program(vocabulary=5)).encode(["fox"], truncate=None)


def test_no_tokenizer_takes_no_texts() -> None:
    texts = Texts(None, limited(8, text=TextRules(max_length=4, lower_case=True)))
    assert texts._bound.length == 4
    with pytest.raises(InputError, match=r"no tokenizer.*tokenizer=.*token ids"):
        texts.encode(["fox"], truncate=None)
    with pytest.raises(InputError, match="a tokenizer of transformers is accepted"):
        Texts("bert-base-uncased", limited(8))


def test_a_prompt_is_a_name_a_text_or_the_default() -> None:
    rules = TextRules(prompts=(("query", "find: "), ("passage", "")), default_prompt="query")
    texts = Texts(byte_level(), program(text=rules))

    def read(prompt: str | None, text: Any = "fox", **options: Any) -> str:
        (one,) = texts.encode([text], truncate=None, prompt=prompt, **options)
        return str(byte_level().decode(one.ids.tolist()))

    assert read(None) == read("query") == "find: fox"
    assert read("") == read("passage") == "fox"
    assert read("say ") == "say fox"
    assert read("query", ("a", "b"), pairs=True) == "find: ab"
    lost = TextRules(default_prompt="lost", prompts=(("query", "find: "),))
    with pytest.raises(InputError, match="default prompt 'lost' is not among its prompts \\(query\\)"):
        Texts(byte_level(), program(text=lost)).encode(["fox"], truncate=None)


@pytest.mark.parametrize("kind", ["byte_level", "slow"])
def test_lower_case_is_the_folders_rule_and_leaves_the_users_tokenizer_alone(kind: str) -> None:
    tokenizer = KINDS[kind]()
    lower = Texts(tokenizer, program(text=TextRules(lower_case=True)))
    assert ids(lower.encode(["FOX"], truncate=None)) == [tokenizer("fox")["input_ids"]]
    assert tokenizer("FOX")["input_ids"] != tokenizer("fox")["input_ids"]


def test_lower_case_knows_special_tokens() -> None:
    """As in sentence-transformers, which lower-cases inside the tokenizer."""
    tokenizer = wordpiece()
    lower = Texts(tokenizer, program(text=TextRules(lower_case=True)))
    assert ids(lower.encode(["FOX [MASK]"], truncate=None)) == [tokenizer("fox [MASK]")["input_ids"]]


@pytest.mark.parametrize("side", ["right", "left"])
def test_spans_are_places_in_the_whole_text(side: str) -> None:
    tokenizer = wordpiece(truncation_side=side)
    text = words(2000)
    (one,) = Texts(tokenizer, limited(20)).encode([text], truncate=True, offsets=True)
    whole = tokenizer(
        text, truncation=True, max_length=20, return_offsets_mapping=True, return_special_tokens_mask=True
    )
    assert one.spans is not None
    assert one.spans.offsets == whole["offset_mapping"]
    assert one.spans.special.tolist() == whole["special_tokens_mask"]
    assert one.spans.tokens == tokenizer.convert_ids_to_tokens(whole["input_ids"])
    assert one.spans.marked
    assert not Texts(byte_level(), program()).encode(["fox"], truncate=None, offsets=True)[0].spans.marked


def test_a_slow_tokenizer_gives_ids_but_no_spans() -> None:
    texts = Texts(slow(), limited(8))
    assert ids(texts.encode(["fox"], truncate=None)) == [slow()("fox")["input_ids"]]
    with pytest.raises(InputError, match=r"runs in Python and cannot say where.*fast one"):
        texts.encode(["fox"], truncate=None, offsets=True)


def test_threads_use_the_tokenizer_one_at_a_time() -> None:
    """It keeps settings between calls, and raises where they are set during another's call."""

    class Slow(Counting):
        inside = most = 0

        def __call__(self, *columns: list[str], **settings: Any) -> Any:
            self.inside += 1
            self.most = max(self.most, self.inside)
            time.sleep(0.002)  # time for another thread to come in
            self.inside -= 1
            return super().__call__(*columns, **settings)

    tokenizer = Slow(wordpiece())
    texts = Texts(tokenizer, limited(16))
    threads = [threading.Thread(target=texts.encode, args=(["the fox"],), kwargs={"truncate": True}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tokenizer.most == 1


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
