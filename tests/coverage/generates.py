"""Whether a program makes the tokens that transformers' `generate` makes of its model."""

from __future__ import annotations

import copy
from typing import Any

import torch

from headrace.backends import backend
from headrace.errors import HeadraceError
from headrace.ir import Program, Task
from headrace.runtime.api import Lowered
from tests.generating import prompts

LENGTHS, NEW = (5, 11), 8
CHUNK = 4  # tokens of a step: prompts come in pieces, beside those that go on


def generates(program: Program, model: Any) -> bool | str | None:
    """True where every prompt goes on alike, greedily, in chunks; else why not. None of what offers no text.

    Args:
        program: analysed.
        model: the eager model that it was traced from.
    """
    decided = next((one for one in program.decision.tasks if one.task is Task.GENERATE), None)
    if decided is None or program.decision.route is None or program.decision.route.name == "EncoderOnlyState":
        return None
    texts = prompts(program.signature.vocabulary or 96, *LENGTHS)
    try:
        compiled = Lowered(program, backend("reference"), None).compile(task=Task.GENERATE, token_budget=CHUNK)
        made = compiled.generate(texts, max_new_tokens=NEW, ignore_eos=True, beams=1, temperature=0)
    except HeadraceError as error:
        return f"{type(error).__name__}: {error}"
    ours = [list(one.token_ids) for one in made]
    theirs = [_eager(model, text) for text in texts]
    return ours == theirs or f"other tokens: {ours} where transformers' generate makes {theirs}"


@torch.no_grad()
def _eager(model: Any, text: list[int]) -> list[int]:
    """What `generate` makes of a text alone, without an end."""
    model = copy.deepcopy(model)
    model.generation_config.eos_token_id = None
    ids = torch.tensor([text])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, num_beams=1)
    return made[0, -NEW:].tolist()
