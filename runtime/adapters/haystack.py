"""A compiled model as Haystack's embedders: components of a pipeline, for queries and for documents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack import Document, component, default_from_dict, default_to_dict

from headrace.errors import InputError
from headrace.runtime.adapters.opening import opened
from headrace.runtime.model import CompiledModel

if TYPE_CHECKING:
    from headrace.runtime.api import Source


class _Opened:
    """A model that is opened when a pipeline warms up, or with the first run."""

    def __init__(self, model: CompiledModel | Source, device: str | None) -> None:
        self._given, self._device = model, device
        self._model: CompiledModel | None = None

    @property
    def model(self) -> CompiledModel:
        if self._model is None:
            self._model = opened(self._given, "embed", "embed", self._device, None)
        return self._model

    def named(self) -> dict[str, Any]:
        """What a pipeline's file says of it.

        Raises:
            InputError: it is in memory alone.
        """
        if not isinstance(self._given, (str, Path)):
            raise InputError(
                f"The model is {self._given!r}, in memory, and a pipeline is written as text. Save it, and pass the "
                "folder: model.save(FOLDER)."
            )
        return {"model": str(self._given), "device": self._device}


@component
class HaystackTextEmbedder:
    """The vector of a query, by the prompt that the model's folder has for queries."""

    def __init__(self, model: CompiledModel | Source, device: str | None = None) -> None:
        """Open nothing yet.

        Args:
            model: as `headrace.compile` takes it, a folder that `save` or `export_onnx` wrote, or a compiled model.
            device: "cpu", "cuda", "cuda:1"; None takes the best present.
        """
        self._opened = _Opened(model, device)

    def warm_up(self) -> None:
        """Load or compile the model, and what embeds."""
        self._opened.model.engine.lane("embed")

    @component.output_types(embedding=list[float])  # type: ignore[untyped-decorator]
    def run(self, text: str) -> dict[str, list[float]]:
        """The text's vector; texts beyond the model's limit are truncated."""
        return {"embedding": self._opened.model.embed_query([text], truncate=True, progress=False)[0].tolist()}

    def to_dict(self) -> dict[str, Any]:
        """As Haystack writes a pipeline; InputError where the model is in memory alone."""
        return dict(default_to_dict(self, **self._opened.named()))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HaystackTextEmbedder:
        """What `to_dict` wrote."""
        made: HaystackTextEmbedder = default_from_dict(cls, data)
        return made


@component
class HaystackDocumentEmbedder:
    """Documents with their vectors, by the prompt that the model's folder has for documents."""

    def __init__(
        self,
        model: CompiledModel | Source,
        device: str | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
    ) -> None:
        """Open nothing yet.

        Args:
            model: as of `HaystackTextEmbedder`.
            device: likewise.
            meta_fields_to_embed: fields of a document's meta whose values go before its content, where there are any.
            embedding_separator: stands between them.
        """
        self._opened = _Opened(model, device)
        self._fields, self._separator = list(meta_fields_to_embed or ()), embedding_separator

    def warm_up(self) -> None:
        """Load or compile the model, and what embeds."""
        self._opened.model.engine.lane("embed")

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """The documents, each a copy with its vector; texts beyond the model's limit are truncated.

        Raises:
            InputError: something that is no document.
        """
        if not isinstance(documents, list) or not all(isinstance(one, Document) for one in documents):
            raise InputError("documents are no list of Haystack's Document. For a text alone, HaystackTextEmbedder.")
        texts = [self._text(one) for one in documents]
        vectors = self._opened.model.embed_document(texts, truncate=True, progress=False)
        made = zip(documents, vectors.tolist(), strict=True)
        return {"documents": [replace(one, embedding=vector) for one, vector in made]}

    def _text(self, document: Document) -> str:
        said = [str(document.meta[name]) for name in self._fields if document.meta.get(name) is not None]
        return self._separator.join([*said, document.content or ""])

    def to_dict(self) -> dict[str, Any]:
        """As Haystack writes a pipeline; InputError where the model is in memory alone."""
        own = {"meta_fields_to_embed": self._fields, "embedding_separator": self._separator}
        return dict(default_to_dict(self, **self._opened.named(), **own))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HaystackDocumentEmbedder:
        """What `to_dict` wrote."""
        made: HaystackDocumentEmbedder = default_from_dict(cls, data)
        return made
