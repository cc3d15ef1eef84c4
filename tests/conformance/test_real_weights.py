"""Real pretrained weights against their peers: sentence-transformers, and the eager Hugging Face model (D1, D2)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.backends import backend
from tests.conformance import oracle

LONG = "The reservoir was built above the valley so that water would reach every village by its own weight. " * 20
TEXTS = [
    "",
    "water",
    "A headrace carries water to the wheel.",
    "Hello, my name is Sarah Jones and I live in Paris.",
    LONG,
    "Zürich naïve café 東京 — “quoted” text… 🙂",
    "1234 5678 9012 3456",
    "Two sentences here. The second one is a little longer than the first, but not by much.",
]
SMILES = [
    "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1",
    "C",
    "CCO",
    "O=C(O)c1ccccc1.CCN>>CCNC(=O)c1ccccc1",
    "",
    "c1ccccc1Br.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
    "N",
    "CC(C)(C)OC(=O)NC1CCNCC1>>NC1CCNCC1",
]


def folder(name: str) -> Path:
    """The real weights. Where they cannot be had the test fails: what it guards was not looked at."""
    from headrace import examples

    return Path(examples.folder(name))


class Real:
    """Compiled real models, one a (name, target, options) and session."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __call__(self, name: str, target: str, **options: Any) -> Any:
        import headrace

        key = repr((name, target, sorted(options.items())))
        if key not in self._made:
            self._made[key] = headrace.compile(folder(name), target=target, **options)
        return self._made[key]


@pytest.fixture(scope="session")
def real() -> Real:
    return Real()


@pytest.fixture(scope="session")
def sentence_transformer() -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    return sentence_transformers.SentenceTransformer(str(folder("minilm")), device="cpu")


def test_minilm_equals_sentence_transformers(target: str, real: Real, sentence_transformer: Any) -> None:
    """Eight prompts (an empty one, one word, one past the limit) within 1e-5, alone and batched."""
    model = real("minilm", target, dtype="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batched = model.embed(TEXTS)
        alone = np.concatenate([model.embed(text) for text in TEXTS])
    wanted = np.stack([sentence_transformer.encode(text) for text in TEXTS])
    assert batched.dtype == np.float32
    assert batched.shape == (8, 384)
    assert float(np.abs(batched - wanted).max()) <= 1e-5
    assert float(np.abs(alone - wanted).max()) <= 1e-5
    assert float(np.abs(batched - sentence_transformer.encode(TEXTS)).max()) <= 1e-5


def test_minilm_follows_its_folder(target: str, real: Real) -> None:
    """256 tokens, truncated with one warning; refused where truncation is refused."""
    import headrace

    model = real("minilm", target, dtype="float32")
    with pytest.warns(headrace.HeadraceWarning) as caught:
        model.embed([LONG, LONG])
    assert len(caught) == 1
    assert "256" in str(caught[0].message)
    with pytest.raises(headrace.InputTooLongError, match="256"):
        model.embed(LONG, truncate=False)


def test_rampart_ner_equals_the_oracle(target: str, real: Real) -> None:
    """Probabilities of every token of eight prompts within 1e-4, alone and batched."""
    import transformers

    model = real("rampart_ner", target, dtype="float32")
    tokenizer = model.tokenizer
    eager = transformers.AutoModelForTokenClassification.from_pretrained(
        folder("rampart_ner"), attn_implementation="eager", dtype=torch.float32
    ).eval()
    limit = model.program.facts.limits.length
    ids = [tokenizer(text, truncation=True, max_length=limit)["input_ids"] for text in TEXTS]
    with torch.no_grad():
        wanted = [eager(input_ids=torch.tensor([row])).logits[0].softmax(-1).numpy() for row in ids]
    for got in (model(ids), [model([row])[0] for row in ids]):
        for rows, other in zip(got, wanted, strict=True):
            probabilities = torch.from_numpy(rows).softmax(-1).numpy()
            assert float(np.abs(probabilities - other).max()) <= 1e-4
    found = model.token_classify("Hello, my name is Sarah Jones.", aggregation="simple")[0]
    assert ("GIVEN_NAME", "Sarah") in {(entity.label, entity.word.title()) for entity in found}


def test_rxnfp_cls_equals_the_oracle(target: str, real: Real) -> None:
    """A sequence head with 50 classes within 1e-4, alone and batched."""
    import transformers

    model = real("rxnfp_cls", target, dtype="float32")
    eager = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder("rxnfp_cls"), attn_implementation="eager", dtype=torch.float32
    ).eval()
    rows = [model.tokenizer(text)["input_ids"] for text in SMILES]
    with torch.no_grad():
        wanted = [eager(input_ids=torch.tensor([row])).logits[0].softmax(-1).numpy() for row in rows]
    for found in (model.classify(SMILES), [model.classify(text)[0] for text in SMILES]):
        for answer, other in zip(found, wanted, strict=True):
            assert answer.label == model.program.facts.labels.names[int(other.argmax())]
            assert float(np.abs(np.array(list(answer.scores.values())) - other).max()) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("pool", ["mean", "last"])
def test_smollm2_embeds(target: str, pool: str, dtype: str, real: Real) -> None:
    """A real causal LM within D1: 1e-4 in float32; in bfloat16 twice Hugging Face's own distance + 1e-4."""
    import transformers

    if dtype not in backend(target).dtypes:
        pytest.skip(f"the target {target} runs no {dtype}")
    where = folder("smollm2")
    model = real("smollm2", target, dtype=dtype, pooling=pool)
    texts = [text[:600] for text in TEXTS if text]
    rows = [model.tokenizer(text)["input_ids"] for text in texts]
    eager = transformers.AutoModel.from_pretrained(where, attn_implementation="eager", dtype=torch.float32).eval()
    wanted = oracle.answers(eager, rows, oracle.pooled(pool), torch.float32)
    got = model.embed(texts, normalize=False).astype(np.float64)
    if dtype == "float32":
        oracle.require_same_direction(got, wanted)
        return
    half = transformers.AutoModel.from_pretrained(where, attn_implementation="eager", dtype=torch.bfloat16).eval()
    own = oracle.answers(half, rows, oracle.pooled(pool), torch.bfloat16)
    for mine, theirs, exact in zip(got, own, wanted, strict=True):
        assert oracle.distance(mine, exact) <= 2 * oracle.distance(theirs, exact) + 1e-4


@pytest.mark.slow
def test_dinov2_equals_the_oracle(target: str, real: Real) -> None:
    """Images of the size that the folder's processor makes, alone and batched: the vector and every row."""
    import transformers

    model = real("dinov2_small", target)
    assert [axis.size for axis in model.program.signature.inputs[0].axes] == [None, 3, 224, 224]
    eager = transformers.AutoModel.from_pretrained(
        folder("dinov2_small"), attn_implementation="eager", dtype=torch.float32
    ).eval()
    images = torch.randn(3, 3, 224, 224, generator=torch.Generator().manual_seed(0)).numpy()
    feed = oracle.array_inputs("pixel_values")
    oracle.require_close(model.embed(images), eager, images, lambda output: output.pooler_output, feed)
    oracle.require_close([model.embed(one)[0] for one in images], eager, images, lambda o: o.pooler_output, feed)
    oracle.require_close(model.token_embed(images), eager, images, oracle.hidden, feed)
