"""A compiled model as LlamaIndex's embedding."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from headrace.runtime.adapters.opening import opened
from headrace.runtime.model import CompiledModel

if TYPE_CHECKING:
    from headrace.runtime.api import Source

# Texts that an index hands over at once, as many as LlamaIndex allows: they are packed by tokens here.
BATCH = 2048


class LlamaIndexEmbedding(BaseEmbedding):  # type: ignore[misc]
    """What LlamaIndex asks of an embedding (`Settings.embed_model`, `VectorStoreIndex(embed_model=...)`).

    Queries and texts each go by the prompt that the model's folder has for them. Texts beyond the model's limit are
    truncated, as LlamaIndex's own embeddings do.
    """

    _model: CompiledModel = PrivateAttr()

    def __init__(self, model: CompiledModel | Source, *, device: Any = None, **options: Any) -> None:
        """Compile a model, or take one.

        Args:
            model: as `headrace.compile` takes it, a folder that `save` or `export_onnx` wrote, or a compiled model.
            device: "cpu", "cuda", "cuda:1"; None takes the best present.
            options: those of LlamaIndex's BaseEmbedding.

        Raises:
            HeadraceError: it cannot be loaded or compiled, or a compiled model was to be moved.
        """
        compiled = opened(model, "embed", "embed", device, None)
        super().__init__(**{"model_name": compiled.program.source.name, "embed_batch_size": BATCH} | options)
        self._model = compiled

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex writes it."""
        return "HeadraceEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        found: list[float] = self._model.embed_query([query], truncate=True, progress=False)[0].tolist()
        return found

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = self._model.embed_document(texts, truncate=True, progress=False).tolist()
        return found

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
