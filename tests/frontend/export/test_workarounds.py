"""A text shifted to the right exports at any length, and other writes stay as they are."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from headrace.frontend.export.workarounds import WholeRows, any_length


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
