"""Labelled tokens to entities: as transformers' pipeline finds them, whole, in windows and of given words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace import examples
from headrace.errors import InputError, InputTooLongError
from headrace.frontend.facts.config_claims import read_labels
from headrace.ir import (
    Activation,
    Head,
    Labels,
    Limits,
    Output,
    OutputKind,
    Positions,
    PositionSource,
    Program,
    Source,
    Stage,
)
from headrace.runtime.tasks.answers.tagged import AGGREGATIONS, Aggregation
from headrace.runtime.tasks.token_classify import Entity, Shape, entities, token_classify
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.texts import Texts
from tests.synthetic import token_inputs

TEXTS = [
    "My name is Mary Jane Watson-Parker and I live at 12 Baker Street, London NW1 6XE.",
    "Reach Jean-François O'Neill (jf.oneill+spam@example.co.uk) or call +44 20 7946 0958!",
    "🎉 Zoë Müller 🎊 paid with 4111 1111 1111 1111, exp. 09/27 — CVV 123 😀",
    "张伟 lives in 北京 and Владимир in Москва.",
    "   leading, trailing   and\nbroken\tlines of Dr.   Smith   ",
    "Nothing to see here.",
    "supercalifragilisticexpialidocious Anderson1984 ID:AB-123456-C https://a.b/c?d=e",
    "",
]


def facts(vocabulary: int, labels: Labels | None = None) -> Program:
    return Program.of(
        exported=None,
        source=Source("test", "", (), 0),
        stage=Stage.TYPED,
        dtype="float32",
        inputs=token_inputs("input_ids"),
        outputs=(Output("logits", OutputKind.TOKEN_LOGITS, 8),),
        head=Head.TOKEN,
        vocabulary=vocabulary,
        positions=Positions(PositionSource.GRAPH),
        limits=Limits(None, "nothing"),
        labels=labels,
    )


@dataclass
class Asked:
    """A call that a model's own module answers, each request alone; without one, made-up logits do."""

    tokenizer: Any
    labels: Labels
    module: Any = None
    max_length: int | None = None
    truncate: bool | None = None
    first: int = 0

    @property
    def program(self) -> Program:
        return facts(len(self.tokenizer), self.labels)

    def texts(self) -> Texts:
        return Texts(self.tokenizer, self.program, self.max_length)

    def drawn(self, texts: Any) -> list[Any]:
        return list(self.texts().drawn(texts))

    def lane(self) -> None:
        """Nothing is compiled."""

    def encoded_rows(self, encoded: list[Encoded], texts: Sequence[int]) -> list[Any]:
        if self.module is None:
            return [made_up(one, len(self.labels.names)) for one in encoded]
        import torch

        with torch.no_grad():
            return [self.module(torch.from_numpy(one.ids)[None]).logits[0].numpy() for one in encoded]


def made_up(encoded: Encoded, labels: int) -> Any:
    """Logits that depend on a token and where it stands in its text, whatever stands around it."""
    assert encoded.spans is not None
    seeds = zip(encoded.ids.tolist(), encoded.spans.offsets, strict=True)
    return np.stack([np.random.default_rng([token, *where]).normal(0, 2, labels) for token, where in seeds])


def as_entities(found: list[dict[str, Any]]) -> list[Entity]:
    return [
        Entity(
            one.get("entity") or one["entity_group"], one["score"], one["start"], one["end"], one["word"],
            one.get("index"),
        )
        for one in found
    ]  # fmt: skip


def place(one: Entity) -> Any:
    return one.label, one.start, one.end, one.word, one.index


def assert_same(found: list[Entity], expected: list[Entity]) -> None:
    assert [place(one) for one in found] == [place(one) for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-5)


@pytest.fixture(scope="module")
def recogniser() -> Any:
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(examples.folder("rampart_ner")).eval()


def read(model: Any) -> Labels:
    found = read_labels(model.config, Head.TOKEN, model.config.num_labels)
    assert found is not None
    return found


def peer_of(model: Any, aggregation: str, limit: int | None = None, **options: Any) -> Any:
    """The pipeline, with a tokenizer that says that the model reads so many tokens."""
    from transformers import pipeline

    tokenizer = wordpiece_tokenizer()
    tokenizer.model_max_length = limit or tokenizer.model_max_length
    return pipeline(
        "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy=aggregation, **options
    )


@pytest.mark.parametrize(
    ("aggregation", "ignored"),
    [(one, None) for one in AGGREGATIONS]
    + [(one, kept) for one in ("none", "first") for kept in ([], ["GIVEN_NAME", "O"])],
)
def test_entities_equal_those_of_transformers(recogniser: Any, aggregation: Aggregation, ignored: Any) -> None:
    """Real weights, each text by transformers' pipeline; `index` is in the comparison."""
    peer = peer_of(recogniser, aggregation)
    found = token_classify(Asked(wordpiece_tokenizer(), read(recogniser), recogniser), TEXTS, aggregation, ignored)
    for text, ours in zip(TEXTS, found, strict=True):
        assert_same(ours, as_entities(peer(text, ignore_labels=ignored)))
    assert sum(map(len, found)) >= 10


def wordpiece_tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(examples.folder("rampart_ner"))


def byte_level_tokenizer() -> Any:
    """One whose tokens do not say that they continue a word."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet))
    backend.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)


def word_level_tokenizer() -> Any:
    """One that knows few words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "in": 1, "and": 2, "-": 3, "/": 4}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def labels_of(names: tuple[str, ...]) -> Labels:
    return Labels(names, Activation.SOFTMAX, "test")


NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC", "X-odd-name", "B-O")


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kind", [wordpiece_tokenizer, byte_level_tokenizer, word_level_tokenizer])
def test_entities_of_any_logits_equal_those_of_transformers(kind: Any, aggregation: Aggregation) -> None:
    """The pipeline's own post-processing, on logits in which every label meets every other."""
    import torch
    from transformers import TokenClassificationPipeline
    from transformers.pipelines.token_classification import AggregationStrategy

    tokenizer = kind()
    peer: Any = object.__new__(TokenClassificationPipeline)
    peer.tokenizer = tokenizer
    peer.model = SimpleNamespace(config=SimpleNamespace(id2label=dict(enumerate(NAMES))))
    read = labels_of(NAMES)
    generator = np.random.default_rng(3)
    for text in TEXTS[:-1] * 3:
        (one,) = Texts(tokenizer, facts(len(tokenizer))).encode([text], truncate=None, offsets=True)
        assert one.spans is not None
        logits = generator.normal(0, 2, (len(one.ids), len(NAMES))).astype(np.float32)
        outputs = {
            "logits": torch.from_numpy(logits)[None],
            "sentence": text,
            "input_ids": torch.from_numpy(one.ids)[None],
            "offset_mapping": [one.spans.offsets],
            "special_tokens_mask": torch.from_numpy(one.spans.special)[None],
        }
        expected = peer.postprocess([outputs], AggregationStrategy(aggregation))
        assert_same(entities([logits], read, text, one, Shape(aggregation)), as_entities(expected))


IOB = ("O", "O2", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC")
WITHOUT_B = ("O", "O2", "I-PER", "I-LOC", "MISC")
TOKENIZERS = [wordpiece_tokenizer, byte_level_tokenizer, word_level_tokenizer]


@pytest.mark.parametrize("ignored", [None, []])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_windows_find_what_the_whole_text_holds(kind: Any, aggregation: Aggregation, ignored: Any) -> None:
    """Where a label hangs on its token alone, no window splits, doubles, drops or joins anything."""
    tokenizer, text = kind(), " ".join(TEXTS) + " supercalifragilisticexpialidocious" * 2
    for limit, stride in ((12, 1), (12, 5), (40, 20), (9, 6)):
        # Of a word longer than the stride, no window sees both it and the one before it.
        names = labels_of(IOB if stride == 20 or aggregation in ("none", "simple") else WITHOUT_B)
        (whole,) = token_classify(Asked(tokenizer, names), text, aggregation, ignored)
        asked = Asked(tokenizer, names, max_length=limit)
        (found,) = token_classify(asked, text, aggregation, ignored, stride=stride)
        assert_same(found, whole)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_windows_that_share_nothing_split_nothing(aggregation: Aggregation) -> None:
    """At a stride of 0 nothing but the labels says what goes on, and those without B- say that all does."""
    names, text = labels_of(WITHOUT_B), " ".join(TEXTS)
    (whole,) = token_classify(Asked(wordpiece_tokenizer(), names), text, aggregation)
    asked = Asked(wordpiece_tokenizer(), names, max_length=10)
    assert_same(token_classify(asked, text, aggregation, stride=0)[0], whole)


def test_a_tokenizer_that_truncates_on_the_left_is_cut_from_the_end() -> None:
    tokenizer = wordpiece_tokenizer()
    tokenizer.truncation_side = "left"
    theirs = tokenizer(
        TEXTS[0], max_length=10, stride=3, truncation=True, return_overflowing_tokens=True, return_offsets_mapping=True
    )
    texts = Texts(tokenizer, facts(len(tokenizer)), 10)
    (whole,) = texts.whole([TEXTS[0]])
    assert [one.encoded.ids.tolist() for one in texts.windows(whole, 3)] == theirs["input_ids"][::-1]


def test_windows_are_those_of_the_tokenizer() -> None:
    tokenizer = wordpiece_tokenizer()
    texts = Texts(tokenizer, facts(len(tokenizer)), 10)
    (whole,) = texts.whole([TEXTS[0]])
    for stride in range(8):
        theirs = tokenizer(TEXTS[0], max_length=10, stride=stride, truncation=True, return_overflowing_tokens=True)[
            "input_ids"
        ]
        assert [one.encoded.ids.tolist() for one in texts.windows(whole, stride)] == theirs
    with pytest.raises(InputError, match=r"to share 8 tokens .* one of 10 tokens \(max_length=10\) has room for 8"):
        texts.windows(whole, 8)


WORDS = [["My", "name", "is", "Sarah", "Watson", "-", "Parker"], ["Reach", "Zoë", "in", "London", "NW1"], []]


@pytest.mark.parametrize("aggregation", ["none", "simple"])
def test_words_given_equal_those_of_transformers(recogniser: Any, aggregation: Aggregation) -> None:
    peer = peer_of(recogniser, aggregation)
    asked = Asked(wordpiece_tokenizer(), read(recogniser), recogniser)
    found = token_classify(asked, WORDS[:2], aggregation, [])
    for words, ours in zip(WORDS, found, strict=False):
        assert_same(ours, as_entities(peer([words], is_split_into_words=True, ignore_labels=[])[0]))
        assert all(" ".join(words)[one.start : one.end] for one in ours)


@pytest.mark.parametrize("aggregation", ["first", "average", "max"])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_words_given_have_one_label_each(kind: Any, aggregation: Aggregation) -> None:
    """Also those that the tokenizer takes apart at their punctuation, which transformers takes for several."""
    words = ["U.S.", "Mary-Jane's", "supercalifragilistic", "(02)", "Zoë"]
    asked = Asked(kind(), labels_of(IOB))
    (found,) = token_classify(asked, [words], aggregation, [], join=False)
    assert [one.words for one in found] == [(place, place + 1) for place in range(len(words))]
    assert [" ".join(words)[one.start : one.end] for one in found] == words
    (joined,) = token_classify(asked, [words], aggregation, [])
    assert [place for one in joined for place in range(*one.words)] == list(range(len(words)))  # type: ignore[misc]


def test_words_given_are_cut_and_refused_as_texts_are() -> None:
    asked = Asked(wordpiece_tokenizer(), labels_of(IOB), max_length=6)
    with pytest.raises(InputTooLongError, match=r"Text 0 has 9 tokens; at most 6 are accepted \(max_length=6\)"):
        token_classify(asked, WORDS[:1])
    (cut,) = token_classify(replace(asked, truncate=True), WORDS[:1], ignore_labels=[])
    assert [one.words for one in cut] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert token_classify(asked, WORDS[2:]) == [[]]


def test_every_labels_score_at_every_token() -> None:
    tokenizer, names = wordpiece_tokenizer(), labels_of(IOB)
    (found,) = token_classify(Asked(tokenizer, names), TEXTS[0], ignore_labels=[], scores=True)
    assert len(found) == len(tokenizer(TEXTS[0])["input_ids"]) - 2
    assert [one.index for one in found] == list(range(1, len(found) + 1))
    for one in found:
        assert one.scores is not None
        assert list(one.scores) == list(IOB)
        assert sum(one.scores.values()) == pytest.approx(1, abs=1e-6)
        assert one.scores[one.label] == one.score == max(one.scores.values())


REFUSED = {
    "aggregation is 'best'; choose from none, simple, first, average, max": {"aggregation": "best"},
    "ignore_labels is 'O'; a list of str is accepted": {"ignore_labels": "O"},
    "stride is -1, the tokens that neighbouring windows share": {"stride": -1},
    'scores=True with aggregation="max" and join=True': {"aggregation": "max", "scores": True},
    "join is 'no'; True, False or None is accepted": {"join": "no"},
    "in one call every text is a str, or every text is a list of words": {"texts": ["a", ["b"]]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_no_option_is_refused(message: str) -> None:
    asked = Asked(wordpiece_tokenizer(), labels_of(IOB))
    with pytest.raises(InputError, match=message):
        token_classify(asked, **{"texts": ["a"]} | REFUSED[message])
    with pytest.raises(InputError, match="stride reads a long text whole, and truncate cuts or refuses it"):
        token_classify(replace(asked, truncate=True), "a", stride=2)
