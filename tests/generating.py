"""Texts generated greedily: by the eager model, and by a cached program whose steps a test cuts as it likes."""

from __future__ import annotations

import random
from typing import Any

import torch

from headrace.backends.reference import Reference
from headrace.ir import OutputKind, Program, Task
from headrace.ir.passes import run_passes
from headrace.lowering.forms.cached import CacheStates
from headrace.lowering.forms.select import SelectTask
from headrace.runtime.engine.decoding import DecodingLoop
from headrace.runtime.engine.lane import Lane
from headrace.runtime.engine.sequence import Sequence
from headrace.runtime.state.model_state import state_class

BLOCK = 4


@torch.no_grad()
def greedy(model: Any, prompt: list[int], new: int) -> list[int]:
    """The tokens that the eager model makes of a prompt alone, recomputing the whole text for each."""
    tokens = list(prompt)
    for _ in range(new):
        ids = torch.tensor([tokens])
        tokens.append(
            int(model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, -1].argmax())
        )
    return tokens[len(prompt) :]


@torch.no_grad()
def transformers_tokens(model: Any, ids: list[int], new: int, **options: Any) -> list[int]:
    """The new tokens of transformers' own greedy search; an encoder-decoder's begin with its start token."""
    given = torch.tensor([ids])
    made = model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=new, do_sample=False, num_beams=1, **options
    )[0].tolist()
    found: list[int] = made[1:] if model.config.is_encoder_decoder else made[len(ids) :]
    return found


def cached(program: Program, block: int = BLOCK) -> Program:
    """The program of generation, with blocks so small that short texts fill some."""
    return run_passes(program, (SelectTask(Task.GENERATE, (OutputKind.HIDDEN,)), CacheStates(block)))


def choose(logits: Any, sequences: list[Sequence]) -> None:
    """Greedily, until each has as many as its request says."""
    for row, sequence in zip(logits[0], sequences, strict=True):
        sequence.tokens.append(int(row.argmax()))
        if len(sequence.made) >= sequence.request:
            sequence.finished = "length"


def generator(program: Program, tokens: int = 64, *, limit: int | None = None, **options: Any) -> DecodingLoop:
    """A loop over a cached program, interpreted, with `tokens` a step."""
    backend = Reference()
    state = state_class(program)(program)
    state.keep_in(backend, limit)
    return DecodingLoop(Lane(program, backend.compile(program), state), backend, choose, tokens, **options)


def prompts(vocabulary: int, *lengths: int, seed: int = 0) -> list[list[int]]:
    """Texts of those lengths."""
    chance = random.Random(seed)
    return [[chance.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


def run(loop: DecodingLoop, texts: list[list[int]], new: int) -> list[list[int]]:
    """What is made of each text, all submitted at once."""
    sequences = [loop.submit(text, new) for text in texts]
    loop.run(sequences)
    return [sequence.made for sequence in sequences]
