"""Attention that a model's own code computes becomes attention nodes, or is refused in words."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn
from torch.nn import functional

from headrace import graphs
from headrace.errors import AttentionTypeError
from headrace.frontend.capture.attention import implementation
from headrace.frontend.eager.signature import call, signature
from headrace.frontend.trace import trace
from headrace.ir import AttentionType, BiasKind, MaskKind, Program, Verdict, Window
from headrace.lowering.pipeline import analyse
from headrace.lowering.recover.recover import Recover
from headrace.lowering.recover.scores import hidden_attentions
from headrace.ops.attention import ATTENTION, MASK
from tests.tiny import VOCABULARY, checkpoint, fed

DECODER, ENCODER_ONLY = AttentionType.DECODER, AttentionType.ENCODER_ONLY
CAUSAL, BIDIRECTIONAL = (MaskKind.CAUSAL, Window(-1, 0)), (MaskKind.BIDIRECTIONAL, Window())
LOCAL = (MaskKind.CAUSAL, Window(3, 0))
NONE, TENSOR, ALIBI, RELATIVE = BiasKind.NONE, BiasKind.TENSOR, BiasKind.ALIBI, BiasKind.RELATIVE

# name: (type, the mask of each layer, bias kind)
MODELS: dict[str, tuple[AttentionType, list[tuple[MaskKind, Window]], BiasKind]] = {
    "mpnet": (ENCODER_ONLY, [BIDIRECTIONAL] * 2, RELATIVE),
    "deberta": (ENCODER_ONLY, [BIDIRECTIONAL] * 2, TENSOR),
    "deberta-v2": (ENCODER_ONLY, [BIDIRECTIONAL] * 2, TENSOR),
    "bloom": (DECODER, [CAUSAL] * 2, ALIBI),
    "mpt": (DECODER, [CAUSAL] * 2, ALIBI),
    "falcon": (DECODER, [CAUSAL] * 2, NONE),
    "falcon-alibi": (DECODER, [CAUSAL] * 2, TENSOR),
    "gpt-neo": (DECODER, [CAUSAL, LOCAL], NONE),
    "openai-gpt": (DECODER, [CAUSAL] * 2, NONE),
    "xlm": (ENCODER_ONLY, [BIDIRECTIONAL] * 2, NONE),
}


def rows_of_batch(program: Program, ids: Any, mask: Any) -> Any:
    """The hidden rows of a batch, from the graph."""
    outputs, _ = graphs.run(program.graph, fed(program, ids, mask))
    return outputs[[output.name for output in program.signature.outputs].index("hidden")]


def worst_difference(program: Program, model: Any) -> float:
    """From the eager model on each text alone, at (1,1), (1,7) and (3,11) with padding on either side."""
    generator, worst, accepted = torch.Generator().manual_seed(0), 0.0, signature(model)
    for lengths, left in (((1,), False), ((7,), False), ((11, 1, 6), False), ((11, 1, 6), True)):
        longest = max(lengths)
        ids = torch.randint(3, VOCABULARY, (len(lengths), longest), generator=generator)
        begin = torch.tensor([longest - n if left else 0 for n in lengths])[:, None]
        place = torch.arange(longest)[None]
        mask = ((begin <= place) & (place < begin + torch.tensor(lengths)[:, None])).long()
        rows = rows_of_batch(program, ids, mask)
        for row, (one, real) in enumerate(zip(ids, mask.bool(), strict=True)):
            alone = {"input_ids": one[real][None], "attention_mask": torch.ones(1, int(real.sum())).long()}
            with torch.no_grad(), implementation(model, "eager"):
                output = call(model, accepted, alone)
            expected = getattr(output, "last_hidden_state", output)[0]
            worst = max(worst, float((rows[row][real] - expected).abs().max()))
    return worst


@pytest.mark.parametrize("name", MODELS)
def test_an_architecture_is_recovered(name: str, tiny: Any, analysed: Any) -> None:
    type_, masks, bias = MODELS[name]
    if name == "deberta" and Version(torch.__version__) < Version("2.12"):
        pytest.skip("torch 2.12: before it, the export cannot follow DeBERTa's number from a tensor")
    if name == "deberta" and Version(transformers.__version__) < Version("5.23"):
        pytest.skip("transformers 5.23: before it, TorchScript hides DeBERTa's number, and it is refused")
    program = analysed(name)
    assert [(spec.mask, spec.window) for spec in program.nodes.attention] == masks
    assert {(spec.type, spec.bias, spec.recovered) for spec in program.nodes.attention} == {(type_, bias, True)}
    assert {spec.verdict for spec in program.nodes.attention} == {Verdict.PROVEN}
    assert (program.evidence.attention_calls, len(program.evidence.recovered)) == (0, 2)
    assert not hidden_attentions(program.graph.graph)
    assert worst_difference(program, tiny(name)) <= 1e-5


@pytest.mark.parametrize("name", ["bert", "gemma3-bidirectional", "lfm2"])
def test_leaves_alone_what_went_through_the_interface(name: str, traced: Any) -> None:
    program = traced(name).program
    assert Recover()(program) is program


def test_one_mask_node_is_shared(analysed: Any) -> None:
    """DeBERTa makes a mask of its own from the padding; the IR holds it as one symbolic node."""
    nodes = list(analysed("deberta-v2").graph.graph.nodes)
    masks = [node for node in nodes if node.target is MASK]
    assert [node.args[3] for node in nodes if node.target is ATTENTION] == masks * 2


def test_the_default_pooling_follows_the_causality_that_was_measured(analysed: Any) -> None:
    assert [analysed(name).facts.pooling.kinds[0] for name in ("bloom", "mpnet")] == ["last", "mean"]


class Own(nn.Module):
    """Somebody's model: 4 heads of 8 over an embedding, with `attend(module, q, k, v, padding)` as its attention."""

    def __init__(self, attend: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.places = nn.Embedding(VOCABULARY, 32), nn.Embedding(64, 32)
        self.project, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.near = nn.Embedding(9, 4)
        self.attend = attend

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any = None) -> Any:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None]
        rows = self.table(input_ids) + self.places(position_ids)
        q, k, v = (x.unflatten(-1, (4, 8)).transpose(1, 2) for x in self.project(rows).chunk(3, -1))
        return rows + self.out(self.attend(self, q, k, v, attention_mask).transpose(1, 2).flatten(2))


def distances(length: int) -> Any:
    place = torch.arange(length)
    return place[None, :] - place[:, None]


def softmax(q: Any, k: Any, v: Any, added: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(8) + added, -1) @ v


def low(hidden: Any) -> Any:
    return torch.zeros(hidden.shape).masked_fill(hidden, -1e9)


def filled(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    scores = torch.matmul(q * 8**-0.5, k.transpose(2, 3)).masked_fill(padding[:, None, None] == 0, float("-inf"))
    return functional.dropout(scores.softmax(-1), 0.1, m.training) @ v


def added(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    return softmax(q, k, v, (1.0 - padding[:, None, None].float()) * -10000.0)


def sdpa(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    mask = (distances(q.shape[2]) <= 0) & (padding[:, None, None] != 0)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def sdpa_causal(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)


def einsum(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.3 + low(padding == 0)[:, None, None]
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).transpose(1, 2)


def merged(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    """Heads and batch in one dimension, as fairseq has it."""
    (batch, heads, length, _), padded = q.shape, (padding == 0)[:, None, None]
    q, k, v = (x.reshape(batch * heads, length, 8) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, heads, length, length).masked_fill(padded, -1e9)
    weights = scores.view(batch * heads, length, length).softmax(-1)
    return torch.bmm(weights, v).view(batch, heads, length, 8)


def near(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    hidden = (distances(q.shape[2]).abs() > 2) | (padding[:, None, None] == 0)
    return softmax(q, k, v, low(hidden))


def relative(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    bias = m.near(distances(q.shape[2]).clamp(-4, 4) + 4).permute(2, 0, 1)[None]
    return softmax(q, k, v, bias + low(padding == 0)[:, None, None])


def steadied(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    """Less the largest score of a row, as hand-written softmaxes have it: it changes no weight."""
    scores = q @ k.transpose(-1, -2) + low(padding == 0)[:, None, None]
    return (scores - scores.amax(-1, keepdim=True)).softmax(-1) @ v


OWN = {
    filled: (ENCODER_ONLY, BIDIRECTIONAL, NONE),
    added: (ENCODER_ONLY, BIDIRECTIONAL, NONE),
    sdpa: (DECODER, CAUSAL, NONE),
    sdpa_causal: (DECODER, CAUSAL, NONE),
    einsum: (ENCODER_ONLY, BIDIRECTIONAL, NONE),
    merged: (ENCODER_ONLY, BIDIRECTIONAL, NONE),
    near: (ENCODER_ONLY, (MaskKind.BIDIRECTIONAL, Window(2, 2)), NONE),
    relative: (ENCODER_ONLY, BIDIRECTIONAL, RELATIVE),
    steadied: (ENCODER_ONLY, BIDIRECTIONAL, NONE),
}


@pytest.mark.parametrize("attend", OWN, ids=lambda attend: attend.__name__)
def test_b7_a_module_of_ones_own_is_recovered(attend: Any) -> None:
    type_, mask, bias = OWN[attend]
    model = Own(attend).eval()
    made = trace(checkpoint(model))
    program = analyse(made.program, made.behaviour)
    (spec,) = program.nodes.attention
    assert (spec.type, (spec.mask, spec.window), spec.bias, spec.q_heads) == (type_, mask, bias, 4)
    if attend is not sdpa_causal:  # which looks at no padding mask: left padding is none of its inputs
        assert worst_difference(program, model) <= 1e-5


class Torch(nn.Module):
    """torch.nn's own layers, whose fast path the trace must not take."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(VOCABULARY, 32), layer

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        rows, padded = self.table(input_ids), attention_mask == 0
        if isinstance(self.layer, nn.MultiheadAttention):
            return rows + self.layer(rows, rows, rows, key_padding_mask=padded, need_weights=False)[0]
        return self.layer(rows, src_key_padding_mask=padded)


@pytest.mark.parametrize("kind", [nn.MultiheadAttention, nn.TransformerEncoderLayer])
def test_torchs_own_layers_are_recovered(kind: Any) -> None:
    torch.manual_seed(0)
    model = Torch(kind(32, 4, batch_first=True)).eval()
    made = trace(checkpoint(model))
    program = analyse(made.program, made.behaviour)
    (spec,) = program.nodes.attention
    assert (spec.type, spec.q_heads, spec.verdict) == (ENCODER_ONLY, 4, Verdict.PROVEN)
    assert worst_difference(program, model) <= 1e-5


def by_words(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    hidden = (v.sum(-1) > 0)[:, :, None] | (padding[:, None, None] == 0)
    return softmax(q, k, v, low(hidden))


def chunked(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    place = torch.arange(q.shape[2])
    return softmax(q, k, v, low((place[:, None] // 4 != place[None, :] // 4) | (padding[:, None, None] == 0)))


def unlike_heads(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    reach = torch.tensor([1, 2, 3, 4])[:, None, None]
    return softmax(q, k, v, low((distances(q.shape[2]).abs()[None] > reach) | (padding[:, None, None] == 0)))


def over_queries(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2), -2) @ v


def squared(m: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
    return torch.softmax((q @ k.transpose(-1, -2)) ** 2, -1) @ v


@pytest.mark.parametrize(
    ("attend", "said"),
    [
        (by_words, "hides keys from .* by the words of the text"),
        (chunked, "is no relation of two positions"),
        (unlike_heads, "hides other keys from one head than from another"),
        (over_queries, "runs along another dimension than the last"),
        (squared, r"pow_1 \(pow\) stands between the product and the softmax"),
    ],
)
def test_what_cannot_be_read_is_refused(attend: Any, said: str) -> None:
    made = trace(checkpoint(Own(attend).eval()))
    with pytest.raises(AttentionTypeError, match=rf"1 of 1 attention\(s\) in the model's own code.*{said}") as refused:
        Recover()(made.program)
    assert "Accepted are softmax" in str(refused.value)


def test_a_fold_that_changes_the_answer_is_refused(traced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is run before and after: here the scale is read wrong."""
    from headrace.lowering.recover import recover

    def doubled(*args: Any) -> Any:
        scores = read(*args)
        scores.scale *= 2
        return scores

    read = recover.read_attention
    monkeypatch.setattr(recover, "read_attention", doubled)
    with pytest.raises(AttentionTypeError, match="was read as attention nodes, but hidden changed by"):
        Recover()(traced("mpnet").program)


@pytest.mark.parametrize("name", ["mpnet", "deberta-v2", "bloom"])
def test_golden(name: str, analysed: Any, golden: Any) -> None:
    golden(f"recovered/{name}", analysed(name).as_text())
