"""Where positions come from, their offset, and the longest usable length: found by behaviour, and true at the edge."""

import pytest
import torch
from torch import nn

from headrace.errors import TraceError
from headrace.frontend.trace import trace
from headrace.ir import Positions, PositionSource
from tests.tiny import build, checkpoint, rows_of, token_ids

INPUT, GRAPH = PositionSource.INPUT, PositionSource.GRAPH

# Name, configuration, offset, rows of the table, usable length.
MODELS = [
    ("bert", {}, 0, 64, 64),
    ("roberta", {}, 2, 64, 62),
    ("xlm-roberta", {}, 2, 64, 62),
    # Case P10.
    ("roberta", {"pad_token_id": 3, "max_position_embeddings": 14}, 4, 14, 10),
    # Case P9: 514 rows, the first 2 of them for padding.
    ("xlm-roberta", {"max_position_embeddings": 514, "num_hidden_layers": 1}, 2, 514, 512),
    ("distilbert", {}, 0, 64, 64),
    ("gpt2", {}, 0, 64, 64),
    # 66 rows, of which the model skips 2 by itself.
    ("opt", {}, 0, 64, 64),
    ("clip-text", {}, 0, 64, 64),
    ("modernbert", {}, 0, None, 64),
    ("qwen2", {}, 0, None, 64),
    ("gemma3", {}, 0, None, 64),
]
IDS = [f"{name}-{config.get('max_position_embeddings', '')}" for name, config, *_ in MODELS]


@pytest.mark.parametrize(("name", "config", "offset", "table", "length"), MODELS, ids=IDS)
def test_positions_and_limits(traced, name, config, offset, table, length):
    program = traced(name, **config).program
    assert program.facts.positions == Positions(INPUT, offset, table)
    assert program.facts.limits.length == length
    assert "position_ids" in program.signature.input_names


@pytest.mark.parametrize(
    ("name", "config", "why"),
    [
        ("bert", {}, "a position table of 64 rows"),
        ("roberta", {}, "a position table of 64 rows, the first 2 of which are reserved"),
        ("qwen2", {}, "max_position_embeddings of the config"),
    ],
)
def test_a_limit_says_what_sets_it(traced, name, config, why):
    assert traced(name, **config).program.facts.limits.why == why


LEARNED = [case for case in MODELS if case[3] is not None]


@pytest.mark.parametrize(
    ("name", "config", "offset", "table", "length"), LEARNED, ids=[i for i, c in zip(IDS, MODELS, strict=True) if c[3]]
)
def test_the_limit_is_the_last_length_that_works(traced, tiny, name, config, offset, table, length):
    """At the limit the graph equals the eager model; one token more, and the eager model has no row for it."""
    program, model = traced(name, **config).program, tiny(name, **config)
    ids = token_ids(length).clamp(min=5)  # no padding id among them, from which RoBERTa counts its positions
    with torch.no_grad():
        expected = model(ids).last_hidden_state
        assert (rows_of(program, ids) - expected).abs().max() <= 1e-4
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            model(token_ids(length + 1))


class Wrapper(nn.Module):
    """A model whose positions nobody can give."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids, attention_mask):
        return self.inner(input_ids=input_ids, attention_mask=attention_mask)


@pytest.mark.parametrize(
    ("name", "config", "length"),
    [
        ("bert", {}, 64),
        ("roberta", {"pad_token_id": 3, "max_position_embeddings": 14}, 10),
        ("opt", {}, 64),
        ("qwen2", {}, 64),
    ],
)
def test_positions_that_the_graph_makes(tiny, name, config, length):
    """The usable length is the same; token types' two rows are no position table."""
    program = trace(checkpoint(Wrapper(tiny(name, **config)))).program
    assert program.facts.positions.source is GRAPH
    assert program.facts.positions.offset == 0
    assert program.facts.limits.length == length
    assert program.signature.input_names == ("input_ids", "attention_mask")
    ids = token_ids(length)
    with torch.no_grad():
        expected = tiny(name, **config)(ids).last_hidden_state
    assert (rows_of(program, ids) - expected).abs().max() <= 1e-4


def test_positions_that_a_wrapper_swallows_are_the_graphs(tiny):
    class Swallows(Wrapper):
        def forward(self, input_ids, attention_mask=None, **ignored):
            return self.inner(input_ids=input_ids, attention_mask=attention_mask)

    program = trace(checkpoint(Swallows(tiny("roberta")))).program
    assert program.facts.positions == Positions(GRAPH, 0, 62)
    assert program.facts.limits.length == 62


def test_positions_start_past_the_padding_id_whatever_it_is(traced):
    for pad in (0, 5):
        assert traced("roberta", pad_token_id=pad, bos_token_id=2).program.facts.positions.offset == pad + 1


def test_positions_that_no_offset_explains_are_refused():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build("bert")

        def forward(self, input_ids, attention_mask=None, position_ids=None):
            if position_ids is None:
                position_ids = torch.arange(input_ids.shape[1]).flip(0)[None]
            return self.inner(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids)

    with pytest.raises(TraceError, match="no offset of 0, 1, 2 or past the padding id"):
        trace(checkpoint(Backwards()))


@pytest.mark.parametrize(("name", "has"), [("bert", True), ("roberta", True), ("gpt2", False), ("distilbert", False)])
def test_token_types_are_fed_where_zeros_change_nothing(traced, name, has):
    """GPT-2's forward takes them too, and adds the row of token 0 for a zero."""
    assert ("token_type_ids" in traced(name).program.signature.input_names) is has


def test_gpt2_without_token_types_equals_the_eager_model(traced, tiny):
    ids = token_ids(9)
    with torch.no_grad():
        plain = tiny("gpt2")(ids).last_hidden_state
        with_zeros = tiny("gpt2")(ids, token_type_ids=ids * 0).last_hidden_state
    assert (plain - with_zeros).abs().max() > 1e-2
    assert (rows_of(traced("gpt2").program, ids) - plain).abs().max() <= 1e-5
