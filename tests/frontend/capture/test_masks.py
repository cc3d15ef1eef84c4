"""The kind of a mask is read from the closure that transformers makes: every one it has, and combinations of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import masking_utils as hf
from transformers.models.gemma3.modeling_gemma3 import _bidirectional_window_overlay

from headrace.frontend.capture.masks import read_mask
from headrace.ir import MaskKind, Window
from headrace.ops.attention import materialise_mask

CAUSAL, BIDIRECTIONAL, OPAQUE = MaskKind.CAUSAL, MaskKind.BIDIRECTIONAL, MaskKind.OPAQUE
CHUNKS_FROM_0 = torch.zeros(1, dtype=torch.long)
windows = st.integers(1, 5000)


def always(*_):
    return torch.tensor(True)


@pytest.mark.parametrize(
    ("closure", "kind", "window"),
    [
        (hf.causal_mask_function, CAUSAL, Window(-1, 0)),
        (hf.bidirectional_mask_function, BIDIRECTIONAL, Window()),
        (always, BIDIRECTIONAL, Window()),
        (hf.or_masks(hf.causal_mask_function, always), BIDIRECTIONAL, Window()),
        (hf.and_masks(hf.causal_mask_function, always), CAUSAL, Window(-1, 0)),
        (hf.and_masks(hf.bidirectional_mask_function, hf.causal_mask_function), CAUSAL, Window(-1, 0)),
        (hf.or_masks(hf.bidirectional_mask_function, hf.causal_mask_function), BIDIRECTIONAL, Window()),
        (hf.add_offsets_to_mask_function(hf.causal_mask_function, 7, 7), CAUSAL, Window(-1, 0)),
        # Sees itself and what comes after; no causal mask, whatever it is called.
        (lambda b, h, q, k: k >= q, BIDIRECTIONAL, Window(0, -1)),
        (lambda b, h, q, k: k == q, CAUSAL, Window(0, 0)),
        (lambda b, h, q, k: (k <= q + 3) & (k > q - 6), BIDIRECTIONAL, Window(5, 3)),
    ],
)
def test_kind(closure, kind, window):
    assert read_mask(closure, None) == (kind, window)


@given(size=windows, told=st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_causal_window_counts_the_query(size, told):
    """Transformers' convention: the last `size` tokens, the query among them. Told of it or not, it is found."""
    hint = size if told else None
    assert read_mask(hf.sliding_window_causal_mask_function(size), hint) == (CAUSAL, Window(size - 1, 0))


@given(size=windows, told=st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_bidirectional_window_does_not(size, told):
    hint = size if told else None
    closure = hf.sliding_window_bidirectional_mask_function(size)
    assert read_mask(closure, hint) == (BIDIRECTIONAL, Window(size, size))


@given(size=st.integers(2, 5000))
@settings(max_examples=25, deadline=None)
def test_gemma3s_window_is_exclusive(size):
    """`|i-j| < size` joined to a causal window of the same size."""
    closure = hf.or_masks(hf.sliding_window_causal_mask_function(size), _bidirectional_window_overlay(size))
    assert read_mask(closure, size) == (BIDIRECTIONAL, Window(size - 1, size - 1))


@given(left=st.integers(0, 300), right=st.integers(1, 300))
@settings(max_examples=25, deadline=None)
def test_a_lopsided_window(left, right):
    assert read_mask(lambda b, h, q, k: (k >= q - left) & (k <= q + right), None) == (
        BIDIRECTIONAL,
        Window(left, right),
    )


@given(size=st.integers(1, 40), causal=st.booleans(), length=st.integers(1, 50))
@settings(max_examples=25, deadline=None)
def test_what_is_read_means_what_the_closure_says(size, causal, length):
    """The mask node of that kind and window is the closure, element by element."""
    make = hf.sliding_window_causal_mask_function if causal else hf.sliding_window_bidirectional_mask_function
    kind, window = read_mask(make(size), size)
    rows, columns = torch.arange(length)[:, None], torch.arange(length)[None]
    expected = make(size)(torch.tensor(0), torch.tensor(0), rows, columns)
    made = materialise_mask(None, 1, length, length, 0, 0, kind, window, torch.device("cpu"))
    assert torch.equal(made[0, 0], expected.expand(length, length))


@given(size=st.integers(2, 3000), told=st.booleans())
@settings(max_examples=25, deadline=None)
def test_chunks_are_counted_from_each_rows_first_position(size, told):
    """Without the tensor that says where a row begins, they are counted from its padding: not the text alone."""
    hint = size if told else None
    read = read_mask(hf.chunked_causal_mask_function(size, CHUNKS_FROM_0), hint)
    assert read == (MaskKind.CHUNKED, Window(size - 1, 0))
    bare = hf.and_masks(lambda b, h, q, k: k // size == q // size, hf.causal_mask_function)
    assert read_mask(bare, hint)[0] is OPAQUE


CAPTURED = torch.ones(1, 200_000, dtype=torch.long)
CAPTURING = {
    "padding": hf.padding_mask_function(CAPTURED.bool()),
    "packed": hf.packed_sequence_mask_function(CAPTURED),
    "blockwise": hf.blockwise_overlay(CAPTURED),
    "chunked and not causal": hf.chunked_overlay(8, CHUNKS_FROM_0),
    "windows within chunks": hf.and_masks(
        hf.chunked_causal_mask_function(8, CHUNKS_FROM_0), hf.sliding_window_causal_mask_function(3)
    ),
    "and": hf.and_masks(hf.causal_mask_function, hf.packed_sequence_mask_function(CAPTURED)),
    "or": hf.or_masks(hf.causal_mask_function, hf.blockwise_overlay(CAPTURED)),
    "offset": hf.add_offsets_to_mask_function(hf.padding_mask_function(CAPTURED.bool()), 1, 1),
}
if (remap := getattr(hf, "remap_positions_for_packed_sequence", None)) is not None:  # newer than 5.17
    CAPTURING["remapped"] = remap(hf.causal_mask_function, torch.arange(200_000)[None])


@pytest.mark.parametrize("closure", CAPTURING.values(), ids=CAPTURING)
def test_captured_tensors_are_opaque(closure):
    """What depends on data is no relation of two positions, also where it looks like one on this data."""
    assert read_mask(closure, None) == (OPAQUE, Window())


@pytest.mark.parametrize(
    "closure",
    [
        lambda b, h, q, k: (q - k) % 2 == 0,  # dilated
        lambda b, h, q, k: (k <= q) & ((q - k) != 3),  # a hole
        lambda b, h, q, k: k < q,  # does not see itself
        lambda b, h, q, k: k < 4,  # a prefix
        lambda b, h, q, k: (k <= q) | (k < 4),  # causal with sinks at the start of the text
        lambda b, h, q, k: (k <= q) & (q < 70_000),
        lambda b, h, q, k: k <= q // 2,
        lambda b, h, q, k: (k <= q) & ((q - k < 8) | (q - k > 3000)),  # a hole further out than one looks
    ],
    ids="dilated hole blind prefix sinks elsewhere halved far-hole".split(),
)
def test_anything_else_is_opaque(closure):
    assert read_mask(closure, None) == (OPAQUE, Window())


@pytest.mark.parametrize(
    "closure",
    [
        lambda b, h, q, k: (k <= q) | (h % 2 == 1),
        lambda b, h, q, k: (k <= q) | (b > 0),
        lambda b, h, q, k: k <= q + h,
    ],
    ids="heads batch shifted".split(),
)
def test_what_differs_by_head_or_row_is_opaque(closure):
    """One mask node stands for all heads and rows."""
    assert read_mask(closure, None) == (OPAQUE, Window())


def test_is_read_outside_the_trace():
    """Evaluated while a model is traced, it leaves nothing in the graph."""

    class Model(torch.nn.Module):
        def forward(self, x):
            kind, _ = read_mask(hf.sliding_window_causal_mask_function(4), 4)
            return x + (1 if kind is CAUSAL else 2)

    exported = torch.export.export(Model(), (torch.zeros(3),), strict=False)
    assert [node.op for node in exported.graph.nodes] == ["placeholder", "call_function", "output"]
    assert torch.equal(exported.module()(torch.zeros(3)), torch.ones(3))
