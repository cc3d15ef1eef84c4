"""Write docs/pipeline.md: two tiny models printed at each stage, so that the page cannot go stale.

python docs/make_pipeline.py     (make docs)
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from difflib import ndiff
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import fx

from headrace.backends.inductor.compile import DECOMPOSITIONS
from headrace.frontend.load.checkpoint import Checkpoint
from headrace.frontend.trace import Traced, trace
from headrace.ir import Prefill, Program, Task
from headrace.ir.passes import run_passes
from headrace.lowering.pipeline import analysis, prepare

PAGE = Path(__file__).with_name("pipeline.md")
# What follows this line up to the end of its block differs between versions of torch and transformers.
VARIES = "<!-- differs between versions of torch and transformers -->"
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
INTRODUCTION = """# The pipeline, on two tiny models

Written by `docs/make_pipeline.py` (`make docs`); do not edit. Every block is what the code prints.

A model goes one way. The frontend traces it to a `Program`: an exported graph, and typed facts beside it. The passes of
`lowering/pipeline.py` add facts, in order, with the verifier after each. For a task, the program is cut down to the
output that answers it. A backend then replaces the operators of the IR by what its compiler fuses."""


def main() -> None:
    """Write the page."""
    PAGE.write_text(document())
    print(f"wrote {PAGE}")


def document() -> str:
    """The whole page."""
    torch.manual_seed(0)
    bert = transformers.BertModel(transformers.BertConfig(**SIZES))
    qwen = transformers.Qwen3ForTokenClassification(
        transformers.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8, num_labels=3)
    )
    encoder, decoder = _traced(bert), _traced(qwen)
    encoder_passes, encoded = _passes(encoder, None)
    decoder_passes, decoded = _passes(decoder, None)
    enable = analysis(decoder.behaviour, Prefill.SINGLE_PASS)[-1]
    undecided = decoded.with_(prefill=None, tasks=())
    opened = run_passes(undecided, [enable])
    parts = [
        INTRODUCTION,
        "## An encoder: a tiny `BertModel`",
        *encoder_passes,
        *_prepared(encoded, Task.EMBED),
        "## A decoder: a tiny `Qwen3ForTokenClassification`",
        "Its attentions are DECODER and its prefill is chunked, so the one task that its head offers is refused.",
        *decoder_passes,
        '### With `prefill="single_pass"`',
        "Every token of a sequence is then present in one step, which is the gate of token-level tasks. Only the last "
        "pass decides differently:",
        _changes(undecided, opened),
        *_prepared(opened, Task.TOKEN_CLASSIFY),
    ]
    return "\n\n".join(parts) + "\n"


def _traced(module: Any) -> Traced:
    return trace(Checkpoint("tiny", module.eval(), module.config, None, None, ()))


def _passes(traced: Traced, prefill: Prefill | None) -> tuple[list[str], Program]:
    """What each pass does, and the program after the last."""
    program = traced.program
    operators = [node for node in program.graph.graph.nodes if "headrace." in str(node.target)]
    parts = ["### Traced", _block(program.as_text())]
    parts += ["Its first attention, and what makes its mask:", _graph(operators[:2])]
    for step in analysis(traced.behaviour, prefill):
        before, program = program, run_passes(program, [step])
        parts += [f"### Pass `{step.name}`", f"{inspect.getdoc(step.__class__)}", _changes(before, program)]
    return parts, program


def _changes(before: Program, after: Program) -> str:
    """The lines of text that a pass added (+) or took away (-)."""
    lines = [line for line in ndiff(before.as_text().splitlines(), after.as_text().splitlines()) if line[0] in "+-"]
    return _block("\n".join(lines), "diff") if lines else "No fact changes: the pass checks."


def _prepared(program: Program, task: Task) -> Iterator[str]:
    yield f"### Prepared for `{task}`"
    prepared = prepare(program, task)
    yield _changes(program, prepared)
    yield "### Decomposed for Inductor"
    yield "The same attention and the making of its mask, as the compiler gets them:"
    graph = prepared.graph.run_decompositions(DECOMPOSITIONS).graph
    attention = next(node for node in graph.nodes if "scaled_dot_product_attention" in str(node.target))
    yield _graph([*_making(graph, attention.args[3]), attention])


def _making(graph: fx.Graph, wanted: Any) -> list[fx.Node]:
    """The nodes that a value is made of, in the graph's order."""
    found, todo = set[fx.Node](), [wanted]
    while todo:
        node = todo.pop()
        if node not in found and node.op == "call_function":
            found.add(node)
            todo += node.all_input_nodes
    return [node for node in graph.nodes if node in found]


def _graph(nodes: list[fx.Node]) -> str:
    return f"{VARIES}\n" + _block("\n".join(f"{node.name} = {node.target}({_arguments(node)})" for node in nodes))


def _arguments(node: fx.Node) -> str:
    return ", ".join(str(argument) for argument in node.args)


def _block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```"


if __name__ == "__main__":
    main()
