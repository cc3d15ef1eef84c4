"""What the commands read and write: texts from arguments or lines, answers as JSON lines, in order."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from headrace.errors import InputError
from headrace.runtime.tools.cli.waiting import waiting
from headrace.runtime.tools.inspect.tables import printable

Request = str | tuple[str, str] | tuple[str, list[str]] | list[str]
# Lines that are read ahead: enough for like lengths to meet in a batch, few enough to hold in memory.
CHUNK = 1024
KEYS = ("text", "pair")
# Of a pair whose second is several texts.
CHOICES = "choices"
NAMES = {dict: "object", list: "list", bool: "boolean", int: "number", float: "number"}
VERBATIM = "--plain takes every line as it is"


@dataclass(frozen=True)
class Source:
    """Where the requests come from: arguments, else a file's lines, else those of standard input.

    Attributes:
        plain: whether a line is a text even where it is JSON.
        pairs: whether a request may be a pair of texts.
        words: whether a text may come in words.
        keys: what a JSON object calls the two of a pair; the second is a list where it is "choices".
    """

    texts: Sequence[str]
    file: Path | None
    plain: bool = False
    pairs: bool = False
    words: bool = False
    keys: tuple[str, str] = KEYS

    def chunks(self) -> Iterator[Sequence[Request]]:
        """The requests in lists: of lines those that are there, `CHUNK` at most.

        Raises:
            InputError: nothing is given, the file cannot be read, or a line holds no text. Those before a bad line
                come first, unless the first list would hold it: then no model need be loaded to refuse it.
        """
        if self.texts and self.file:
            raise InputError("Texts stand in the command line and in --input; give one of them.")
        if self.texts:
            yield from (self.texts[at : at + CHUNK] for at in range(0, len(self.texts), CHUNK))
        elif self.file:
            try:
                with self.file.open("rb") as stream:
                    yield from self._read(stream)
            except OSError as error:
                raise InputError(f"{self.file} cannot be read: {error.strerror}.") from error
        elif sys.stdin is None or sys.stdin.isatty():
            raise InputError("Nothing to read: give texts after the model, lines on standard input, or --input FILE.")
        else:
            yield from self._read(sys.stdin.buffer)

    def resume(self, number: int) -> str:
        """How to go on from a request, in a sentence."""
        if self.texts:
            return f"The texts before it are answered; go on from text {number}."
        command = f" (tail -n +{number} {self.file})" if self.file else ""
        return f"The lines before it are answered; go on from line {number}{command}."

    def _read(self, stream: IO[bytes]) -> Iterator[list[Request]]:
        number = 0
        for raws in waiting(stream, CHUNK):
            good: list[Request] = []
            try:
                for raw in raws:
                    good.append(self._request(raw, number + len(good) + 1))
            except InputError:
                if number and good:
                    yield good
                raise
            yield good
            number += len(good)

    def _request(self, raw: bytes, number: int) -> Request:
        where = f"Line {number} of {self.file or 'standard input'}"
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InputError(f"{where} is not UTF-8 (byte {error.start + 1}). Convert it to UTF-8.") from error
        found = line if self.plain else parse(line, where, self.keys)
        if not self.pairs and isinstance(found, tuple):
            raise InputError(f'{where} is a pair of texts; this command takes single ones, without "pair".')
        if not self.words and isinstance(found, list):
            raise InputError(f'{where} is a text in words; this command takes whole ones, with a string as "text".')
        return found


def parse(line: str, where: str, keys: tuple[str, str] = KEYS) -> Request:
    """The text or pair of a line: a JSON string, an object with the first key and perhaps the second, or the line.

    The text of an object may be a list of words.

    Raises:
        InputError: JSON of another form, or an object that breaks off.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        if line.lstrip().startswith('{"'):
            raise InputError(f"{where} begins as a JSON object and is none ({error}). {VERBATIM}.") from error
        return line
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise InputError(
            f"{where} is a JSON {_kind(value)}, {_short(line)}, and no text. Put it in quotes; or {VERBATIM}."
        )
    return _from_object(value, where, keys)


def _from_object(value: dict[str, Any], where: str, keys: tuple[str, str]) -> Request:
    first, second = keys
    if first not in value:
        has = ", ".join(sorted(value)) or "none"
        raise InputError(f'{where} is a JSON object without "{first}"; its keys are: {_short(has)}.')
    text, other = value[first], value.get(second)
    if other is None and (words := _texts(text)) is not None:
        return words
    if second == CHOICES and isinstance(text, str) and (choices := _texts(other)) is not None:
        return text, choices
    for name, part in zip(keys, [text] if other is None else [text, other], strict=False):
        if not isinstance(part, str):
            raise InputError(f'{where}: "{name}" is a JSON {_kind(part)}, {_short(json.dumps(part))}, and no string.')
    return text if other is None else (text, other)


def _texts(value: Any) -> list[str] | None:
    return value if isinstance(value, list) and all(isinstance(one, str) for one in value) else None


def _kind(value: Any) -> str:
    return next((name for kind, name in NAMES.items() if isinstance(value, kind)), "null")


def _short(text: str) -> str:
    return printable(text if len(text) <= 40 else text[:37] + "...")


def read_arrays(paths: Sequence[Request]) -> list[Any]:
    """The array in each .npy file, for a model that reads arrays; other paths are for its processor to read.

    Raises:
        InputError: a .npy file that cannot be read.
    """
    found = list[Any]()
    for path in paths:
        if not str(path).endswith(".npy"):
            found.append(path)
            continue
        try:
            found.append(np.load(str(path), allow_pickle=False))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{_short(str(path))} cannot be read as a .npy file ({error}). The model reads arrays: give the path "
                "of one file a request, as numpy.save writes it, or of an image or a WAV file."
            ) from error
    return found


def write(answers: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line on standard output, at once."""
    for answer in answers:
        sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
    sys.stdout.flush()
