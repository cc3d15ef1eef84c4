"""Cached programs as the GPU targets step them: what fills a step up changes nothing, and tokens are transformers'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace import feed, graphs, sample
from headrace.backends.gpu import executable, stepping
from headrace.backends.gpu.stepping import FEWEST_BLOCKS, ROOMS, Size, Staged, Stepping, room_for
from headrace.backends.inductor.host.paged import use_host_attention
from headrace.ir import Program, Task
from headrace.lowering.pipeline import prepare
from tests.coverage.configs import tiny_model
from tests.generating import transformers_tokens

NEW = 24
# The last is longer than a block, so that later texts find its beginning in the caches.
TEXTS = [[5, 6, 7, 8, 9, 10, 11], [20, 30, 40], list(range(50, 70))]
CAUSAL = (
    "llama", "qwen3", "gemma2", "gemma3", "gpt-oss", "bloom", "mpt", "llama4-chunked", "deepseek-v3", "qwen3-next",
    "mamba2", "rwkv",
)  # fmt: skip
PAIRS = ("t5", "bart", "marian")


@pytest.mark.parametrize(
    ("size", "room"),
    [
        (Size(1, 1, 1, 3), Size(2, 2, 2, FEWEST_BLOCKS)),
        (Size(9, 9, 9, 17), Size(16, 16, 16, 32)),
        (Size(ROOMS[-1], ROOMS[-1], ROOMS[-1], 64), Size(ROOMS[-1], ROOMS[-1], ROOMS[-1], 64)),
        ((*[ROOMS[-1] + 1] * 3, 4), None),
        (Size(8, 7, 7, 4), None),  # a piece of a prompt
        (Size(7, 7, 6, 4), None),  # which asks for nothing yet
    ],
)
def test_a_captured_step_has_room(size: Any, room: Size | None) -> None:
    assert room_for(Size(*size)) == room


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps, with the host's attention in place of our kernels and nothing captured."""

    def on_host(program: Program, _: str) -> Any:
        return graphs.rewrite(program.graph, use_host_attention)

    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    monkeypatch.setattr("headrace.backends.kernels.pipeline.with_kernels", on_host)
    monkeypatch.setattr(executable, "family", lambda _: "")
    monkeypatch.setattr(stepping, "capturable", lambda _: False)


@pytest.fixture(scope="module")
def program(analysed: Any) -> Program:
    made: Program = prepare(analysed("qwen3", "AutoModelForCausalLM"), Task.GENERATE)
    return made


def _pieces(program: Program) -> list[feed.Piece]:
    ids = np.arange(5, 9)
    tables = [[0, 1]] * len(program.form.groups)
    return [feed.Piece(ids, 0, tables, 0, 1), feed.Piece(ids[:1], 20, [[2, 3]] * len(program.form.groups), 1, 1)]


def test_what_fills_a_step_up_goes_nowhere(on_cpu: None, program: Program) -> None:
    given = sample.tensors(program, feed.cached(program, _pieces(program)))
    staged = Staged(program, Size(8, 4, 4, 4))
    for _ in range(2):  # the second over what the first left
        staged.write(given)
        made = {name: tensor.numpy() for name, tensor in staged.tensors.items()}
        assert made["cu_seqlens"].tolist() == [0, 4, 5, 5, 5]
        assert made["slots"][0].tolist() == [0, 1, 2, 3, 3 * 16 + 4, -1, -1, -1]
        assert made["context"].tolist() == [0, 20, 0, 0]
        assert made["wanted"].tolist() == [3, 4, 0, 0]
        assert made["blocks"][0].tolist() == [[0, 1, 0, 0], [2, 3, 0, 0], [0] * 4, [0] * 4]
        assert all(tensor.data_ptr() % 16 == 0 for tensor in staged.tensors.values())


@pytest.mark.slow
def test_one_graph_runs_every_step(on_cpu: None, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, single tokens and one alone, from the caches that the steps before left."""
    from torch._dynamo.utils import counters

    run = Stepping(program)
    compiled = counters["stats"]["unique_graphs"]
    rows = {cache.name: torch.zeros((8, program.form.block, *cache.sizes)) for cache in program.form.caches}
    same = {name: rows[name].clone() for name in rows}
    tables = [[4, 1]] * len(program.form.groups)
    first = [feed.Piece(np.arange(5, 9), 0, tables, 0, 1), feed.Piece(np.arange(30, 47), 0, [[2, 3]], 1, 1)]
    alone = [feed.Piece(np.array([7]), 4, tables, 0, 1)]
    silent = [feed.Piece(np.array([8, 9]), 5, tables, 0, 0)]
    for pieces in (first, alone, silent):
        given = program.signature.named(feed.cached(program, pieces))
        inputs = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in given.items()}
        wanted = graphs.run(program.graph, inputs | same)[0][0]
        torch.testing.assert_close(run(inputs | rows), wanted, atol=1e-5, rtol=1e-5)
        for name, cache in rows.items():
            torch.testing.assert_close(cache, same[name], atol=1e-5, rtol=1e-5)
    assert counters["stats"]["unique_graphs"] == compiled


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*CAUSAL, *PAIRS])
def test_tokens_are_those_of_transformers(name: str, tiny: Any) -> None:
    """Alone, together, with prefixes that are known, and after the caches have moved."""
    head = "AutoModelForSeq2SeqLM" if name in PAIRS else "AutoModelForCausalLM"
    eager = tiny(name, head)
    wanted = [transformers_tokens(eager, text, NEW) for text in TEXTS]
    model = headrace.compile(eager, target="cuda", dtype="float32", task="generate", pooling="last")
    for batch in ([0], [1], [2], [0, 1, 2], [2, 2, 1, 0] * 20):
        found = model.generate([TEXTS[place] for place in batch], max_new_tokens=NEW)
        assert [list(one.token_ids) for one in found] == [wanted[place] for place in batch]
    assert not model.engine.decoding().lane.state.store.used()


# Plain, with the norm of each head before its rotation, in windows, in chunks, of rows that are both.
CODED = ("llama", "qwen3", "gemma3", "llama4-chunked", "deepseek-v3")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CODED)
def test_codes_answer_as_those_of_the_reference(name: str, tiny: Any) -> None:
    """Where a number lies between two codes, either may be its: so nine tokens of ten, and rows of half the size."""
    eager = tiny(name, "AutoModelForCausalLM")
    options: Any = {"dtype": "float32", "task": "generate", "kv_cache_dtype": "fp8"}
    wanted = headrace.compile(eager, target="reference", **options).generate(TEXTS, max_new_tokens=NEW)
    model = headrace.compile(eager, target="cuda", **options)
    for batch in ([0], [0, 1, 2], [2, 2, 1, 0] * 20):
        found = model.generate([TEXTS[place] for place in batch], max_new_tokens=NEW)
        pairs = [(one.token_ids, wanted[place].token_ids) for one, place in zip(found, batch, strict=True)]
        same = [a == b for one, other in pairs for a, b in zip(one, other, strict=False)]
        assert sum(same) >= 0.9 * len(same)
    assert not model.engine.decoding().lane.state.store.used()


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["deepseek_v3", "minicpm3"])
def test_rows_of_latents_are_kept_there(family: str) -> None:
    eager = tiny_model(family, "AutoModelForCausalLM")
    wanted = [transformers_tokens(eager, text, NEW, eos_token_id=-1) for text in TEXTS]
    model = headrace.compile(eager, target="cuda", dtype="float32", task="generate")
    for batch in ([0], [0, 1, 2], [2, 2, 1, 0] * 20):
        found = model.generate([TEXTS[place] for place in batch], max_new_tokens=NEW, ignore_eos=True)
        assert [list(one.token_ids) for one in found] == [wanted[place] for place in batch]
    assert all(spec.compressed for spec in model.engine.decoding().lane.program.nodes.attention)
