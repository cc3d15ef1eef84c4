"""Put linear layers of a cached program in terms of an operator that is fast at any number of rows. Needs no Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from headrace import graphs
from headrace.backends.kernels.linear_few import op  # noqa: F401 - registers the operator

LINEAR, LINEAR_ANY = torch.ops.aten.linear.default, torch.ops.headrace.linear_any.default


@dataclass(frozen=True)
class UseLinearAny:
    """Each layer whose weights lie dense, in its input's dtype."""

    name: str = "use-linear-any"

    def __call__(self, graph: fx.Graph) -> None:
        """Put one in the place of each."""
        for node in list(graph.nodes):
            if node.target is not LINEAR:
                continue
            x, weight, *bias = node.args
            values = [one.meta["val"] for one in (x, weight)]
            if values[1].is_contiguous() and values[0].dtype is values[1].dtype:
                with graph.inserting_before(node):
                    made = graphs.call(graph, LINEAR_ANY, (x, weight, bias[0] if bias else None))
                graphs.replace(node, made)
