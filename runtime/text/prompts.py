"""The text that goes before every text."""

from __future__ import annotations

import difflib
import re
import reprlib

from headrace.errors import InputError, warn
from headrace.ir import Program

# What reads like a prompt's name: one word, with nothing behind it that would part it from a text.
NAME = re.compile(r"[\w.-]*\w", re.ASCII)


class Verbatim(str):
    """A prompt that is its text, and never a name of the folder's."""

    __slots__ = ()


def find_prompt(program: Program, prompt: str | None) -> str:
    """The prompt of a name, or the text itself; None is the folder's default, and "" none.

    Raises:
        InputError: a name that the folder does not have, no str, or a prompt that the folder's pooling leaves out.
    """
    found = _named(program, prompt)
    # A template's messages are pooled whole.
    if found and not program.facts.text.pools_prompt and program.facts.text.chat is None:
        raise InputError(
            f"The folder's Pooling leaves the prompt {found!r} out (include_prompt is false), which is not served yet. "
            'Pass prompt="" to embed without one.'
        )
    return found


def one_prompt(program: Program, prompt: str | None, prompt_name: str | None) -> str | None:
    """The one of the two that is given: `prompt_name` is a name of the folder's, and never taken for a text.

    Raises:
        InputError: both are given, or there is no such name.
    """
    if prompt_name is None:
        return prompt
    if prompt is not None:
        raise InputError(
            "prompt and prompt_name are both given. Pass one: a name of the folder's, or a text of your own."
        )
    return named_prompt(program, prompt_name, " For a text of your own, pass prompt=.")


def named_prompt(program: Program, name: str | None, advice: str = "") -> str | None:
    """A prompt's name, which the folder has; None stays None.

    Args:
        advice: what the message ends with, where a caller can pass a text too.

    Raises:
        InputError: the folder has no prompt of that name.
    """
    known = [one for one, _ in program.facts.text.prompts]
    if name is not None and name not in known:
        raise InputError(
            f"prompt_name is {reprlib.repr(name)}; the model's prompts are {', '.join(known) or 'none'}.{advice}"
        )
    return name


def side_prompt(program: Program, side: str) -> str:
    """The name of the prompt for queries or for documents, "" where the folder has none: no default takes its place."""
    return side if side in dict(program.facts.text.prompts) else ""


def _named(program: Program, prompt: str | None) -> str:
    known = dict(program.facts.text.prompts)
    if isinstance(prompt, Verbatim):
        require_unicode(prompt, "The prompt")
        return str(prompt)
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
    if NAME.fullmatch(prompt):
        near = difflib.get_close_matches(prompt, known, 1)
        raise InputError(
            f"The model has no prompt named {prompt!r}{f', but {near[0]!r}' if near else ''}; its prompts are "
            f"{', '.join(known) or 'none'}. To put a text before every text, end it with what parts the two, e.g. "
            f"prompt={prompt + ': '!r}."
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
