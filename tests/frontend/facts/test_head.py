"""The choice of rows is found by behaviour and cut out of sequence heads; the rest is the model on each text alone."""

import pytest
import torch
from torch import nn

from headrace.errors import TraceError
from headrace.frontend.trace import trace
from headrace.ir import Head, OutputKind, PoolKind, Role
from headrace.ops.attention import POOL
from tests.tiny import build, checkpoint, outputs_of, token_ids

SEQUENCE = "AutoModelForSequenceClassification"
# Name, configuration, the rows that the head takes.
HEADS = [
    ("bert", {"num_labels": 3}, PoolKind.CLS),
    ("roberta", {"num_labels": 3}, PoolKind.CLS),
    ("xlm-roberta", {"num_labels": 3}, PoolKind.CLS),
    ("electra", {"num_labels": 3}, PoolKind.CLS),
    ("distilbert", {"num_labels": 3}, PoolKind.CLS),
    ("albert", {"num_labels": 3}, PoolKind.CLS),
    ("modernbert", {"num_labels": 3}, PoolKind.CLS),
    ("modernbert-mean", {"num_labels": 3}, PoolKind.MEAN),
    ("llama", {"num_labels": 1}, PoolKind.LAST),
    ("qwen3", {"num_labels": 2}, PoolKind.LAST),
    ("gpt2", {"num_labels": 3}, PoolKind.LAST),
    ("opt", {"num_labels": 3}, PoolKind.LAST),
]
IDS = [f"{name}-{config['num_labels']}" for name, config, _ in HEADS]
LENGTHS = (5, 1, 9)


def logits(program, ids, mask=None):
    return outputs_of(program, ids, mask)["sequence_logits"]


def padded(texts, side, filler):
    """Texts in one batch [n, longest] with their mask."""
    longest = max(len(text) for text in texts)
    ids = torch.full((len(texts), longest), filler)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        where = slice(longest - len(text), longest) if side == "left" else slice(0, len(text))
        ids[row, where], mask[row, where] = text, 1
    return ids, mask


def alone(model, text):
    """The oracle: the eager model on one text, unpadded."""
    with torch.no_grad():
        return model(input_ids=text[None]).logits[0]


@pytest.mark.parametrize(("name", "config", "rows"), HEADS, ids=IDS)
def test_the_choice_of_rows_is_found(traced, name, config, rows):
    program = traced(name, SEQUENCE, **config).program
    assert program.signature.head is Head.SEQUENCE
    assert program.signature.head_rows is rows
    assert program.signature.output(OutputKind.SEQUENCE_LOGITS).width == config["num_labels"]
    pools = [node for node in program.graph.graph.nodes if node.target is POOL]
    assert [node.args[2] for node in pools] == [rows.value]
    assert {node.args[1].name for node in pools} == {"attention_mask"}


@pytest.mark.parametrize(("name", "config", "rows"), HEADS, ids=IDS)
def test_equals_the_eager_model_on_each_text_alone(traced, tiny, name, config, rows):
    """Alone, and in a batch with padding on either side, whatever id the padding holds."""
    program, model = traced(name, SEQUENCE, **config).program, tiny(name, SEQUENCE, **config)
    texts = [token_ids(length, seed=length)[0] for length in LENGTHS]
    expected = torch.stack([alone(model, text) for text in texts])
    single = torch.cat([logits(program, text[None]) for text in texts])
    assert (single - expected).abs().max() <= 1e-5
    for side in ("right", "left"):
        for filler in (model.config.pad_token_id, 7):
            ids, mask = padded(texts, side, filler)
            assert (logits(program, ids, mask) - expected).abs().max() <= 1e-5, (side, filler)


LLAMA = {"num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "num_hidden_layers": 1}


@pytest.mark.parametrize("eos", [2, 0])
def test_padding_side_is_no_matter(traced, tiny, eos):
    """Case P3, also where pad id and end-of-text id are one."""
    program = traced("llama", SEQUENCE, **LLAMA, eos_token_id=eos).program
    left = logits(program, torch.tensor([[0, 0, 5, 6]]), torch.tensor([[0, 0, 1, 1]]))
    right = logits(program, torch.tensor([[5, 6, 0, 0]]), torch.tensor([[1, 1, 0, 0]]))
    expected = alone(tiny("llama", SEQUENCE, **LLAMA, eos_token_id=eos), torch.tensor([5, 6]))
    assert (left - right).abs().max() <= 1e-5
    assert (left[0] - expected).abs().max() <= 1e-5


def test_the_mask_decides_where_the_text_ends_in_the_padding_id(traced, tiny):
    """Case P3: Hugging Face then picks the row before; the row that the mask ends at is right."""
    config = LLAMA | {"eos_token_id": 0}
    program, model = traced("llama", SEQUENCE, **config).program, tiny("llama", SEQUENCE, **config)
    text = torch.tensor([5, 6, 0])
    with torch.no_grad():
        rows = model.base_model(input_ids=text[None]).last_hidden_state[0]
        last, before = model.score(rows[2]), model.score(rows[1])
    assert (alone(model, text) - before).abs().max() <= 1e-5, "Hugging Face's own answer has changed"
    assert (last - before).abs().max() > 1e-2
    ids = torch.tensor([[5, 6, 0, 0], [0, 5, 6, 0]])
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
    assert (logits(program, text[None])[0] - last).abs().max() <= 1e-5
    assert (logits(program, ids, mask) - last).abs().max() <= 1e-5


def test_a_model_without_a_padding_id(tiny):
    """Hugging Face refuses a batch there; the choice of rows that needs the id is cut out."""
    model = build("llama", SEQUENCE, num_labels=3, pad_token_id=None, num_hidden_layers=1)
    program = trace(checkpoint(model)).program
    assert model.config.pad_token_id is None
    texts = [token_ids(4, seed=1)[0], token_ids(7, seed=2)[0]]
    ids, mask = padded(texts, "right", 0)
    expected = torch.stack([alone(model, text) for text in texts])
    assert (logits(program, ids, mask) - expected).abs().max() <= 1e-5


def test_a_loaded_model_without_a_padding_id(tmp_path):
    """Its own configuration is the one that counts, not a second one read from the folder."""
    from headrace.frontend.load.checkpoint import load

    model = build("llama", SEQUENCE, num_labels=3, pad_token_id=None, num_hidden_layers=1)
    model.save_pretrained(tmp_path)
    program = trace(load(tmp_path, dtype=torch.float32)).program
    assert program.signature.head_rows is PoolKind.LAST


class Headed(nn.Module):
    """The tiny BERT under a head of one's own, given as a function of the rows."""

    def __init__(self, choose, width):
        super().__init__()
        self.inner, self.choose = build("bert", num_hidden_layers=1), choose
        torch.manual_seed(0)
        self.score = nn.Linear(width, 3)

    def forward(self, input_ids, attention_mask=None, **inputs):
        rows = self.inner(input_ids=input_ids, attention_mask=attention_mask, **inputs).last_hidden_state
        return self.score(self.choose(rows, attention_mask))


def masked_mean(rows, mask):
    real = mask[:, :, None].to(rows.dtype)
    return (rows * real).sum(1) / real.sum(1)


OWN = {
    "first": (lambda rows, mask: rows[:, 0], 32, PoolKind.CLS),
    "last": (lambda rows, mask: rows[:, -1], 32, PoolKind.LAST),
    "plain mean": (lambda rows, mask: rows.mean(1), 32, PoolKind.MEAN),
    "masked mean": (masked_mean, 32, PoolKind.MEAN),
    "maximum": (lambda rows, mask: rows.amax(1), 32, PoolKind.MAX),
    "mean of a function": (lambda rows, mask: rows.tanh().mean(1), 32, PoolKind.MEAN),
    "function of the first": (lambda rows, mask: rows[:, 0].tanh(), 32, PoolKind.CLS),
}


@pytest.mark.parametrize("choice", OWN)
def test_a_head_of_ones_own(choice):
    choose, width, kind = OWN[choice]
    model = Headed(choose, width).eval()
    program = trace(checkpoint(model)).program
    assert (program.signature.head, program.signature.head_rows) == (Head.SEQUENCE, kind)
    texts = [token_ids(length, seed=length)[0] for length in LENGTHS]
    with torch.no_grad():
        expected = torch.cat([model(text[None], torch.ones_like(text)[None]) for text in texts])
    for side in ("right", "left"):
        assert (logits(program, *padded(texts, side, 7)) - expected).abs().max() <= 1e-5


UNKNOWN = {
    "second row": (lambda rows, mask: rows[:, 1], 32),
    "row before the last": (lambda rows, mask: rows[:, -2], 32),
    "sum": (lambda rows, mask: rows.sum(1), 32),
    "minimum": (lambda rows, mask: rows.amin(1), 32),
    "first and mean": (lambda rows, mask: torch.cat([rows[:, 0], rows.mean(1)], -1), 64),
}


@pytest.mark.parametrize("choice", UNKNOWN)
def test_a_choice_that_the_ir_does_not_know_is_left_as_it_is(choice):
    choose, width = UNKNOWN[choice]
    model = Headed(choose, width).eval()
    program = trace(checkpoint(model)).program
    assert (program.signature.head, program.signature.head_rows) == (Head.SEQUENCE, None)
    assert not any(node.target is POOL for node in program.graph.graph.nodes)
    ids = token_ids(6, batch=2)
    with torch.no_grad():
        expected = model(ids, torch.ones_like(ids))
    assert (logits(program, ids) - expected).abs().max() <= 1e-5


HEADLESS = [
    ("bert", "AutoModel", Head.NONE),
    ("bert", "AutoModelForMaskedLM", Head.MASKED_LM),
    ("distilbert", "AutoModelForMaskedLM", Head.MASKED_LM),
    ("qwen3", "AutoModelForTokenClassification", Head.TOKEN),
    ("gpt2", "AutoModelForCausalLM", Head.CAUSAL_LM),
    ("qwen2-mixed-window", "AutoModelForCausalLM", Head.CAUSAL_LM),
    ("bert", "AutoModelForQuestionAnswering", Head.SPAN),
    ("bert", "AutoModelForPreTraining", Head.OTHER),
]


@pytest.mark.parametrize(("name", "head", "kind"), HEADLESS, ids=lambda value: str(value))
def test_heads_by_the_shape_of_what_they_return(traced, name, head, kind):
    config = {"num_labels": 3} if kind is Head.TOKEN else {}
    program = traced(name, head, **config).program
    assert program.signature.head is kind
    assert program.signature.head_rows is None
    assert bool(program.signature.head_note) == (kind is Head.OTHER)


def test_a_head_that_nothing_serves_says_what_it_returns(traced):
    note = traced("bert", "AutoModelForPreTraining").program.signature.head_note
    assert note == "the model returns prediction_logits, seq_relationship_logits; served are logits and hidden rows"


@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_a_head_that_compares_choices_is_given_one_at_a_time(tiny, traced, name):
    """DistilBERT's takes positions apart otherwise, and so is given none; either one's choice of rows is cut out."""
    program, model = traced(name, "AutoModelForMultipleChoice").program, tiny(name, "AutoModelForMultipleChoice")
    assert (program.signature.head, program.signature.head_rows) == (Head.CHOICE, PoolKind.CLS)
    assert program.signature.has(Role.POSITIONS) == (name == "bert")
    ids = token_ids(6, batch=2)
    with torch.no_grad():
        expected = model(ids[None]).logits[0]
    assert (logits(program, ids)[:, 0] - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("labels", [96, 97])
def test_a_token_head_as_wide_as_the_vocabulary(labels):
    """96 ids and 96 labels: the weights say which of the two it is."""
    program = trace(
        checkpoint(build("bert", "AutoModelForTokenClassification", num_labels=labels, num_hidden_layers=1))
    ).program
    assert program.signature.head is Head.TOKEN
    assert len(program.facts.labels.names) == labels


def test_a_model_that_returns_no_rows_is_refused():
    class Blind(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(96, 8)

        def forward(self, input_ids):
            return self.table(input_ids).sum()

    with pytest.raises(TraceError, match="No module in the model returns hidden rows"):
        trace(checkpoint(Blind()))
