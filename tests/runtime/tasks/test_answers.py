"""Raw outputs to answers: scores by the model's rule, entities as transformers' pipeline finds them, vectors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace import examples
from headrace.errors import InputError, NonFiniteError
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
from headrace.runtime.engine.finite import require_finite
from headrace.runtime.tasks.classify import classification
from headrace.runtime.tasks.token_classify import AGGREGATIONS, Aggregation, Entity, entities
from headrace.runtime.tasks.vectors import normalise, similarity
from headrace.runtime.text.tokenizer import Texts
from tests.synthetic import token_inputs


def labels(count: int, activation: Activation, names: tuple[str, ...] | None = None) -> Labels:
    return Labels(names or tuple(f"LABEL_{i}" for i in range(count)), activation, "test")


def scores(logits: list[float], activation: Activation) -> list[float]:
    return list(classification(np.array(logits), labels(len(logits), activation)).scores.values())


def config(**facts: Any) -> SimpleNamespace:
    return SimpleNamespace(**facts)


def test_h1_one_label_is_a_sigmoid() -> None:
    """Case H1: never a softmax of one."""
    read = read_labels(config(id2label={0: "fits"}), Head.SEQUENCE, 1)
    assert read is not None
    found = classification(np.array([0.3]), read)
    assert found.label == "fits"
    assert found.score == pytest.approx(0.5744, abs=1e-4)
    assert found.scores == {"fits": found.score}


def test_h2_several_labels_at_once_are_sigmoids() -> None:
    """Case H2."""
    read = read_labels(config(problem_type="multi_label_classification"), Head.SEQUENCE, 3)
    assert read is not None
    found = classification(np.array([2.0, -1.0, 0.0]), read)
    assert list(found.scores.values()) == pytest.approx([0.8808, 0.2689, 0.5], abs=1e-4)
    assert found.label == "LABEL_0"
    assert found.score == found.scores["LABEL_0"]


def test_h3_regression_is_the_value_itself() -> None:
    """Case H3."""
    read = read_labels(config(problem_type="regression", id2label={0: "stars"}), Head.SEQUENCE, 1)
    assert read is not None
    found = classification(np.array([4.2]), read)
    assert found.label == "stars"
    assert found.score == pytest.approx(4.2)


def test_h4_large_logits_stay_finite() -> None:
    """Case H4, and what a sigmoid makes of the same."""
    with np.errstate(all="raise", under="ignore"):
        assert scores([-100, 0], Activation.SOFTMAX) == pytest.approx([0, 1], abs=1e-6)
        assert scores([1e4, -1e4, 3e38, -3e38], Activation.SIGMOID) == [1, 0, 1, 0]
        assert scores([1e38, -1e38], Activation.SOFTMAX) == [1, 0]
        assert scores([-20], Activation.SIGMOID) == pytest.approx([2.0611537e-9])


def test_h5_labels_keep_the_order_of_their_numbers() -> None:
    """Case H5: eleven labels with string keys."""
    read = read_labels(config(id2label={str(i): f"l{i}" for i in reversed(range(11))}), Head.SEQUENCE, 11)
    assert read is not None
    found = classification(np.arange(11), read)
    assert list(found.scores) == [f"l{i}" for i in range(11)]
    assert found.label == "l10"


def test_h7_a_cross_encoder_of_three_labels_that_names_sigmoid() -> None:
    """Case H7: elementwise, not a softmax."""
    named = config(sentence_transformers={"activation_fn": "torch.nn.modules.activation.Sigmoid"})
    read = read_labels(named, Head.SEQUENCE, 3)
    assert read is not None
    found = list(classification(np.array([0.0, 1.0, -1.0]), read).scores.values())
    assert found == pytest.approx([0.5, 0.7311, 0.2689], abs=1e-4)


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


def facts(vocabulary: int) -> Program:
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
    )


def as_entities(found: list[dict[str, Any]]) -> list[Entity]:
    return [
        Entity(one.get("entity") or one["entity_group"], one["score"], one["start"], one["end"], one["word"])
        for one in found
    ]


def assert_same(found: list[Entity], expected: list[Entity]) -> None:
    def place(one: Entity) -> Any:
        return one.label, one.start, one.end, one.word

    assert [place(one) for one in found] == [place(one) for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-5)


@pytest.fixture(scope="module")
def recogniser() -> Any:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    folder = examples.folder("rampart_ner")
    return AutoModelForTokenClassification.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_entities_equal_those_of_transformers(recogniser: Any, aggregation: Aggregation) -> None:
    """Real weights: each text by transformers' pipeline, and by us from the logits that the model gives for our ids."""
    import torch
    from transformers import pipeline

    model, tokenizer = recogniser
    peer = pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy=aggregation)
    read = read_labels(model.config, Head.TOKEN, model.config.num_labels)
    assert read is not None
    encoded = Texts(tokenizer, facts(model.config.vocab_size)).encode(TEXTS, truncate=None, offsets=True)
    count = 0
    for text, one in zip(TEXTS, encoded, strict=True):
        with torch.no_grad():
            logits = model(torch.from_numpy(one.ids)[None]).logits[0].numpy()
        found = entities(logits, read, text, one, aggregation)
        assert_same(found, as_entities(peer(text)))
        count += len(found)
    assert count >= 10


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
    peer.tokenizer, peer.model = tokenizer, config(config=config(id2label=dict(enumerate(NAMES))))
    read = labels(len(NAMES), Activation.SOFTMAX, NAMES)
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
        assert_same(entities(logits, read, text, one, aggregation), as_entities(expected))


def test_an_unknown_aggregation_is_refused() -> None:
    (one,) = Texts(byte_level_tokenizer(), facts(1000)).encode(["a"], truncate=None, offsets=True)
    with pytest.raises(InputError, match="aggregation is 'best'; choose from none, simple, first, average, max"):
        entities(np.zeros((1, 8)), labels(8, Activation.SOFTMAX), "a", one, "best")


def test_normalised_vectors_have_length_one_and_zero_stays_zero() -> None:
    found = normalise(np.array([[3.0, 4.0], [0.0, 0.0], [3e38, 0.0], [1e-30, 0]], np.float32))
    assert found.dtype == np.float32
    assert found[:3].tolist() == [pytest.approx([0.6, 0.8]), [0, 0], [1, 0]]
    assert np.isfinite(found).all()
    assert normalise(np.empty((0, 4))).shape == (0, 4)


def test_normalising_equals_torch() -> None:
    import torch

    vectors = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    expected = torch.nn.functional.normalize(torch.from_numpy(vectors), dim=-1).numpy()
    np.testing.assert_allclose(normalise(vectors), expected, atol=1e-7)


def test_similarity_is_the_cosine_of_each_with_each() -> None:
    a, b = np.array([[1.0, 0.0], [2.0, 2.0], [0.0, 0.0]]), np.array([[5.0, 0.0], [0.0, -1.0]])
    expected = np.array([[1, 0], [0.70711, -0.70711], [0, 0]], np.float32)
    np.testing.assert_allclose(similarity(a, b), expected, atol=1e-5)
    assert similarity(a[0], b[0]).tolist() == [[1.0]]
    with pytest.raises(InputError, match=r"shape \(3, 2\) and \(1, 3\) cannot be compared"):
        similarity(a, np.ones((1, 3)))


@pytest.mark.parametrize(
    ("dtype", "cure"),
    [("float16", r"dtype=\"bfloat16\""), ("bfloat16", r"dtype=\"float32\""), ("float32", "broken weights")],
)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_l5_values_that_are_not_finite_are_an_error(dtype: str, cure: str, bad: float) -> None:
    """Case L5: names the dtype and what has more room, and no null vector comes out."""
    with pytest.raises(NonFiniteError, match=rf"the embedding of text 3 holds .*ran in {dtype}\..*{cure}"):
        require_finite(np.array([1.0, bad]), "the embedding of text 3", dtype)
    fine = np.array([1.0, 2.0])
    assert require_finite(fine, "it", dtype) is fine
