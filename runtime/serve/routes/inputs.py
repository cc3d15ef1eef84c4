"""The forms of texts in bodies, which several routes share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema

TEXT = {"type": "string"}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def _many(one: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": one, "minItems": 1}


def _is_ids(given: Any) -> bool:
    return isinstance(given, list) and set(map(type, given)) == {int}  # which no bool is


def _texts(given: Any) -> Any:
    if isinstance(given, str) or (isinstance(given, list) and all(isinstance(one, str) for one in given)):
        return given
    raise ValueError("a string or a list of strings is accepted")


def _texts_or_ids(given: Any) -> Any:
    if _is_ids(given) or (isinstance(given, list) and given and all(map(_is_ids, given))):
        return given
    try:
        return _texts(given)
    except ValueError:
        raise ValueError("a string, a list of strings, token ids or a list of token ids is accepted") from None


def _predicted(given: Any) -> Any:
    """As text-embeddings-inference reads them: two strings are a pair, lists of one or two are many."""
    fits = isinstance(given, str) or (isinstance(given, list) and bool(given))
    if fits and isinstance(given, list):
        rows = given if all(isinstance(one, list) for one in given) else [given]
        fits = all(1 <= len(row) <= 2 and all(isinstance(one, str) for one in row) for row in rows)
    if not fits:
        raise ValueError("a string, a pair of strings, or a list of lists of one or two strings is accepted")
    return given


Texts = Annotated[Any, AfterValidator(_texts), WithJsonSchema({"anyOf": [TEXT, _many(TEXT)]})]
TextsOrIds = Annotated[
    Any, AfterValidator(_texts_or_ids), WithJsonSchema({"anyOf": [TEXT, _many(TEXT), IDS, _many(IDS)]})
]
Predicted = Annotated[
    Any, AfterValidator(_predicted), WithJsonSchema({"anyOf": [TEXT, _many(TEXT), _many(_many(TEXT))]})
]
Model = Annotated[str | None, Field(description="Its name; may be left out where one model alone could answer.")]
Truncate = Annotated[bool, Field(description="Cut longer texts to what the model reads, in place of refusing them.")]
PromptName = Annotated[str | None, Field(description="A prompt's name in the model's folder.")]


def listed(given: Any) -> list[Any]:
    """Texts as a list."""
    return [given] if isinstance(given, str) else given


def listed_ids(given: Any) -> tuple[list[Any], bool]:
    """Texts or lists of ids, and whether they are ids."""
    if isinstance(given, str):
        return [given], False
    if _is_ids(given):
        return [given], True
    return given, bool(given) and isinstance(given[0], list)
