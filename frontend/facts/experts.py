"""Routed experts, told from what they do to tokens: those that chose one expert are multiplied together."""

from __future__ import annotations

from torch import Tensor, fx
from torch.export import ExportedProgram

from headrace import graphs
from headrace.compat.torch import GROUPED, operator_name

CHOICES = frozenset({"topk", "sort", "argsort"})
TAKING = frozenset({"index", "index_select"})


def regroups_tokens(exported: ExportedProgram) -> bool:
    """Whether rows of the text are put together by what was chosen for each, so that a token's neighbours there vary.

    A choice alone regroups nothing: it may take weights, or leave all but the highest values out.
    """
    of_text, chosen = set(graphs.inputs_of(exported)), set[str]()
    for node in exported.graph.nodes:
        name, given = operator_name(node.target, ""), {one.name for one in node.all_input_nodes}
        if name in GROUPED or (name in TAKING and _takes_rows(node, of_text, chosen)):
            return True
        if of_text & given:
            of_text.add(node.name)
        if name in CHOICES or (chosen & given and _counts(node)):
            chosen.add(node.name)
    return False


def _takes_rows(node: fx.Node, of_text: set[str], chosen: set[str]) -> bool:
    rows, *indices = node.all_input_nodes
    return rows.name in of_text and not _counts(rows) and any(index.name in chosen for index in indices)


def _counts(node: fx.Node) -> bool:
    """Whether the value is of whole numbers, as indices are."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and not value.is_floating_point()
