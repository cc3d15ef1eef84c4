"""Headrace: hand it a Hugging Face model; it knows what the model's attention does, and serves what it can.

Importing this package imports neither torch nor transformers: names are resolved when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.errors import (
    ArtifactError,
    AttentionTypeError,
    HeadraceError,
    HeadraceWarning,
    InputError,
    InputTooLongError,
    LoadError,
    NonFiniteError,
    OutOfMemoryError,
    ParityError,
    TargetError,
    TaskNotEnabledError,
    TraceError,
    VerifyError,
    missing_library,
)
from headrace.utils.gc_freeze import importing
from headrace.utils.scratch import require_cache

if TYPE_CHECKING:
    from headrace.runtime.adapters.cross_encoder import CrossEncoder
    from headrace.runtime.adapters.haystack import HaystackDocumentEmbedder, HaystackTextEmbedder
    from headrace.runtime.adapters.llama_index import LlamaIndexEmbedding
    from headrace.runtime.adapters.sentence_transformer import SentenceTransformer
    from headrace.runtime.api import Lowered, Traced, compile, lower, trace
    from headrace.runtime.artifact.saved_model import load
    from headrace.runtime.compile_towers import compile_towers
    from headrace.runtime.corpora.worker import Embedder
    from headrace.runtime.generate.generation import Generation
    from headrace.runtime.model import CompiledModel
    from headrace.runtime.ragged import Ragged
    from headrace.runtime.serve.on_ray import ray_application
    from headrace.runtime.state.model_state import ModelState, register_model_state
    from headrace.runtime.tasks.answers.precision import ranges_of
    from headrace.runtime.tasks.classify import Classification
    from headrace.runtime.tasks.token_classify import Entity
    from headrace.runtime.two_towers import TwoTowers, load_towers

__version__ = "0.1.0"

# What imports torch's tracer.
TRACING = ("headrace.runtime.api", "headrace.runtime.compile_towers")
# Public names that need torch, and where they live.
LAZY = {
    "compile": "headrace.runtime.api",
    "compile_towers": "headrace.runtime.compile_towers",
    "load_towers": "headrace.runtime.two_towers",
    "TwoTowers": "headrace.runtime.two_towers",
    "trace": "headrace.runtime.api",
    "lower": "headrace.runtime.api",
    "load": "headrace.runtime.artifact.saved_model",
    "CrossEncoder": "headrace.runtime.adapters.cross_encoder",
    "SentenceTransformer": "headrace.runtime.adapters.sentence_transformer",
    "HaystackDocumentEmbedder": "headrace.runtime.adapters.haystack",
    "HaystackTextEmbedder": "headrace.runtime.adapters.haystack",
    "LlamaIndexEmbedding": "headrace.runtime.adapters.llama_index",
    "Embedder": "headrace.runtime.corpora.worker",
    "ray_application": "headrace.runtime.serve.on_ray",
    "Traced": "headrace.runtime.api",
    "Lowered": "headrace.runtime.api",
    "CompiledModel": "headrace.runtime.model",
    "Ragged": "headrace.runtime.ragged",
    "ModelState": "headrace.runtime.state.model_state",
    "register_model_state": "headrace.runtime.state.model_state",
    "Classification": "headrace.runtime.tasks.classify",
    "Entity": "headrace.runtime.tasks.token_classify",
    "Generation": "headrace.runtime.generate.generation",
    "ranges_of": "headrace.runtime.tasks.answers.precision",
}

__all__ = [
    "ArtifactError",
    "AttentionTypeError",
    "Classification",
    "CompiledModel",
    "CrossEncoder",
    "Embedder",
    "Entity",
    "Generation",
    "HaystackDocumentEmbedder",
    "HaystackTextEmbedder",
    "HeadraceError",
    "HeadraceWarning",
    "InputError",
    "InputTooLongError",
    "LlamaIndexEmbedding",
    "LoadError",
    "Lowered",
    "ModelState",
    "NonFiniteError",
    "OutOfMemoryError",
    "ParityError",
    "Ragged",
    "SentenceTransformer",
    "TargetError",
    "TaskNotEnabledError",
    "TraceError",
    "Traced",
    "TwoTowers",
    "VerifyError",
    "__version__",
    "compile",
    "compile_towers",
    "load",
    "load_towers",
    "lower",
    "ranges_of",
    "ray_application",
    "register_model_state",
    "trace",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562).

    Raises:
        TargetError: an optional library that it needs is not installed; the message names the pip line. Or what it
            imports could not make its cache.
    """
    if name not in LAZY:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    if LAZY[name] in TRACING:
        require_cache()
    try:
        with importing():
            return getattr(importlib.import_module(LAZY[name]), name)
    except ImportError as error:
        if (refusal := missing_library(error, f"headrace.{name}")) is None:
            raise
        raise refusal from error


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
