"""Contract A3: the probe proves types and windows by what the eager model does, and refuses a wrong annotation."""

import dataclasses

import pytest
import torch
import transformers
from packaging.version import Version

from headrace import graphs, sample
from headrace.errors import AttentionTypeError
from headrace.frontend.probe.behaviour import Behaviour
from headrace.frontend.trace import trace
from headrace.ir import AttentionType, MaskKind, Verdict, Window
from headrace.lowering.decide.probe import Probe
from headrace.lowering.pipeline import analyse
from headrace.lowering.types.attention import TypeAttention
from tests.synthetic import facts
from tests.tiny import build, checkpoint, rows_of, token_ids

DECODER, ENCODER_ONLY = AttentionType.DECODER, AttentionType.ENCODER_ONLY
CROSS = AttentionType.ENCODER_DECODER
CAUSAL = {"type": DECODER, "mask": MaskKind.CAUSAL, "window": Window(-1, 0)}
SLIDING = {"layer_types": ["sliding_attention"]}
BIDIRECTIONAL = {"type": ENCODER_ONLY, "mask": MaskKind.BIDIRECTIONAL, "window": Window()}


@pytest.fixture
def probed(traced):
    """Probe a tiny model whose annotation a change has corrupted: `probed(name, {call order: changes})`."""

    def run(name, changes):
        made = traced(name)
        program = TypeAttention()(made.program)
        specs = [dataclasses.replace(s, **changes.get(s.call_order, {})) for s in program.nodes.attention]
        return Probe(made.behaviour)(program.with_(attention=tuple(specs)))

    return run


@pytest.mark.parametrize(
    "name",
    "bert bert-decoder albert roberta distilbert modernbert clip-text qwen2 qwen2-bidirectional qwen2-mixed-window "
    "llama llama-bidirectional mistral mistral-bidirectional gemma2 gemma3 gemma3-bidirectional gpt2 opt gpt-oss "
    "mixtral bart t5 fsmt whisper".split(),
)
def test_honest_annotations_are_proven(analysed, name):
    if name == "fsmt" and Version(transformers.__version__) < Version("5.18"):
        pytest.skip("transformers 5.18: before it, the mask of FSMT's decoder assumes two tokens, which is refused")
    assert {spec.verdict for spec in analysed(name).nodes.attention} == {Verdict.PROVEN}


# Model, corrupted fields by call order, the node named, what was declared, what was seen.
CORRUPTED = [
    ("bert", {0: CAUSAL, 1: CAUSAL}, "attention and every other attention is declared DECODER", "look"),
    ("qwen2", {0: BIDIRECTIONAL}, "attention is declared ENCODER_ONLY", "behaves causally"),
    ("qwen2", {0: BIDIRECTIONAL, 1: BIDIRECTIONAL}, "attention is declared ENCODER_ONLY", "behaves causally"),
    ("qwen2", {1: BIDIRECTIONAL}, "attention_1 is declared ENCODER_ONLY", "behaves causally"),
    # One layer of a bidirectional stack.
    (
        "bert",
        {1: CAUSAL},
        "attention_1 (model.encoder.layer.1.attention.self) is declared DECODER (causal, window (*, 0))",
        "key at position 4 of 12 should reach rows 4..11, but was seen to reach rows 0..11",
    ),
    # A mask kind under the right type.
    (
        "bert",
        {0: {"mask": MaskKind.CAUSAL}},
        "attention (model.encoder.layer.0.attention.self) is declared ENCODER_ONLY (causal, window (*, *))",
        "should reach rows 4..11, but was seen to reach rows 0..11",
    ),
    # Windows that are too narrow, too wide, missing, invented, on either side.
    (
        "mistral",
        {1: {"window": Window(2, 0)}},
        "attention_1 (model.layers.1.self_attn)",
        "0..2, but was seen to reach rows 0..3",
    ),
    (
        "mistral",
        {1: {"window": Window(4, 0)}},
        "attention_1 (model.layers.1.self_attn)",
        "0..4, but was seen to reach rows 0..3",
    ),
    (
        "mistral",
        {0: {"window": Window(-1, 0)}},
        "attention (model.layers.0.self_attn)",
        "0..14, but was seen to reach rows 0..3",
    ),
    (
        "llama",
        {1: {"window": Window(4, 0)}},
        "attention_1 (model.layers.1.self_attn)",
        "0..4, but was seen to reach rows 0..17",
    ),
    (
        "gemma2",
        {0: {"window": Window(-1, 0)}, 1: {"window": Window(5, 0)}},
        "attention (model.layers.0",
        "reach rows 0..5",
    ),
    ("mistral-bidirectional", {0: {"window": Window(4, 3)}}, "attention (model.layers.0", "but was seen to reach"),
    ("mistral-bidirectional", {0: {"window": Window(4, 5)}}, "attention (model.layers.0", "but was seen to reach"),
    ("mistral-bidirectional", {1: {"window": Window(3, 4)}}, "attention_1 (model.layers.1", "but was seen to reach"),
    ("mistral-bidirectional", {1: {"window": Window(-1, 4)}}, "attention_1 (model.layers.1", "but was seen to reach"),
    ("gemma3-bidirectional", {0: {"window": Window(1, 1)}}, "attention (model.layers.0", "but was seen to reach"),
    ("modernbert", {1: {"window": Window()}}, "attention_1 (model.layers.1", "but was seen to reach"),
    # The halves of an encoder-decoder, each taken for another.
    (
        "bart",
        {0: {"type": AttentionType.DECODER} | CAUSAL},
        "attention (model.encoder.layers.0.self_attn) is declared DECODER (causal",
        "should reach rows 4..11, but was seen to reach rows 0..11",
    ),
    (
        "bart",
        {2: BIDIRECTIONAL | {"type": AttentionType.ENCODER}},
        "attention_2 (model.decoder.layers.0.self_attn) is declared ENCODER (bidirectional",
        "should reach rows 0..11, but was seen to reach rows 4..11",
    ),
    (
        "bart",
        {0: BIDIRECTIONAL | {"type": CROSS}},
        "attention (model.encoder.layers.0.self_attn) is declared ENCODER_DECODER",
        "its keys come from its own sequence",
    ),
    (
        "bart",
        {3: BIDIRECTIONAL | {"type": AttentionType.ENCODER}},
        "attention_3 (model.decoder.layers.0.encoder_attn) is declared ENCODER",
        "keys were seen to come from another sequence",
    ),
    (
        "t5",
        {3: CAUSAL, 5: BIDIRECTIONAL | {"type": CROSS}},
        "attention_3 (model.decoder.block.0.layer.1.EncDecAttention) is declared DECODER",
        "keys were seen to come from another sequence",
    ),
]


@pytest.mark.parametrize(
    ("name", "changes", "declared", "seen"), CORRUPTED, ids=[f"{i}-{case[0]}" for i, case in enumerate(CORRUPTED)]
)
def test_a_corrupted_annotation_is_refused(probed, name, changes, declared, seen):
    with pytest.raises(AttentionTypeError) as refused:
        probed(name, changes)
    assert declared in str(refused.value)
    assert seen in str(refused.value)


@pytest.mark.parametrize(("changes", "verdicts"), [({}, "p---p"), ({2: {"scale": 0.3}}, "p-p-p")])
def test_of_attentions_that_are_alike_the_ends_are_run(traced, changes, verdicts, monkeypatch):
    made = traced("llama", num_hidden_layers=5)
    program = TypeAttention()(made.program)
    specs = [dataclasses.replace(s, **changes.get(s.call_order, {})) for s in program.nodes.attention]
    asked, reach = [], made.behaviour.reach

    def noted(*given):
        asked.append(given[-1])
        return reach(*given)

    monkeypatch.setattr(made.behaviour, "reach", noted)
    found = Probe(made.behaviour)(program.with_(attention=tuple(specs))).nodes.attention
    words = {Verdict.PROVEN: "p", Verdict.PROVEN_ALIKE: "-"}
    assert "".join(words[spec.verdict] for spec in found) == verdicts
    assert asked == [{order for order, letter in enumerate(verdicts) if letter == "p"}]


def test_one_attention_between_others_that_is_declared_otherwise_is_run_and_refused(traced):
    made = traced("mistral", num_hidden_layers=4)
    program = TypeAttention()(made.program)
    specs = list(program.nodes.attention)
    specs[2] = dataclasses.replace(specs[2], window=Window(2, 0))
    with pytest.raises(AttentionTypeError, match=r"attention_2 \(model.layers.2.self_attn\).*rows 0..3"):
        Probe(made.behaviour)(program.with_(attention=tuple(specs)))


def test_the_same_model_uncorrupted_is_proven(probed):
    assert {spec.verdict for spec in probed("mistral-bidirectional", {}).nodes.attention} == {Verdict.PROVEN}


@pytest.mark.parametrize(
    ("name", "changes", "window"),
    [
        ("mistral-long-window", {}, Window(4095, 0)),
        ("mistral-bidirectional", {"sliding_window": 1024, "num_hidden_layers": 1}, Window(1024, 1024)),
        ("modernbert", {"local_attention": 2000, "num_hidden_layers": 2}, Window(1000, 1000)),
        ("gemma3-bidirectional", {"sliding_window": 1024, "num_hidden_layers": 1} | SLIDING, Window(512, 512)),
    ],
)
def test_a_window_longer_than_the_probe_is_proven_shrunk(analysed, name, changes, window):
    specs = [
        spec for spec in analysed(name, **changes).nodes.attention if spec.window.bounded and spec.window.left >= 0
    ]
    assert {(spec.window, spec.verdict) for spec in specs} == {(window, Verdict.PROVEN_SHRUNK)}


def test_shrinking_leaves_the_configuration_as_it_was(traced, analysed):
    analysed("mistral-long-window")
    behaviour = traced("mistral-long-window").behaviour
    assert behaviour._double.config.sliding_window == 4096
    assert behaviour._module.config.sliding_window == 4096


def test_a_shrunk_window_that_the_model_does_not_keep_is_refused(traced):
    """The window is declared and the module ignores it: only the shrunk architecture can show that."""
    made = traced("mistral-long-window")
    program = TypeAttention()(made.program)

    class Ignores(Behaviour):
        def reach(self, length, keys, places, rounding=0.0, orders=None):
            return [{k: frozenset(range(k + 1, length)) for k in keys} for _ in program.nodes.attention]

    behaviour = made.behaviour
    ignores = Ignores(behaviour._served, behaviour._model)
    with pytest.raises(
        AttentionTypeError, match=r"attention \(model.layers.0.self_attn\) is declared DECODER \(causal"
    ):
        Probe(ignores)(program)


def test_a_window_that_cannot_be_shrunk_is_marked(probed):
    """No attribute of the config gives 4000 keys, so nothing can be shrunk; the verifier refuses the mismatch."""
    program = probed("mistral-long-window", {0: {"window": Window(4000, 0)}})
    assert [spec.verdict for spec in program.nodes.attention] == [Verdict.UNPROBED, Verdict.PROVEN_SHRUNK]


class Unheard:
    """A behaviour that says nothing of single attentions."""

    def __init__(self, change):
        self.change = change

    def stack_change(self, length):
        return self.change

    def reach(self, length, keys, places, rounding=0.0, orders=None):
        return []

    def shrunk(self, call_order, window):
        raise AssertionError


def test_what_cannot_be_run_alone_is_unprobed():
    program = Probe(Unheard(0.0))(facts(DECODER, DECODER))
    assert {spec.verdict for spec in program.nodes.attention} == {Verdict.UNPROBED}


@pytest.mark.parametrize(
    ("change", "experts", "refused"), [(1e-9, False, True), (1e-9, True, False), (1e-5, True, True)]
)
def test_only_routed_experts_may_differ_in_the_last_bits(change, experts, refused):
    program = facts(DECODER, routed_experts=experts)
    if refused:
        with pytest.raises(AttentionTypeError, match=f"to change the rows before it by {change:.1e}"):
            Probe(Unheard(change))(program)
    else:
        Probe(Unheard(change))(program)


@pytest.mark.parametrize("name", ["mixtral", "gpt-oss"])
def test_routed_experts_are_told_from_the_graph(traced, name):
    assert traced(name).program.evidence.routed_experts


def test_a_dense_model_has_no_routed_experts(traced):
    assert not traced("llama").program.evidence.routed_experts


class Moved:
    """The behaviour of an encoder-decoder, but for one half whose rows change with a token that they must not see."""

    def __init__(self, true, moved):
        self.true, self.moved = true, moved
        self.reach, self.reach_across, self.shrunk = true.reach, true.reach_across, true.shrunk

    def stack_change(self, length, changed, seen):
        return self.moved.get((changed, seen), self.true.stack_change(length, changed, seen))


@pytest.mark.parametrize(
    ("halves", "change", "words"),
    [
        (("text", "text"), 0.0, "attention (model.encoder.layers.0.self_attn) and its like are declared ENCODER, but"),
        (("target", "target"), 0.1, "declared DECODER, but a new last token of the target changed the rows before it"),
        (("target", "text"), 0.1, "declared ENCODER_DECODER, but a new last token of the target changed the encoder's"),
        (("text", "target"), 0.0, "a new last token of the text left the decoder's rows bit-equal. It must change"),
    ],
)
def test_a_half_that_behaves_unlike_its_type_is_refused(traced, halves, change, words):
    made = traced("bart")
    with pytest.raises(AttentionTypeError) as refused:
        Probe(Moved(made.behaviour, {halves: change}))(TypeAttention()(made.program))
    assert words in str(refused.value)


def test_keys_that_change_with_the_target_are_no_encoders(traced):
    """What a cross attention is given as a second sequence must not come from the decoder."""
    made = traced("bart")
    behaviour = made.behaviour
    mixed = Moved(behaviour, {})
    mixed.reach_across = lambda *run: [None for _ in behaviour.reach_across(*run)]
    with pytest.raises(AttentionTypeError, match=r"attention_3 .* no second sequence that the target leaves alone"):
        Probe(mixed)(TypeAttention()(made.program))


def test_leaves_all_but_the_verdicts_alone(traced):
    made = traced("gemma2")
    before = TypeAttention()(made.program)
    after = Probe(made.behaviour)(before)
    assert after.graph is before.graph
    pending = tuple(dataclasses.replace(spec, verdict=Verdict.PENDING) for spec in after.nodes.attention)
    assert after.with_(attention=pending) == before


# The behaviours that cases B1 to B7 name, on the traced graph: what the IR means, beside what the annotation says.


def changed_rows(program, ids, position):
    """The rows whose value changes with the token at one position."""
    other = ids.clone()
    other[:, position] = (ids[:, position] + 1 - 3) % 90 + 3
    differ = (rows_of(program, ids) != rows_of(program, other)).any(-1)
    return set(differ[0].nonzero().flatten().tolist())


def test_bidirectional_gemma3_sees_the_last_token_from_the_first(analysed):
    """Case B1."""
    program = analysed("gemma3-bidirectional")
    assert {spec.type for spec in program.nodes.attention} == {ENCODER_ONLY}
    assert 0 in changed_rows(program, token_ids(9), 8)


@pytest.mark.parametrize(
    ("name", "changes", "reach"),
    [
        ("gemma3-bidirectional", {"num_hidden_layers": 1} | SLIDING, 2),
        ("mistral-bidirectional", {"num_hidden_layers": 1}, 4),
    ],
)
def test_a_window_reaches_as_far_as_declared_in_the_graph(analysed, name, changes, reach):
    """Case B2."""
    program = analysed(name, **changes)
    ids = token_ids(12)
    for key in range(12):
        assert changed_rows(program, ids, key) == {i for i in range(12) if abs(i - key) <= reach}


def test_the_causality_flag_decides(analysed):
    """Case B4."""
    kinds = {name: {s.type for s in analysed(name).nodes.attention} for name in ("qwen2-bidirectional", "qwen2")}
    assert kinds == {"qwen2-bidirectional": {ENCODER_ONLY}, "qwen2": {DECODER}}


def test_no_mask_is_not_the_same_as_causal(analysed, tiny):
    """Case B5: alone, the eager model has no mask at all; in a batch it has one."""
    program, model = analysed("llama-bidirectional"), tiny("llama-bidirectional")
    short, long = token_ids(5, seed=1), token_ids(9, seed=2)
    ids = torch.full((2, 9), 7)
    ids[0, :5], ids[1] = short, long
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    batch = rows_of(program, ids, mask)
    for row, single in ((0, short), (1, long)):
        with torch.no_grad():
            alone = model(input_ids=single).last_hidden_state[0]
        assert (batch[row, : single.shape[1]] - alone).abs().max() <= 1e-5
        assert (rows_of(program, single)[0] - alone).abs().max() <= 1e-5


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_make_a_decoder_bidirectional(analysed, side):
    """Case B6."""
    program = analysed("qwen2")
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[0, slice(0, 4) if side == "left" else slice(5, 9)] = 0
    ids = token_ids(9, batch=2)
    last = [8, 8] if side == "left" else [4, 8]
    other = ids.clone()
    other[torch.arange(2), last] = (other[torch.arange(2), last] + 5) % 90 + 3
    before, after = rows_of(program, ids, mask), rows_of(program, other, mask)
    for row in range(2):
        earlier = [i for i in range(9) if mask[row, i] and i < last[row]]
        assert torch.equal(before[row, earlier], after[row, earlier])
        assert not torch.equal(before[row, last[row]], after[row, last[row]])


def test_the_probe_needs_two_tokens(traced):
    made = traced("bert")
    limits = dataclasses.replace(made.program.facts.limits, length=1)
    program = Probe(made.behaviour)(TypeAttention()(made.program).with_(limits=limits))
    assert {spec.verdict for spec in program.nodes.attention} == {Verdict.UNPROBED}


def test_a_wrong_window_in_the_whole_graph_is_caught_before_anything_is_served():
    """Node, mask and spec agree and are all wrong: only behaviour can tell."""
    made = trace(checkpoint(build("mistral")))

    def narrow(graph):
        for node in graph.nodes:
            if node.target in (torch.ops.headrace.attention.default, torch.ops.headrace.mask.default):
                node.args = tuple([2, 0] if arg == [3, 0] else arg for arg in node.args)

    program = made.program.with_(exported=graphs.rewrite(made.program.graph, narrow))
    assert {s.window for s in TypeAttention()(program).nodes.attention} == {Window(2, 0)}
    with pytest.raises(Exception, match=r"differ by|was seen to reach") as refused:
        analyse(program, made.behaviour)
    assert type(refused.value).__name__ in ("TraceError", "AttentionTypeError")


def test_sample_inputs_put_padding_on_the_right(analysed):
    given = sample.one(analysed("bert"), 3, 5)
    assert given["attention_mask"].tolist() == [[1, 1, 1, 0, 0]]
