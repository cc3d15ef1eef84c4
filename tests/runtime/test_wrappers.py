"""Contract B7: a model inside anybody's module routes, types and answers as the model does."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headrace
from headrace.ir import AttentionType
from tests.conformance import oracle
from tests.tiny import VOCABULARY, build
from tests.words import bert_like

REQUESTS = oracle.prompts(40, VOCABULARY)


class LowRank(nn.Module):
    """A linear layer with an adapter beside it, as LoRA has it (arXiv 2106.09685)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.base(rows) + 2.0 * self.up(self.down(rows))
        return out


class Adapted(nn.Module):
    """A copy of the model with every query projection adapted, held and called as PEFT holds and calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = copy.deepcopy(model)
        torch.manual_seed(1)
        for parent in list(self.base_model.modules()):
            for name in {"query", "q_proj"} & parent._modules.keys():
                setattr(parent, name, LowRank(getattr(parent, name)))
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)


def compiled(model: nn.Module, **options: Any) -> Any:
    return headrace.compile(model, target="reference", **options)


def same_facts(one: Any, other: Any) -> None:
    assert one.program.decision.route == other.program.decision.route
    assert [(s.type, s.mask, s.window) for s in one.program.nodes.attention] == [
        (s.type, s.mask, s.window) for s in other.program.nodes.attention
    ]
    assert list(one.tasks) == list(other.tasks)


@pytest.mark.parametrize(
    ("wrap", "name", "pool"),
    [(Adapted, "bert", "mean"), (Adapted, "bloom", "last"), (nn.Sequential, "qwen3", "last")],
)
def test_b7_embed(wrap: Any, name: str, pool: str) -> None:
    """One prompt, and eight of mixed lengths in a batch, against the wrapped model run alone on each."""
    inner = build(name)
    model = wrap(inner)
    made = compiled(model, pooling=pool)
    same_facts(made, compiled(inner, pooling=pool))
    oracle_model = model if wrap is Adapted else inner
    wanted = oracle.answers(oracle_model, REQUESTS, oracle.pooled(pool), torch.float32)
    oracle.require_same_direction(made(REQUESTS, task="embed"), wanted)
    oracle.require_same_direction(made(REQUESTS[:1], task="embed"), wanted[:1])


def test_b7_classify() -> None:
    model = Adapted(build("bert", "AutoModelForSequenceClassification", num_labels=3))
    made = compiled(model)
    same_facts(made, compiled(model.base_model))
    oracle.require_close(made(REQUESTS), model, REQUESTS, oracle.logits)
    oracle.require_close(made(REQUESTS[:1]), model, REQUESTS[:1], oracle.logits)


def test_b7_a_sentence_transformer_as_it_is(tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.models import Pooling, Transformer

    build("bert", num_hidden_layers=1).save_pretrained(tmp_path)
    bert_like().save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = st.SentenceTransformer(modules=[Transformer(str(tmp_path)), Pooling(32, "cls")], device="cpu")
    texts = [" ".join(f"w{i}" for i in range(5, 5 + n)) for n in (3, 1, 9, 2, 4, 1, 7, 5)]
    made = compiled(model)
    assert (made.program.decision.route.rule, made.program.facts.pooling.why) == ("B3", "modules.json")
    for some in (texts[:1], texts):
        np.testing.assert_allclose(made.embed(some), model.encode(some), atol=1e-5)


class Mixing(nn.Module):
    """A head that lets the tokens see one another once more, after the backbone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.mix, self.out = inner, nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 5)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        rows = self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        rows = rows + self.mix(rows, rows, rows, key_padding_mask=attention_mask == 0, need_weights=False)[0]
        logits: Tensor = self.out(rows)
        return logits


def test_attention_after_the_backbone_is_typed_and_routes() -> None:
    """The backbone alone is causal; the whole is not, and nothing may be prefilled in chunks."""
    model = Mixing(build("qwen3")).eval()
    made = compiled(model)
    types = [spec.type for spec in made.program.nodes.attention]
    assert types == [AttentionType.DECODER, AttentionType.DECODER, AttentionType.ENCODER_ONLY]
    assert made.program.decision.route.rule == "B3"
    assert list(made.tasks) == ["token_classify"]
    oracle.require_close(made(REQUESTS), model, REQUESTS, lambda output: output)
