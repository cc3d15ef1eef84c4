"""A warning points at the caller's own line, by whichever way Headrace was entered."""

from __future__ import annotations

import ast
import inspect
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.backends.reference import Reference
from headrace.errors import OutOfMemoryError, warn
from headrace.ir import TextRules
from headrace.runtime.engine.engine import Engine
from headrace.runtime.model import CompiledModel
from headrace.runtime.text.encoded import Encoded
from tests.test_layering import modules
from tests.tiny import build
from tests.words import bert_like

LONG = "w5 " * 30


def place(call: Callable[[], Any], says: str) -> tuple[str, str]:
    """The file and the source line that the one warning that says so points at."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    (found,) = [one for one in caught if says in str(one.message)]
    assert found.category is headrace.HeadraceWarning
    return found.filename, Path(found.filename).read_text().splitlines()[found.lineno - 1].strip()


def written(call: Callable[[], Any]) -> tuple[str, str]:
    """The file and the line that a lambda stands on."""
    return __file__, inspect.getsource(call).strip()


def compiled() -> CompiledModel:
    lowered = headrace.lower(build("bert"), target="reference", tokenizer=bert_like())
    return CompiledModel(lowered.program, lowered.backend, lowered.tokenizer)


def test_however_the_model_is_called() -> None:
    """What is compiled on first use warns of its pooling, below calls of different depths."""
    ways = [
        lambda: compiled().embed("w5"),
        lambda: list(compiled().embed_iter(["w5"])),
        lambda: compiled()([[5]], task="embed"),
        lambda: compiled().engine.lane("embed"),
        lambda: headrace.compile(build("bert"), target="reference"),
        lambda: headrace.trace(build("bert")).lower("reference").compile(task="embed"),
    ]
    for way in ways:
        assert place(way, "Pooling is mean") == written(way)


def test_of_texts_that_are_truncated_and_of_prompts_that_have_no_name() -> None:
    made = compiled()
    program = made.program.with_(text=TextRules(truncates=True, prompts=(("query", "w9 "),)))
    model = CompiledModel(program, made.engine.backend, made.tokenizer, max_length=8)
    for way in (
        lambda: model.embed(LONG),
        lambda: list(model.embed_iter([LONG])),
        lambda: model.counting_from(3).embed([LONG, "w5"]),
    ):
        assert place(way, "were truncated") == written(way)
    way = lambda: model.embed("w5", prompt="w7 ")  # noqa: E731
    assert place(way, "is taken as a text") == written(way)


def test_of_a_task_that_is_not_the_default() -> None:
    way = lambda: headrace.compile(build("llama-bidirectional", "AutoModelForCausalLM"), target="reference")  # noqa: E731
    assert place(way, "The default task is embed instead of generate") == written(way)


def test_of_memory_that_ran_out(analysed: Any) -> None:
    class Small(Reference):
        def fetch(self, output: Any) -> Any:
            if output.shape[0] > 1:
                raise OutOfMemoryError("no memory")
            return output

    engine = Engine(analysed("bert"), Small(), token_budget=16)
    requests = [Encoded(np.arange(5, 13)), Encoded(np.arange(5, 13))]
    way = lambda: engine.run("embed", requests)  # noqa: E731
    assert place(way, "more memory than is free") == written(way)


def test_past_any_number_of_calls_of_ours() -> None:
    """Where Headrace calls a function of the caller's, that is the nearest line of theirs."""
    ours = types.ModuleType("headrace.made.up")
    ours.__dict__["warn"] = warn
    exec("def deep(n, then):\n    return deep(n - 1, then) if n else then()\ndef say():\n    warn('said')", vars(ours))
    for depth in (0, 1, 9):
        way = lambda: ours.deep(depth, ours.say)  # noqa: E731, B023
        assert place(way, "said") == (__file__, inspect.getsource(way).strip())
    within = lambda: ours.say()  # noqa: E731
    assert place(lambda: ours.deep(3, within), "said") == written(within)


def test_it_is_said_once_a_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            warn("once for this line")
        warn("once for this line")
    assert len(caught) == 2


def test_nothing_else_warns() -> None:
    """A call of `warnings.warn` counts frames; `headrace.errors.warn` walks them."""
    calls = {
        name: [ast.unparse(node.func) for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        for name, file in modules().items()
    }
    assert "warn" in calls["headrace.runtime.engine.engine"]
    assert [name for name, called in calls.items() if "warnings.warn" in called] == []
