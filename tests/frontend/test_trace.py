"""One export of a borrowed model: what it returns, what it keeps, and that names decide nothing."""

import copy

import pytest
import torch
from torch import nn

from headrace.errors import TraceError
from headrace.frontend.trace import trace
from headrace.ir import OutputKind, PoolKind, Program, Stage
from headrace.ir.serialize import encode
from headrace.lowering.pipeline import analyse
from headrace.ops.attention import ATTENTION, MASK
from tests.tiny import build, checkpoint, outputs_of, rows_of, token_ids

HIDDEN, EMBEDDING = OutputKind.HIDDEN, OutputKind.EMBEDDING
# As other tests have them, so that each is traced once.
LABELS = {"AutoModelForTokenClassification": {"num_labels": 5}, "AutoModelForSequenceClassification": {"num_labels": 3}}
OUTPUTS = [
    ("bert", "AutoModel", [(HIDDEN, 32), (EMBEDDING, 32)]),
    ("bert", "AutoModelForMaskedLM", [(OutputKind.VOCABULARY_LOGITS, 96)]),
    ("modernbert", "AutoModelForTokenClassification", [(OutputKind.TOKEN_LOGITS, 5)]),
    ("roberta", "AutoModelForSequenceClassification", [(OutputKind.SEQUENCE_LOGITS, 3), (HIDDEN, 32)]),
    ("qwen2-mixed-window", "AutoModelForCausalLM", [(OutputKind.VOCABULARY_LOGITS, 96), (HIDDEN, 32), (EMBEDDING, 32)]),
    ("bert", "AutoModelForQuestionAnswering", [(OutputKind.SPAN_LOGITS, 2)]),
    ("bert", "AutoModelForMultipleChoice", [(OutputKind.SEQUENCE_LOGITS, 1), (HIDDEN, 32)]),
]


@pytest.mark.parametrize(("name", "head", "outputs"), OUTPUTS, ids=lambda v: v if isinstance(v, str) else "")
def test_outputs_by_head(traced, name, head, outputs):
    program = traced(name, head, **LABELS.get(head, {})).program
    assert [(output.kind, output.width) for output in program.signature.outputs] == outputs
    assert program.stage is Stage.TRACED
    assert program.signature.input_names[:2] == ("input_ids", "attention_mask")
    assert (program.dtype, program.signature.vocabulary) == ("float32", 96)


@pytest.mark.parametrize(("name", "head"), [(name, head) for name, head, _ in OUTPUTS[:5]])
def test_equals_the_eager_model(traced, tiny, name, head):
    config, ids = LABELS.get(head, {}), token_ids(8, batch=3)
    program, model = traced(name, head, **config).program, tiny(name, head, **config)
    got = outputs_of(program, ids)
    with torch.no_grad():
        output = model(ids)
    expected = output.logits if "logits" in output else output.last_hidden_state
    first = next(iter(got.values()))
    assert (first - expected).abs().max() <= 1e-5
    if name == "bert" and head == "AutoModel":
        assert (got["embedding"] - expected.mean(1)).abs().max() <= 1e-5


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (2, 1), (5, 33), (3, 64)])
def test_any_batch_and_length(traced, tiny, shape):
    """Traced on 2 x 7, right at other shapes, one among them."""
    for name in ("bert", "gemma3"):
        ids = token_ids(shape[1], batch=shape[0])
        with torch.no_grad():
            expected = tiny(name)(ids).last_hidden_state
        assert (rows_of(traced(name).program, ids) - expected).abs().max() <= 1e-5


def test_each_attention_is_one_node_over_shared_masks(traced):
    nodes = list(traced("gemma3").program.graph.graph.nodes)
    assert sum(node.target is ATTENTION for node in nodes) == 2
    assert sum(node.target is MASK for node in nodes) == 2
    nodes = list(traced("bert").program.graph.graph.nodes)
    assert sum(node.target is MASK for node in nodes) == 1


def test_weights_are_not_copied(traced, tiny):
    held = traced("bert").program.graph.state_dict
    owned = {p.data_ptr() for p in tiny("bert").parameters()}
    assert {value.data_ptr() for value in held.values()} <= owned


def upcasts(program):
    """Casts to float32 in the graph."""
    casts = (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype)
    return sum(
        node.target in casts and torch.float32 in (*node.args, *node.kwargs.values())
        for node in program.graph.graph.nodes
    )


def test_a_half_precision_trace_keeps_the_upcasts(traced):
    """Design section 2: a float32 trace loses nearly every one, so a model is traced in the dtype that runs."""
    model = build("qwen3").to(torch.bfloat16)
    half, single = trace(checkpoint(model)).program, traced("qwen3").program
    assert half.dtype == "bfloat16"
    # Each of 2 layers has 4 norms computed in float32, and there is a last one.
    assert upcasts(half) >= upcasts(single) + 9
    ids = token_ids(6)
    with torch.no_grad():
        expected = model(ids).last_hidden_state
    assert torch.equal(rows_of(half, ids), expected) or (rows_of(half, ids) - expected).abs().max() <= 0.05


def test_experts_and_sinks_survive(traced, tiny):
    ids = token_ids(11)
    for name in ("gpt-oss", "mixtral"):
        with torch.no_grad():
            expected = tiny(name)(ids).last_hidden_state
        assert (rows_of(traced(name).program, ids) - expected).abs().max() <= 1e-5


def state_of(model):
    """Everything about a model that tracing could have changed."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs")
    return {
        "configs": [copy.deepcopy(vars(m.config)) for m in model.modules() if hasattr(m, "config")],
        "training": [m.training for m in model.modules()],
        "hooks": [[len(getattr(m, name)) for name in hooks] for m in model.modules()],
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "grad": [p.requires_grad for p in model.parameters()],
        "weights": [p.detach().clone() for p in model.parameters()],
    }


def require_same(before, after):
    weights = zip(before.pop("weights"), after.pop("weights"), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    assert before == after


ONE = {"num_hidden_layers": 1}
BORROWED = [
    ("llama", "AutoModelForSequenceClassification", {"pad_token_id": None} | ONE, False),
    ("mistral", "AutoModel", {"sliding_window": 4096} | ONE, True),
    ("gpt-oss", "AutoModel", {"layer_types": ["sliding_attention"]} | ONE, True),
    ("bert", "AutoModelForTokenClassification", ONE, True),
]


@pytest.mark.parametrize(("name", "head", "config", "training"), BORROWED, ids=[name for name, *_ in BORROWED])
def test_a_users_model_is_left_as_it_was(name, head, config, training):
    """Attention implementation, cache flag, padding id, hooks, mode; in training mode dropout is off inside."""
    model = build(name, head, **config)
    model.train(training)
    if training:
        model.base_model.requires_grad_(False)
    implementation = model.config._attn_implementation
    before = state_of(model)
    made = trace(checkpoint(model))
    analyse(made.program, made.behaviour)
    require_same(before, state_of(model))
    assert model.config._attn_implementation == implementation != "headrace"


def test_a_users_model_is_left_as_it_was_by_a_failure():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build("bert")

        def forward(self, input_ids, attention_mask=None):
            rows = self.inner(input_ids, attention_mask).last_hidden_state
            return rows * 2 if input_ids.sum() > 40 else rows

    model = Broken().train()
    before = state_of(model)
    with pytest.raises(TraceError, match="cannot be exported with a dynamic batch and sequence: "):
        trace(checkpoint(model))
    require_same(before, state_of(model))


def test_a_model_whose_own_forward_fails():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(96, 8)

        def forward(self, input_ids):
            raise RuntimeError("it needs pictures")

    with pytest.raises(TraceError, match="own forward fails on a batch of 2 x 7 tokens: it needs pictures"):
        trace(checkpoint(Fails()))


def test_a_model_without_an_embedding_is_refused():
    class Bare(nn.Module):
        def forward(self, input_ids):
            return input_ids.float()[:, :, None]

    with pytest.raises(TraceError, match="has no embedding of token ids"):
        trace(checkpoint(Bare()))


def test_pooling_that_nothing_names_is_assumed(traced):
    """A bare folder: mean for a bidirectional model, last for a causal one, and it is marked."""
    for name, kind in (("bert", PoolKind.MEAN), ("qwen2", PoolKind.LAST), ("qwen2-bidirectional", PoolKind.MEAN)):
        pooling = traced(name).program.facts.pooling
        assert pooling.kinds == (kind,)
        assert pooling.assumed
        assert pooling.why.startswith(f"nothing names one: {kind} suits a ")


def test_pooling_that_was_asked_for(tiny):
    model = tiny("qwen2", num_hidden_layers=1)
    program = trace(checkpoint(model), pools=(PoolKind.MEAN, PoolKind.MAX)).program
    assert (program.facts.pooling.kinds, program.facts.pooling.assumed) == ((PoolKind.MEAN, PoolKind.MAX), False)
    assert program.signature.output(EMBEDDING).width == 64


def wrapped(inner, body):
    """The model inside a module of somebody's own."""

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

    Wrapper.forward = body
    return Wrapper()


def open_ended(self, input_ids, attention_mask=None, **inputs):
    return self.inner(input_ids=input_ids, attention_mask=attention_mask, **inputs)


def keywords(self, **inputs):
    return self.inner(**inputs)


def closed(self, input_ids, attention_mask):
    return self.inner(input_ids=input_ids, attention_mask=attention_mask)


def tensor(self, input_ids, attention_mask):
    return self.inner(input_ids=input_ids, attention_mask=attention_mask)[0]


WRAPPERS = [
    ("qwen2", open_ended, True),
    ("bert", keywords, True),
    ("qwen2", closed, False),
    ("bert", tensor, False),
]


@pytest.mark.parametrize(("name", "body", "whole"), WRAPPERS, ids=[body.__name__ for _, body, _ in WRAPPERS])
def test_a_wrapper_answers_as_the_model_inside(traced, tiny, name, body, whole):
    """Contract B7; what the wrapper passes on of keywords are inputs too."""
    model = tiny(name)
    made = trace(checkpoint(wrapped(model, body)))
    program = analyse(made.program, made.behaviour)
    inner = traced(name).program
    assert program.signature.input_names == (inner.signature.input_names if whole else ("input_ids", "attention_mask"))
    ids = token_ids(9, batch=2)
    with torch.no_grad():
        expected = model(ids).last_hidden_state
    assert (rows_of(program, ids) - expected).abs().max() <= 1e-5


SCRUBBED = [
    ("bert", "AutoModel", {}),
    ("llama", "AutoModelForSequenceClassification", {"num_labels": 1}),
    ("gemma3-bidirectional", "AutoModel", {}),
    ("gpt-oss", "AutoModel", {}),
    ("clip-vision", "CLIPVisionModelWithProjection", {}),
    ("jamba", "AutoModel", {}),
    ("recurrent-gemma", "AutoModel", {}),
]


@pytest.fixture
def scrub():
    """`scrub(model)` renames every class of the model and of its configurations, and empties what names a model."""
    renamed = []

    def run(model):
        configs = [m.config for m in model.modules() if hasattr(m, "config")]
        for config in {id(c): c for c in configs}.values():
            config.__dict__.update(model_type="thing", architectures=["Thing"], _name_or_path="somewhere")
        kinds = dict.fromkeys(type(thing) for thing in (*model.modules(), *configs))
        for index, kind in enumerate(kinds):
            renamed.append((kind, kind.__name__, kind.__qualname__, kind.__module__))
            kind.__name__ = kind.__qualname__ = f"Thing{index}"
            kind.__module__ = "things"

    yield run
    for kind, name, qualified, module in renamed:
        kind.__name__, kind.__qualname__, kind.__module__ = name, qualified, module


def facts_of(program: Program):
    """What the program says, without where it came from."""
    said = encode(program)
    del said["source"]
    for spec in (*said["attention"], *said["recurrent"]):
        del spec["provenance"]
    return said


@pytest.mark.parametrize(("name", "head", "config"), SCRUBBED, ids=[name for name, *_ in SCRUBBED])
def test_names_decide_nothing(analysed, scrub, name, head, config):
    """Contract D5."""
    named = analysed(name, head, **config)
    model = build(name, head, **config)
    scrub(model)
    made = trace(checkpoint(model, name="something else"))
    nameless = analyse(made.program, made.behaviour)
    assert "Thing" in repr(model)
    assert nameless.as_text() == named.as_text()
    assert facts_of(nameless) == facts_of(named)
    assert nameless.source.name == "something else"
