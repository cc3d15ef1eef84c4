"""The text that goes before every text."""

from __future__ import annotations

import reprlib

from headrace.errors import InputError, warn
from headrace.ir import Program


def find_prompt(program: Program, prompt: str | None) -> str:
    """The prompt of a name, or the text itself; None is the folder's default, and "" none.

    Raises:
        InputError: a default that the folder does not have, no str, or a prompt that the folder's pooling leaves out.
    """
    found = _named(program, prompt)
    if found and not program.facts.text.pools_prompt:
        raise InputError(
            f"The folder's Pooling leaves the prompt {found!r} out (include_prompt is false), which is not served yet. "
            'Pass prompt="" to embed without one.'
        )
    return found


def _named(program: Program, prompt: str | None) -> str:
    known = dict(program.facts.text.prompts)
    name = program.facts.text.default_prompt if prompt is None else prompt
    if prompt is not None and not isinstance(prompt, str):
        raise InputError(f"prompt is {reprlib.repr(prompt)}; a prompt's name or its text is accepted.")
    if name is None or name in known:
        return known.get(name or "", "") or ""
    if prompt is None:
        raise InputError(
            f"The model's default prompt {name!r} is not among its prompts ({', '.join(known) or 'none'}). Pass "
            'prompt="" to go without one.'
        )
    if known and prompt:
        warn(f"prompt={prompt!r:.80} is none of the model's prompts ({', '.join(known)}) and is taken as a text.")
    require_unicode(prompt, "The prompt")
    return prompt


def require_unicode(text: str, name: str) -> None:
    """Refuse half a character.

    Raises:
        InputError: `text` cannot be written as UTF-8; `name` begins the message.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} has half a surrogate pair at character {error.start}, which no tokenizer reads. Decode it anew "
            'with errors="replace".'
        ) from None
