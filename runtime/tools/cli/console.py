"""How the command behaves as a program: one line for an error, exit codes, and no noise from the libraries below."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, TextIO

from headrace import debug
from headrace.errors import HeadraceError, HeadraceWarning, missing_library
from headrace.runtime.tools.cli import streams
from headrace.runtime.tools.inspect.tables import printable
from headrace.utils.stderr import Stderr

CLOSED, WRONG, INTERRUPTED = 1, 2, 130
# A full disk, a quota, a file that may grow no further, and one that was closed since.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)
# Set before these libraries are imported: each reads its variable once.
QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "true",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
# Messages name options as Python has them; a reader of the command line has these. Folders may be called so too.
OPTION = re.compile(
    r"(?<![\w/.-])(target|dtype|max_length|prefill|pooling|tokenizer|revision|trust_remote_code|truncate|normalize|"
    r"dimensions|prompt|batch_size|token_budget|aggregation|task|beams|temperature|quantize|kv_cache_dtype|force|model|trust|parallel|"
    r"profile|join|scores|labels|logits)="
    r"""(?:["']([\w.:-]*)["']|(\w*))(?![\w.-]*/)"""
)


def note(text: str) -> None:
    """A line for the user beside the answers, on stderr."""
    Stderr().write(f"headrace: {printable(text)}\n")


def say(text: str) -> None:
    """Text for the user on standard output, with the options as the command line has them."""
    sys.stdout.write(option_words(text))


def run(command: Callable[[], Any]) -> int:
    """Run a command and turn what happens into an exit code.

    Returns:
        The command's own code, 0 where it has none; 1 where nobody reads on; 2 for a user's mistake; 130 where it was
        interrupted.
    """
    quiet = debug.level() < debug.STAGES
    if quiet:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
            logging.getLogger("torch").setLevel(logging.ERROR)
        warnings.simplefilter("always", HeadraceWarning)
        warnings.showwarning = _warn  # restored with the filters
        try:
            return _code(command)
        finally:
            _settle(sys.stderr)


def _code(command: Callable[[], Any]) -> int:
    try:
        code = command()
        if code == INTERRUPTED:  # what typer makes of it
            raise KeyboardInterrupt
        sys.stdout.flush()  # a reader that is gone shows here, not while Python shuts down
        return code if isinstance(code, int) else 0
    except (BrokenPipeError, KeyboardInterrupt) as error:
        streams.let_go(sys.stdout)  # where nobody reads, to write the rest would wait for ever
        return CLOSED if isinstance(error, BrokenPipeError) else INTERRUPTED
    except Exception as error:
        code = _failed(error)
        _settle(sys.stdout)
        return code


def _settle(stream: TextIO) -> None:
    """Have a stream written to its end while a failure can still be passed over."""
    try:
        stream.flush()
    except (OSError, ValueError):
        streams.let_go(stream)


def _warn(message: Warning | str, category: Any, *_place: Any, **_more: Any) -> None:
    note(f"warning: {option_words(one_line(str(message)))}")


def _failed(error: Exception) -> int:
    """Say a user's mistake in one line; anything else is ours, and keeps its traceback."""
    # typer's own errors: the class that they share has had several homes.
    if (message := getattr(error, "format_message", None)) is not None:
        if said := one_line(message()):  # there is none where the help was shown instead
            note(f"{said} (headrace --help lists commands, headrace COMMAND --help options)")
        return WRONG
    if isinstance(error, HeadraceError):
        note(option_words(one_line(str(error))))
        return WRONG
    if isinstance(error, OSError) and (isinstance(error, io.UnsupportedOperation) or error.errno in UNWRITABLE):
        note(f"{error.filename or 'the answers'} cannot be written: {error.strerror or 'standard output is closed'}")
        return WRONG
    if isinstance(error, ImportError) and (refusal := missing_library(error, "this command")) is not None:
        note(str(refusal))
        return WRONG
    raise error


def one_line(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())


def option_words(text: str) -> str:
    """`truncate=True` as `--truncate`, `target="cpu"` as `--target cpu`."""

    def spelled(match: re.Match[str]) -> str:
        name, value = match[1].replace("_", "-"), '""' if match[2] == "" else match[2] or match[3] or ""
        if value in ("True", "False"):
            return f"--{name}" if value == "True" else f"--no-{name}"
        return f"--{name} {value}".rstrip()

    return OPTION.sub(spelled, text)
