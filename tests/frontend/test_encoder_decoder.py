"""Encoder-decoders: one program holds both halves, each with a length of its own, and equals the eager model."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from headrace import graphs
from headrace.errors import TraceError
from headrace.frontend.trace import trace
from headrace.ir import BATCH, SEQUENCE, TARGET, AttentionType, Head, OutputKind, Task
from headrace.ir.passes import run_passes
from headrace.lowering.forms.select import SelectTask
from headrace.lowering.pipeline import analyse, prepare
from tests.conformance.oracle import LEAST, OF_OWN
from tests.tiny import build, checkpoint, fed, token_ids

SEQ2SEQ = "AutoModelForSeq2SeqLM"
HIDDEN, DECODED = OutputKind.HIDDEN, OutputKind.DECODER_HIDDEN


@pytest.mark.parametrize(
    ("name", "head", "outputs"),
    [
        ("bart", "AutoModel", [(DECODED, TARGET), (HIDDEN, SEQUENCE), (OutputKind.EMBEDDING, SEQUENCE)]),
        ("t5", SEQ2SEQ, [(OutputKind.VOCABULARY_LOGITS, TARGET), (HIDDEN, SEQUENCE), (OutputKind.EMBEDDING, SEQUENCE)]),
    ],
)
def test_both_halves_have_inputs_and_outputs_of_their_own(traced, name, head, outputs):
    program = traced(name, head).program
    assert [(given.name, given.axes) for given in program.signature.inputs] == [
        ("input_ids", (BATCH, SEQUENCE)),
        ("attention_mask", (BATCH, SEQUENCE)),
        ("decoder_input_ids", (BATCH, TARGET)),
        ("decoder_attention_mask", (BATCH, TARGET)),
    ]
    assert [(output.kind, output.along) for output in program.signature.outputs] == outputs
    assert program.signature.head is (Head.NONE if head == "AutoModel" else Head.SEQ2SEQ_LM)


@pytest.mark.parametrize(("name", "text", "target"), [("bart", 64, 64), ("t5", None, None)])
def test_limits_of_both_halves(traced, name, text, target):
    program = traced(name, SEQ2SEQ if name == "t5" else "AutoModel").program
    assert (program.facts.limits.length, program.facts.target_limits.length) == (text, target)


def test_an_encoder_may_read_arrays(traced):
    """Whisper: the decoder's positions are rows of a weight, and it is probed on a target of its own length."""
    program = traced("whisper").program
    assert program.signature.input_names == ("input_features", "decoder_input_ids", "decoder_attention_mask")
    assert [(output.kind, output.along) for output in program.signature.outputs[:2]] == [
        (DECODED, TARGET),
        (HIDDEN, SEQUENCE),
    ]
    assert program.facts.target_limits.length == 32


def padded(given, axis, more):
    """The inputs of one half padded on the right with another token."""
    names = [name for name in given if name.startswith("decoder_") is (axis is TARGET)]
    longer = {n: nn.functional.pad(given[n], (0, more), value=0 if "mask" in n else 7) for n in names}
    return given | longer


def worst(got, model, ids, target):
    """The largest difference of encoder rows and logits from the eager model on each text alone."""
    differ = []
    for row in range(len(ids)):
        with torch.no_grad():
            output = model(input_ids=ids[row : row + 1], decoder_input_ids=target[row : row + 1], use_cache=False)
        expected = {"hidden": output.encoder_last_hidden_state, "vocabulary_logits": output.logits}
        differ += [float((got[kind][row, : rows.shape[1]] - rows[0]).abs().max()) for kind, rows in expected.items()]
    return max(differ)


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize(("batch", "length", "target"), [(1, 1, 1), (1, 7, 3), (3, 11, 5), (2, 64, 9)])
def test_equals_the_eager_model_alone(traced, tiny, name, batch, length, target):
    """Contract D1: encoder rows and vocabulary logits, unpadded and with either half padded."""
    program, model = traced(name, SEQ2SEQ).program, tiny(name, SEQ2SEQ)
    ids, decoded = token_ids(length, batch), token_ids(target, batch, seed=1)
    given = fed(program, ids, target=decoded)
    runs = [given] if length == 64 else [given, padded(given, SEQUENCE, 3), padded(given, TARGET, 2)]
    exact = worst_of_eager(model, ids, decoded)
    for inputs in runs:
        outputs, _ = graphs.run(program.graph, inputs)
        got = {output.name: value for output, value in zip(program.signature.outputs, outputs, strict=True)}
        assert worst(got, model, ids, decoded) <= max(LEAST, OF_OWN * exact)


def worst_of_eager(model, ids, decoded):
    """The eager model's own distance from float64."""
    double = copy.deepcopy(model).double()
    with torch.no_grad():
        one, other = (m(input_ids=ids, decoder_input_ids=decoded, use_cache=False) for m in (model, double))
    return float((one.logits - other.logits).abs().max())


@pytest.mark.parametrize("task", [Task.EMBED, Task.TOKEN_EMBED])
def test_the_encoders_tasks_leave_the_decoder_out(analysed, task):
    program = prepare(analysed("bart", SEQ2SEQ), task)
    assert program.signature.input_names == graphs.inputs_of(program.graph) == ("input_ids", "attention_mask")
    assert [spec.type for spec in program.nodes.attention] == [AttentionType.ENCODER] * 2
    assert not any("decoder" in name for name in program.graph.state_dict)
    ids = token_ids(6, batch=2)
    # The cut program is whole: torch's own call of it takes the two inputs by name.
    called = program.graph.module(check_guards=False)(**fed(program, ids))
    (run,), _ = graphs.run(program.graph, fed(program, ids))
    assert torch.equal(called[0], run)
    again = program.graph.run_decompositions({})
    assert graphs.inputs_of(again) == program.signature.input_names


def test_the_target_stays_where_it_is_read(analysed):
    program = run_passes(analysed("bart", SEQ2SEQ), [SelectTask(Task.GENERATE)])
    assert program.signature.input_names == graphs.inputs_of(program.graph)
    assert len(program.signature.input_names) == 4


def test_a_decoder_alone_has_no_cross_attention(traced, analysed):
    program = analysed("bart", "BartForCausalLM")
    assert program.signature.head is Head.CAUSAL_LM
    assert [spec.type for spec in program.nodes.attention] == [AttentionType.DECODER] * 2
    assert program.signature.input_names == ("input_ids", "attention_mask")


class Wrapper(nn.Module):
    """Somebody's module around a model, which passes everything on."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


def test_a_wrapper_answers_as_the_model_in_it(analysed):
    """Contract B7."""
    made = trace(checkpoint(Wrapper(build("bart"))))
    program, inner = analyse(made.program, made.behaviour), analysed("bart")
    assert program.as_text() == inner.as_text()


class Hiding(Wrapper):
    """The same, but what it returns does not say which rows are the encoder's."""

    def forward(self, input_ids, attention_mask, decoder_input_ids):
        encoded = self.inner.encoder(input_ids, attention_mask)[0]
        return SimpleNamespace(
            last_hidden_state=self.inner.decoder(decoder_input_ids, None, encoded, attention_mask)[0]
        )


def test_an_encoder_that_cannot_be_told_is_refused():
    with pytest.raises(TraceError, match="the encoder cannot be told from the decoder"):
        trace(checkpoint(Hiding(build("bart"))))
