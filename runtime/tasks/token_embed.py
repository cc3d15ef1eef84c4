"""token_embed: one vector a token."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.tasks.interface import Answering, Call, Each, Prompt, PromptName
from headrace.runtime.text.prompts import one_prompt


def token_embed(
    call: Call, texts: Any, prompt: Prompt = None, prompt_name: PromptName = None
) -> list[NDArray[np.float32]]:
    """See `CompiledModel.token_embed`."""
    call.lane()
    return call.rows(call.drawn(texts), prompt=one_prompt(call.program, prompt, prompt_name))


TASK = Answering(token_embed, each=lambda _: Each(lambda row, _: row.copy()))
