"""Contract A1 and A2: types come from masks and operands, node by node; claims are held against them."""

import copy
import functools
import importlib

import pytest
import torch
import transformers
from torch import nn

from headrace.errors import AttentionTypeError
from headrace.frontend.trace import trace
from headrace.graphs.views import attention_nodes
from headrace.ir import AttentionType, BiasKind, Claim, MaskKind, PoolKind, Stage, Window
from headrace.lowering.pipeline import analyse
from headrace.lowering.types.attention import TypeAttention
from tests.synthetic import program_of
from tests.tiny import build, checkpoint, config_of

DECODER, ENCODER_ONLY = AttentionType.DECODER, AttentionType.ENCODER_ONLY

# Contract A1 by name, and the plain forms beside them.
TYPES = {
    "bert": ENCODER_ONLY,
    "bert-decoder": DECODER,
    "roberta": ENCODER_ONLY,
    "xlm-roberta": ENCODER_ONLY,
    "electra": ENCODER_ONLY,
    "distilbert": ENCODER_ONLY,
    "albert": ENCODER_ONLY,
    "modernbert": ENCODER_ONLY,
    "llama4-chunked": DECODER,
    "clip-text": DECODER,
    "qwen2": DECODER,
    "qwen2-bidirectional": ENCODER_ONLY,
    "qwen3": DECODER,
    "qwen3-bidirectional": ENCODER_ONLY,
    "llama": DECODER,
    "llama-bidirectional": ENCODER_ONLY,
    "mistral": DECODER,
    "mistral-bidirectional": ENCODER_ONLY,
    "gemma": DECODER,
    "gemma2": DECODER,
    "gemma3": DECODER,
    "gemma3-bidirectional": ENCODER_ONLY,
    "gpt2": DECODER,
    "opt": DECODER,
    "gpt-oss": DECODER,
    "mixtral": DECODER,
}
ALL = Window(-1, -1)
PAST = Window(-1, 0)
# Case B2, B7 and both of transformers' conventions: a causal window counts the query itself, a bidirectional one not;
# Gemma 3 halves its window on the way, ModernBERT too.
WINDOWS = {
    "bert": [ALL, ALL],
    "llama": [PAST, PAST],
    "mistral": [Window(3, 0), Window(3, 0)],
    "mistral-bidirectional": [Window(4, 4), Window(4, 4)],
    "gemma2": [Window(5, 0), PAST],
    "gemma3": [Window(3, 0), PAST],
    "gemma3-bidirectional": [Window(2, 2), ALL],
    "qwen2-mixed-window": [PAST, Window(5, 0)],
    "gpt-oss": [Window(5, 0), PAST],
}


@pytest.mark.parametrize("name", TYPES)
def test_type(traced, name):
    program = TypeAttention()(traced(name).program)
    assert {spec.type for spec in program.nodes.attention} == {TYPES[name]}
    assert program.stage is Stage.TYPED


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_inclusive_and_by_node(traced, name):
    program = TypeAttention()(traced(name).program)
    assert [spec.window for spec in program.nodes.attention] == WINDOWS[name]


def test_modernbert_window_of_4_sees_2_either_way(tiny):
    """Case B7."""
    model = build("modernbert", local_attention=4, num_hidden_layers=2)
    program = TypeAttention()(trace(checkpoint(model)).program)
    assert [spec.window for spec in program.nodes.attention] == [ALL, Window(2, 2)]


def test_a_bidirectional_window_survives_saving_twice(tmp_path):
    """Case B3: whatever a configuration derives when it is built, it must not derive again when it is loaded."""
    config = config_of("gemma3-bidirectional", sliding_window=8)
    fresh = windows(config)
    for time in range(2):
        config.save_pretrained(tmp_path / str(time))
        config = type(config).from_pretrained(tmp_path / str(time))
    assert windows(config) == fresh == [Window(4, 4), ALL]


def windows(config):
    """The windows in the IR of a fresh model with that configuration, which the model would share: it gets a copy."""
    model = transformers.AutoModel.from_config(copy.deepcopy(config)).eval()
    return [spec.window for spec in TypeAttention()(trace(checkpoint(model)).program).nodes.attention]


def test_pooling_is_no_evidence(tiny):
    """Contract A1: a Llama with CLS pooling stays DECODER."""
    made = trace(checkpoint(tiny("llama", num_hidden_layers=1)), pools=(PoolKind.CLS,))
    program = analyse(made.program, made.behaviour)
    assert program.facts.pooling.kinds == (PoolKind.CLS,)
    assert {spec.type for spec in program.nodes.attention} == {DECODER}
    assert program.decision.route.rule == "B5"


def test_the_module_attribute_is_no_evidence(tiny):
    """CLIP's attribute says bidirectional, and a decoder told `is_causal=False` still carries `is_causal=True`."""
    attributes = {
        name: {m.is_causal for m in tiny(name).modules() if hasattr(m, "is_causal")}
        for name in ("clip-text", "qwen2-bidirectional")
    }
    assert attributes == {"clip-text": {False}, "qwen2-bidirectional": {True}}


def test_spec_says_what_the_node_says(traced):
    program = TypeAttention()(traced("gemma2").program)
    first = program.nodes.attention[0]
    assert (first.q_heads, first.kv_heads, first.qk_head_dim, first.v_head_dim) == (4, 2, 8, 8)
    assert (first.softcap, first.sinks, first.bias) == (50.0, False, BiasKind.NONE)
    assert first.scale == pytest.approx(8**-0.5)
    assert first.mask is MaskKind.CAUSAL
    assert [spec.call_order for spec in program.nodes.attention] == [0, 1]
    assert first.provenance == "model.layers.0.self_attn"
    assert TypeAttention()(traced("gpt-oss").program).nodes.attention[0].sinks


def test_layers_that_share_weights_have_a_spec_each(traced):
    """ALBERT runs one module twice: the call order is the key, not the module path."""
    program = TypeAttention()(traced("albert").program)
    first, second = program.nodes.attention
    assert first.node != second.node
    assert (first.call_order, second.call_order) == (0, 1)


def test_layers_share_one_mask_node(traced):
    program = TypeAttention()(traced("gemma3").program)
    sliding, whole = program.nodes.attention
    assert None not in (sliding.mask_node, whole.mask_node)
    assert sliding.mask_node != whole.mask_node
    first, second = TypeAttention()(traced("bert").program).nodes.attention
    assert first.mask_node == second.mask_node


REFUSED = {
    "llama-ignored-flag": "use_bidirectional_attention=True says bidirectional, the mask of attention",
    "gemma-contradiction": "use_bidirectional_attention=True says bidirectional, the mask of attention",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_claim_that_the_mask_denies_is_refused(traced, name):
    with pytest.raises(AttentionTypeError) as refused:
        TypeAttention()(traced(name).program)
    text = str(refused.value)
    assert "The config contradicts the model" in text
    assert f"{REFUSED[name]} (model.layers.0.self_attn) is causal" in text
    assert "Remove the flag" in text


def test_a_transformers_too_old_for_the_flag_is_refused(monkeypatch):
    """Case B4: the flag stands in the config, and the code that makes the mask does not know it."""
    from transformers.models.qwen2 import modeling_qwen2

    honours = modeling_qwen2.create_causal_mask

    def ignores(config, *args, **kwargs):
        config = copy.copy(config)
        config.is_causal = True
        return honours(config, *args, **kwargs)

    monkeypatch.setattr(modeling_qwen2, "create_causal_mask", ignores)
    program = trace(checkpoint(build("qwen2-bidirectional", num_hidden_layers=1))).program
    with pytest.raises(AttentionTypeError, match=r"is_causal=False says bidirectional, .* is causal"):
        TypeAttention()(program)


def test_every_contradicting_claim_is_named(traced):
    program = traced("bert").program.with_(
        claims=(
            Claim("is_causal", True, MaskKind.CAUSAL),
            Claim("use_bidirectional_attention", True, MaskKind.BIDIRECTIONAL),
            Claim("another", True, MaskKind.CAUSAL),
        )
    )
    with pytest.raises(AttentionTypeError) as refused:
        TypeAttention()(program)
    assert "is_causal=True says causal" in str(refused.value)
    assert "another=True says causal" in str(refused.value)
    assert "use_bidirectional_attention=True" not in str(refused.value)


def test_a_claim_that_holds_is_kept(traced):
    program = TypeAttention()(traced("qwen2-bidirectional").program)
    assert program.evidence.claims == (Claim("is_causal", False, MaskKind.BIDIRECTIONAL),)


def test_an_opaque_mask_is_refused(monkeypatch):
    """Blocks counted from the first column, whatever pads a row: the text alone sees otherwise."""
    code = importlib.import_module("transformers.models.llama.modeling_llama")
    blocks = functools.partial(code.create_causal_mask, and_mask_function=lambda b, h, q, k: q // 4 == k // 4)
    monkeypatch.setattr(code, "create_causal_mask", blocks)
    with pytest.raises(AttentionTypeError) as refused:
        TypeAttention()(trace(checkpoint(build("llama"))).program)
    text = str(refused.value)
    assert text.startswith("attention (model.layers.0.self_attn): its mask depends on more than the distance")
    assert "never guessed" in text


def test_attention_that_is_no_node_is_refused(traced):
    """The pass before makes nodes of it; a program that skipped that pass is not typed by half."""
    with pytest.raises(AttentionTypeError) as refused:
        TypeAttention()(traced("mpnet").program)
    text = str(refused.value)
    assert text.startswith("2 attention(s) are not attention nodes, the first at softmax (model.encoder.layer.0")
    assert "Nothing is guessed" in text


def test_a_count_that_differs_is_refused(traced):
    program = traced("bert").program.with_(attention_calls=3)
    with pytest.raises(AttentionTypeError, match="made 3 attention calls, but the graph has 2 attention nodes"):
        TypeAttention()(program)


class Rows(nn.Module):
    """Embeds ids into 4 heads of 2, [B, H, S, D]."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(96, 8)

    def forward(self, ids):
        return self.table(ids).unflatten(-1, (4, 2)).transpose(1, 2)


def attend(q, k, kind="bidirectional", bias=None):
    window = [-1, 0] if kind == "causal" else [-1, -1]
    return torch.ops.headrace.attention(q, k, k, None, bias, None, 0.5, kind, window, 0.0)


def heads(rows):
    return rows.transpose(1, 2)


class EncoderDecoder(nn.Module):
    """One attention of each kind: encoder, decoder, cross."""

    def __init__(self):
        super().__init__()
        self.source, self.target = Rows(), Rows()

    def forward(self, input_ids, target_ids):
        source, target = self.source(input_ids), self.target(target_ids)
        encoded = heads(attend(source, source))
        decoded = heads(attend(target, target, "causal"))
        return attend(decoded, encoded)


class FromText(nn.Module):
    """The same, but the target is made from the text, as sequence heads do: nothing tells the inputs apart."""

    def __init__(self):
        super().__init__()
        self.both = EncoderDecoder()
        self.source = Rows()

    def forward(self, input_ids):
        decoded = self.both(input_ids, input_ids.roll(1, 1))
        # A second layer: by now the queries have passed the encoder's attention too.
        encoded = heads(attend(self.source(input_ids), self.source(input_ids)))
        rows = heads(attend(heads(decoded), heads(decoded), "causal"))
        return attend(rows, encoded)


class LookingAhead(nn.Module):
    """Queries from rows before an attention, keys from the same rows after it."""

    def __init__(self):
        super().__init__()
        self.source = Rows()

    def forward(self, input_ids):
        source = self.source(input_ids)
        return attend(source, heads(attend(source, source)))


class CausalCross(EncoderDecoder):
    """Cross attention under a causal mask, which relates positions of two sequences."""

    def forward(self, input_ids, target_ids):
        source, target = self.source(input_ids), self.target(target_ids)
        return attend(target, heads(attend(source, source)), "causal")


class Latent(nn.Module):
    """Learned queries over the sequence."""

    def __init__(self):
        super().__init__()
        self.source, self.queries = Rows(), nn.Parameter(torch.randn(1, 4, 3, 2))

    def forward(self, input_ids):
        source = self.source(input_ids)
        return attend(self.queries.expand(source.shape[0], -1, -1, -1), source)


class Encoder(nn.Module):
    """Own-sequence keys, and a bias tensor that reads the size of another input."""

    def __init__(self):
        super().__init__()
        self.source = Rows()

    def forward(self, input_ids, target_ids):
        source = self.source(input_ids)
        bias = torch.zeros(1, 1, target_ids.shape[1], target_ids.shape[1])
        return attend(source, source, bias=bias)


class Slots(nn.Module):
    """As many learned queries as the text has tokens: they depend on its length, not on what it says."""

    def __init__(self):
        super().__init__()
        self.source, self.places = Rows(), Rows()

    def forward(self, input_ids):
        batch, length = input_ids.shape
        return attend(self.places(torch.arange(length).expand(batch, -1)), self.source(input_ids))


def test_encoder_decoder_attention_is_told_by_its_operands():
    program = TypeAttention()(program_of(EncoderDecoder(), "input_ids", "target_ids"))
    assert [spec.type for spec in program.nodes.attention] == [
        AttentionType.ENCODER,
        AttentionType.DECODER,
        AttentionType.ENCODER_DECODER,
    ]


def test_a_target_made_from_the_text_is_told_by_what_the_keys_have_passed():
    program = TypeAttention()(program_of(FromText(), "input_ids"))
    encoder, decoder, cross = AttentionType.ENCODER, AttentionType.DECODER, AttentionType.ENCODER_DECODER
    assert [spec.type for spec in program.nodes.attention] == [encoder, decoder, cross, encoder, decoder, cross]


def test_keys_further_on_than_their_queries_are_refused():
    with pytest.raises(AttentionTypeError, match="both are made from the rows of"):
        TypeAttention()(program_of(LookingAhead(), "input_ids"))


def test_cross_attention_under_a_causal_mask_is_refused():
    with pytest.raises(AttentionTypeError, match="its mask is causal, which relates positions of one sequence"):
        TypeAttention()(program_of(CausalCross(), "input_ids", "target_ids"))


@pytest.mark.parametrize("name", ["bart", "t5", "mbart", "marian", "pegasus", "t5gemma", "whisper"])
def test_two_layers_of_an_encoder_decoder(traced, name):
    types = [spec.type for spec in TypeAttention()(traced(name).program).nodes.attention]
    decoder = [AttentionType.DECODER, AttentionType.ENCODER_DECODER]
    assert types == [AttentionType.ENCODER] * 2 + decoder * 2


def test_learned_queries_are_latent():
    """Contract A2."""
    (spec,) = TypeAttention()(program_of(Latent(), "input_ids")).nodes.attention
    assert (spec.type, spec.latent) == (ENCODER_ONLY, True)


def test_a_size_is_no_dependence():
    (spec,) = TypeAttention()(program_of(Slots(), "input_ids")).nodes.attention
    assert (spec.type, spec.latent) == (ENCODER_ONLY, True)


def test_a_bias_is_noted():
    (spec,) = TypeAttention()(program_of(Encoder(), "input_ids", "target_ids")).nodes.attention
    assert (spec.type, spec.latent, spec.bias) == (ENCODER_ONLY, False, BiasKind.TENSOR)
    assert spec.mask_node is None


def test_a_softmax_that_weighs_no_product_is_no_attention():
    class Gated(Encoder):
        def forward(self, input_ids, target_ids):
            rows = super().forward(input_ids, target_ids).flatten(2)
            return rows * rows.softmax(-1)

    assert len(TypeAttention()(program_of(Gated(), "input_ids", "target_ids")).nodes.attention) == 1


def test_a_softmax_between_two_products_is_refused_wherever_it_stands():
    class Hidden(Encoder):
        def forward(self, input_ids, target_ids):
            rows = super().forward(input_ids, target_ids).flatten(2)
            weights = torch.softmax(rows @ rows.transpose(1, 2) * 0.3, -1)
            return torch.einsum("bij,bjd->bid", weights, rows)

    with pytest.raises(AttentionTypeError, match=r"1 attention\(s\) are not attention nodes"):
        TypeAttention()(program_of(Hidden(), "input_ids", "target_ids"))


def test_leaves_the_rest_alone(traced):
    before = traced("gemma2").program
    text = str(before.graph.graph)
    after = TypeAttention()(before)
    assert after.graph is before.graph
    assert str(after.graph.graph) == text
    assert after.with_(attention=(), stage=Stage.TRACED) == before
    assert len(attention_nodes(after.graph)) == len(after.nodes.attention)


def test_a_convolution_over_tokens_is_recurrent(analysed):
    """B4: LFM2's short convolution carries the sequence along beside its attention."""
    program = analysed("lfm2")
    assert [node.operator for node in program.nodes.recurrent] == ["causal_conv1d"]
    assert (program.decision.route.rule, program.decision.route.name) == ("B4", "HybridState")
