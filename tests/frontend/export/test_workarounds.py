"""A text shifted to the right exports at any length, and other writes stay as they are."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from headrace.frontend.export.workarounds import FlatRows, WholeRows, any_length
from headrace.frontend.trace import trace
from tests.coverage.configs import tiny_model
from tests.tiny import checkpoint


class Shift(nn.Module):
    """What BART's and T5's heads do to a text to make their decoder's target."""

    def __init__(self, ellipsis):
        super().__init__()
        self.rows = ... if ellipsis else slice(None)

    def forward(self, input_ids):
        shifted = input_ids.new_zeros(input_ids.shape)
        shifted[self.rows, 1:] = input_ids[self.rows, :-1].clone()
        shifted[self.rows, 0] = 2
        return shifted


@pytest.mark.parametrize("ellipsis", [False, True])
def test_a_shifted_text_exports_at_any_length(ellipsis):
    module, ids = Shift(ellipsis), torch.arange(14).reshape(2, 7)
    shape = {0: Dim("batch", min=1), 1: Dim("sequence", min=1)}
    options = {"strict": False, "prefer_deferred_runtime_asserts_over_guards": True}
    with any_length():
        program = export(module, (ids,), dynamic_shapes=(shape,), **options).run_decompositions({})
    assert not any(node.target is torch.ops.aten._assert_scalar.default for node in program.graph.nodes)
    for length in (1, 2, 3, 9):
        ids = torch.arange(3 * length).reshape(3, length)
        assert torch.equal(program.module(check_guards=False)(ids), module(ids))


@pytest.mark.parametrize(
    "write",
    [
        lambda rows: rows.__setitem__((slice(None), slice(2, None)), torch.ones(2, 3)),
        lambda rows: rows.__setitem__((slice(None), slice(2, 4)), torch.ones(2, 2)),
        lambda rows: rows.__setitem__((slice(None), slice(1, None, 2)), torch.ones(2, 2)),
        lambda rows: rows.__setitem__((slice(1, None), slice(1, None)), torch.ones(1, 4)),
        lambda rows: rows.__setitem__((slice(None), slice(1, None)), torch.ones(1, 4)),
        lambda rows: rows.__setitem__((slice(None), slice(1, None)), torch.tensor(3, dtype=torch.int64)),
        lambda rows: rows.__setitem__((slice(None), slice(1, None)), torch.ones(2, 1)),
        lambda rows: rows.__setitem__((0, slice(1, None)), torch.ones(4)),
        lambda rows: rows.__setitem__((slice(None), 0), 7),
    ],
)
def test_a_write_means_what_it_did(write):
    plain, under = torch.zeros(2, 5), torch.zeros(2, 5)
    write(plain)
    with WholeRows():
        write(under)
    assert torch.equal(plain, under)


def test_a_shape_means_what_it_did():
    rows = torch.arange(24).reshape(2, 3, 4)[:, 1:]
    with FlatRows():
        assert torch.equal(rows.reshape(2, 4, -1), torch.reshape(rows, (2, 4, 2)))
        assert rows.reshape((4, 4)).tolist() == rows.flatten(0, 1).tolist()
    assert rows.tolist() == [[[4, 5, 6, 7], [8, 9, 10, 11]], [[16, 17, 18, 19], [20, 21, 22, 23]]]


def test_relative_shifts_and_memories_of_the_last_tokens_export_at_any_length():
    """XLNet's: scores are shifted in another shape, and what would be remembered is at most 512 tokens."""
    program = trace(checkpoint(tiny_model("xlnet", "AutoModel"))).program
    assert program.facts.limits.length is None
    (sequence,) = {axis for one in program.signature.inputs for axis in one.axes[1:]}
    assert sequence.least == 1
