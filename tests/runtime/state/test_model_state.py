"""Contract B through the public API: custom states, and a wrapped model that routes and answers as the inner one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import headrace
from headrace.ir import Program, State
from headrace.runtime.state.model_state import unregister_model_state
from tests.tiny import build
from tests.words import bert_like


class Counting(headrace.ModelState):
    """Counts the batches that it ran."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.batches = 0

    def step(self, executable: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        self.batches += 1
        return super().step(executable, inputs)


@pytest.fixture
def registered() -> Iterator[str]:
    headrace.register_model_state("counting", Counting, when=lambda program: program.signature.vocabulary == 96)
    yield "counting"
    unregister_model_state("counting")


def test_a_registered_state_runs_the_program(registered: str) -> None:
    """B1: registered for this program."""
    model = headrace.compile(build("qwen3"), target="reference", pooling="last")
    assert (model.program.decision.route.rule, model.program.decision.route.name) == ("B1", registered)
    plain = [model([[5, 6, 7]], task="embed")[0] for _ in range(2)]
    assert model.engine.lane("embed").state.batches == 2
    np.testing.assert_array_equal(*plain)
    assert "counting" in model.explain()


def test_a_state_that_is_for_other_programs(registered: str) -> None:
    model = headrace.compile(build("bert", vocab_size=50), target="reference", pooling="mean")
    assert model.program.decision.route.state is State.ENCODER_ONLY


def test_a_module_brings_its_state() -> None:
    """B1: the `nn.Module` itself brings one."""
    model = build("bert")
    model.headrace_state = Counting
    compiled = headrace.compile(model, target="reference", pooling="mean")
    assert compiled.program.decision.route.name == "Counting"
    compiled([[5]], task="embed")
    assert compiled.engine.lane("embed").state.batches == 1
    model.headrace_state = "no class"
    with pytest.raises(headrace.InputError, match="headrace_state"):
        headrace.compile(model, target="reference")


def made(factor: float) -> type[headrace.ModelState]:
    """A class of the same qualified name as every other that this makes."""

    class Scaling(headrace.ModelState):
        def step(self, executable: Any, inputs: Mapping[str, Tensor]) -> Any:
            return super().step(executable, inputs) * factor

    return Scaling


def test_two_modules_whose_states_share_a_name(tmp_path: Path) -> None:
    """B1: each model runs its own, for every task, also what is compiled once the other is there."""
    models = []
    for factor in (1.0, 3.0):
        module = build("bert")
        module.headrace_state = made(factor)
        models.append(headrace.lower(module, target="reference", pooling="mean"))
    one, other = (lowered.compile() for lowered in models)
    assert one.program.decision.route.name == other.program.decision.route.name
    for task in ("embed", "token_embed"):
        np.testing.assert_allclose(other([[5, 6]], task=task)[0], 3 * one([[5, 6]], task=task)[0], rtol=1e-5)
    # B6: an artifact names the class, and no module that brought one in this process stands in for a registration.
    saved = one.save(tmp_path / "saved")
    name = one.program.decision.route.name
    with pytest.raises(headrace.ArtifactError, match=rf"{re.escape(name)}.*not registered here"):
        headrace.load(saved)
    headrace.register_model_state(name, made(5.0), when=lambda program: False)
    try:
        np.testing.assert_allclose(headrace.load(saved)([[5]])[0], 5 * one([[5]])[0], rtol=1e-5)
        np.testing.assert_allclose(other([[5]])[0], 3 * one([[5]])[0], rtol=1e-5)
    finally:
        unregister_model_state(name)


def test_a_name_that_is_registered_anew(registered: str) -> None:
    """A model goes on with the class that it was made with, in a task that it compiles afterwards too."""
    model = headrace.compile(build("bert"), target="reference", pooling="mean")
    unregister_model_state(registered)
    headrace.register_model_state(registered, made(3.0), when=lambda program: True)
    model([[5]], task="token_embed")
    assert model.engine.lane("token_embed").state.batches == 1


def test_an_artifact_with_an_unregistered_state_is_refused(registered: str, tmp_path: Path) -> None:
    """B6."""
    saved = headrace.compile(build("bert"), target="reference", pooling="mean").save(tmp_path / "saved")
    assert headrace.load(saved).program.decision.route.name == registered
    unregister_model_state(registered)
    with pytest.raises(headrace.ArtifactError, match=r"register_model_state\('counting'"):
        headrace.load(saved)


def test_a_taken_name_is_refused(registered: str) -> None:
    class Other(headrace.ModelState):
        pass

    with pytest.raises(ValueError, match="registered already"):
        headrace.register_model_state(registered, Other, when=lambda program: True)


class Wrapped(nn.Module):
    """As adapters wrap a model: everything is passed through."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Rows(nn.Module):
    """A user's own module that returns the bare rows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        rows: Tensor = self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return rows


@pytest.mark.parametrize("wrapper", [Wrapped, Rows])
@pytest.mark.parametrize("name", ["bert", "qwen3"])
def test_a_wrapped_model_answers_as_the_inner_one(wrapper: Any, name: str) -> None:
    """B7."""
    inner = build(name)
    plain = headrace.compile(inner, target="reference", pooling="mean")
    wrapped = headrace.compile(wrapper(inner), target="reference", pooling="mean")
    assert wrapped.program.decision.route == plain.program.decision.route
    assert [s.type for s in wrapped.program.nodes.attention] == [s.type for s in plain.program.nodes.attention]
    assert list(wrapped.tasks) == list(plain.tasks)
    requests = [[5, 6, 7, 8, 9], [10], [11, 12]]
    for one, other in zip(wrapped(requests, task="embed"), plain(requests, task="embed"), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("head", ["AutoModelForSequenceClassification", "AutoModelForTokenClassification"])
def test_a_wrapped_head_is_the_same_head(head: str) -> None:
    inner = build("bert", head)
    plain, wrapped = (headrace.compile(m, target="reference") for m in (inner, Wrapped(inner)))
    assert wrapped.task == plain.task
    assert wrapped.program.facts.labels == plain.program.facts.labels
    np.testing.assert_allclose(wrapped([[5, 6]])[0], plain([[5, 6]])[0], atol=1e-6)


def test_the_worked_example(capsys: pytest.CaptureFixture[str]) -> None:
    """Of docs/custom-state.md, with a tiny model in place of the real one."""
    page = (Path(__file__).parents[3] / "docs" / "custom-state.md").read_text()
    (code,) = re.findall("```python\n(.*?)```", page, re.DOTALL)
    model = build("bert")
    try:
        exec(
            code.replace('compile(folder("minilm")', 'compile(MODEL, pooling="mean", tokenizer=WORDS'),
            {"MODEL": model, "WORDS": bert_like(), "__name__": "example"},
        )
    finally:
        unregister_model_state("drift")
    assert capsys.readouterr().out.splitlines() == ["3 torch.Size([32])", "True"]
