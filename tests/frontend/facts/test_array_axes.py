"""Models that read arrays: what they are fed is found by trying, and typed like anything else."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import ModelOutput

from headrace import graphs
from headrace.errors import TraceError
from headrace.frontend.eager.signature import CallSignature
from headrace.frontend.load.checkpoint import load
from headrace.frontend.load.multimodal import failure
from headrace.frontend.trace import trace
from headrace.ir import Axis, Head, OutputKind, PoolKind, State, Verdict
from headrace.lowering.pipeline import analyse
from tests.tiny import build, checkpoint

IMAGE = (Axis("batch"), Axis("channels", 3), Axis("height", 24), Axis("width", 24))


def traced_of(model, **fields):
    return trace(checkpoint(model, **fields)).program


@pytest.mark.parametrize("name", ["vit", "dinov2", "deit", "beit", "clip-vision"])
def test_images_are_of_the_size_that_the_config_names(traced, name):
    program = traced(name).program
    (given,) = program.signature.inputs
    assert (given.name, given.dtype, given.axes) == ("pixel_values", "float32", IMAGE)
    assert program.signature.vocabulary == 0
    # 9 patches, and what the model puts before them.
    assert program.signature.rows == {"deit": 11}.get(name, 10)


def test_a_processors_size_comes_before_the_configs(tmp_path):
    """DINOv2 interpolates its positions: it was trained at 518 pixels and is fed 224 by its processor."""
    build("dinov2").save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"crop_size": {"height": 16, "width": 32}}))
    program = trace(load(tmp_path, dtype=torch.float32)).program
    assert [axis.size for axis in program.signature.inputs[0].axes] == [None, 3, 16, 32]


def test_a_size_that_the_model_does_not_take_is_passed_over():
    """The processor's size is wrong for a ViT, whose position table has one size; the config's is right."""
    assert traced_of(build("vit"), processor={"size": {"height": 32, "width": 32}}).signature.inputs[0].axes == IMAGE


def test_no_size_that_fits_is_refused_with_what_was_tried():
    model = build("vit")
    model.config.image_size = 40
    with pytest.raises(TraceError, match=r"takes it in no shape.*channels 3, height 40, width 40.*image_size"):
        traced_of(model)


HEADS = [
    ("vit", "AutoModelForImageClassification", Head.SEQUENCE),
    ("beit", "AutoModelForImageClassification", Head.SEQUENCE),
    ("clip", "CLIPForImageClassification", Head.SEQUENCE),
    ("siglip", "SiglipForImageClassification", Head.SEQUENCE),
    ("whisper", "WhisperForAudioClassification", Head.SEQUENCE),
    ("clip-vision", "CLIPVisionModelWithProjection", Head.NONE),
    ("clip-text", "CLIPTextModelWithProjection", Head.NONE),
]


@pytest.mark.parametrize(("name", "head", "kind"), HEADS)
def test_heads_by_the_shape_of_what_they_return(traced, name, head, kind):
    program = traced(name, head).program
    assert program.signature.head is kind
    assert bool(program.facts.labels) == (kind is Head.SEQUENCE)


@pytest.mark.parametrize("tower", ["Vision", "Text"])
def test_a_projection_is_the_embedding(traced, tower):
    """It was what such a model was made for: the rows' mean would be another model."""
    program = traced(f"clip-{tower.lower()}", f"CLIP{tower}ModelWithProjection", projection_dim=16).program
    assert program.facts.pooling.kinds == ()
    assert not program.facts.pooling.assumed
    assert program.signature.output(OutputKind.EMBEDDING).width == 16


def test_a_pooler_without_weights_is_not_taken():
    """Many ViT checkpoints lack theirs: its vector would be random."""
    taken = traced_of(build("vit"))
    assert (taken.facts.pooling.kinds, taken.facts.pooling.assumed) == ((), True)
    left = traced_of(build("vit"), missing=("pooler.dense.weight", "pooler.dense.bias"))
    assert left.facts.pooling.kinds == (PoolKind.MEAN,)


def test_ones_own_vector_can_be_asked_for_and_refused(tiny):
    asked = trace(checkpoint(tiny("siglip-text", "SiglipTextModel")), ()).program
    assert asked.facts.pooling.kinds == ()
    with pytest.raises(TraceError, match=r"this one returns none\. Choose from cls"):
        trace(checkpoint(tiny("distilbert")), ())


class Scored(nn.Module):
    """Returns something else beside its rows."""

    def __init__(self):
        super().__init__()
        self.inner = build("vit")

    def forward(self, pixel_values):
        rows = self.inner(pixel_values).last_hidden_state
        return ModelOutput(last_hidden_state=rows, saliency=rows.sum(-1))


def test_what_a_headless_model_returns_besides_is_not_lost():
    program = traced_of(Scored())
    assert program.signature.head is Head.OTHER
    assert "saliency" in program.signature.head_note


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_two_towers_are_refused_with_the_classes_of_each(tiny, name):
    kind = {"clip": "CLIP", "siglip": "Siglip"}[name]
    with pytest.raises(TraceError, match=f"input_ids and pixel_values together.*{kind}TextModel.*{kind}VisionModel"):
        trace(checkpoint(tiny(name)))


def test_the_encoder_of_an_encoder_decoder_of_arrays(tiny):
    """What cannot run as a whole is told of it; see test_encoder_decoder for the whole."""
    model = tiny("whisper")
    said = failure(model, model.config, CallSignature(("input_ids",), ()), "tokens", ValueError())
    assert "input_features and decoder_input_ids together" in said
    assert "get_encoder()" in said
    program = trace(checkpoint(model.get_encoder())).program
    assert [(axis.name, axis.size) for axis in program.signature.inputs[0].axes[1:]] == [
        ("mel bins", 8),
        ("frames", 20),
    ]


def test_a_forward_that_reads_nothing_known_is_refused():
    class Odd(nn.Module):
        def forward(self, points):
            return points

    with pytest.raises(TraceError, match="input_ids or pixel_values, input_values, input_features"):
        trace(checkpoint(Odd()))


class Wrapped(nn.Module):
    """Anybody's module around a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        return self.model(**inputs)


@pytest.mark.parametrize("wrap", [Wrapped, nn.Sequential], ids=["keywords", "sequential"])
def test_a_wrapper_is_typed_as_the_model_inside(analysed, wrap):
    """Contract B7."""
    made = trace(checkpoint(wrap(build("vit"))))
    inner = analysed("vit").as_text()
    assert analyse(made.program, made.behaviour).as_text() == inner


def test_samples_are_counted_by_the_rows_that_they_make(traced):
    """40 make the first row and 20 one more: kernels of 10, 3, 3 at strides of 5, 2, 2."""
    program = traced("wav2vec2").program
    assert program.signature.inputs[0].axes == (Axis("batch"), Axis("samples", None, 40, 20, least=60))
    assert program.signature.rows is None
    (samples,) = program.signature.inputs[0].axes[1:]
    for rows in (2, 3, 9):
        for size in (samples.at(rows), samples.at(rows) + 19):
            assert samples.rows(size) == rows
            ran, _ = graphs.run(program.graph, {"input_values": torch.zeros(1, size)})
            assert ran[0].shape[1] == rows


def test_convolutions_before_the_attention_leave_an_encoder_one(analysed):
    """They are recurrent nodes, but a bidirectional attention beside them decides first (contract B3)."""
    program = analysed("wav2vec2")
    assert len(program.nodes.recurrent) == 4
    assert (program.decision.route.state, program.decision.route.rule) == (State.ENCODER_ONLY, "B3")
    assert {spec.verdict for spec in program.nodes.attention} == {Verdict.PROVEN}


def test_a_speech_recogniser_is_refused_in_words(traced):
    program = traced("wav2vec2", "AutoModelForCTC").program
    assert program.signature.head is Head.OTHER
    assert "logits over a vocabulary for every row" in program.signature.head_note
