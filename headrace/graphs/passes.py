"""What a backend does to a graph before a compiler sees it: a visible list of graph passes, each checked once it ran.

Passes of the lowering go from program to program, and so may change facts. These change how a graph spells what it
computes, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, fx

from headrace import debug
from headrace.errors import VerifyError

Breach = tuple[str, str, str]


class GraphPass(Protocol):
    """A change of a graph in place. Its options are its dataclass fields; its docstring says what then holds."""

    @property
    def name(self) -> str:
        """One word, for messages."""
        ...

    def __call__(self, graph: fx.Graph) -> None:
        """Change the graph."""
        ...


def run_graph_passes(graph: fx.Graph, passes: Sequence[GraphPass]) -> None:
    """Run the passes in order.

    Raises:
        VerifyError: one left a graph that takes or returns something else, or a node whose value is not known.
    """
    taken, returned, unknown = _inputs(graph), _outputs(graph), set(_unknown(graph))
    for step in passes:
        with debug.stage(step.name):
            step(graph)
        breaches = [f"{rule}: {node}: {what}" for rule, node, what in _breaches(graph, taken, returned, unknown)]
        if breaches:
            raise VerifyError(
                f"After the pass {step.name} the graph breaks {len(breaches)} rule(s): {'; '.join(breaches)}"
            )
        debug.say(debug.PROGRAMS, f"after {step.name}:\n{graph}")


def _breaches(graph: fx.Graph, taken: list[str], returned: list[str], unknown: set[str]) -> Iterator[Breach]:
    if (now := _inputs(graph)) != taken:
        yield "inputs_stay", "inputs", f"{', '.join(now)} in place of {', '.join(taken)}"
    if (outputs := _outputs(graph)) != returned:
        yield "outputs_stay", "output", f"{', '.join(outputs)} in place of {', '.join(returned)}"
    for name in _unknown(graph):
        if name not in unknown:
            yield "values_known", name, "the pass did not say what its value is"
    try:
        graph.lint()
    except RuntimeError as error:
        yield "well_formed", "graph", str(error)


def _inputs(graph: fx.Graph) -> list[str]:
    return [node.name for node in graph.nodes if node.op == "placeholder"]


def _unknown(graph: fx.Graph) -> list[str]:
    """The nodes that are read and do not say what their value looks like."""
    return [node.name for node in graph.nodes if node.op == "call_function" and node.users and "val" not in node.meta]


def _outputs(graph: fx.Graph) -> list[str]:
    returned: Any = graph.output_node().args[0]
    return [_form(node) for node in (returned if isinstance(returned, (tuple, list)) else (returned,))]


def _form(node: Any) -> str:
    value = node.meta.get("val") if isinstance(node, fx.Node) else node
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, Tensor) else str(value)
