"""Answers that also read as mappings, for code that is used to dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any


class Record(Mapping[str, Any]):
    """A dataclass whose fields are also keys: `answer.label` is `answer["label"]`, and `dict(answer)` has them all."""

    def __getitem__(self, name: str) -> Any:
        """A field by its name.

        Raises:
            KeyError: there is none of that name.
        """
        if name not in self.__dataclass_fields__:  # type: ignore[attr-defined]
            raise KeyError(f"{name!r}; there are {', '.join(self)}")
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        """The names of the fields, in their order."""
        return (field.name for field in fields(self))  # type: ignore[arg-type]

    def __len__(self) -> int:
        """How many fields."""
        return len(fields(self))  # type: ignore[arg-type]
