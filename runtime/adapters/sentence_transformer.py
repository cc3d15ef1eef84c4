"""A compiled model as sentence-transformers' SentenceTransformer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.backends.onnx.names import IDS
from headrace.errors import InputError
from headrace.ir import Similarity, Task
from headrace.runtime.adapters import mteb
from headrace.runtime.adapters.opening import device_of, opened, require_here, require_known
from headrace.runtime.model import CompiledModel
from headrace.runtime.tasks.answers.precision import Precision, quantised, read_precision
from headrace.runtime.tasks.answers.vectors import normalise, similarity, similarity_pairwise
from headrace.runtime.text.prompts import Verbatim
from headrace.tasks import answering

if TYPE_CHECKING:
    from headrace.runtime.api import Source

QUERY = ("query",)
DOCUMENT = ("document", "passage", "corpus")


class Card:
    """What evaluators of sentence-transformers leave behind: `metrics`, by the evaluator's name."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.metrics: dict[str, dict[str, Any]] = {}

    def set_evaluation_metrics(self, evaluator: Any, metrics: Mapping[str, Any], epoch: int = 0, step: int = 0) -> None:
        """Keep an evaluator's metrics."""
        self.metrics[getattr(evaluator, "name", "") or getattr(evaluator, "description", "evaluation")] = dict(metrics)


class SentenceTransformer:
    """What sentence-transformers' class answers, under its names, by a compiled model.

    `util.*` and evaluators of sentence-transformers, MTEB (`mteb.evaluate(model, tasks)`) and LangChain (as an
    `Embeddings`) take it. Texts beyond the model's limit are truncated, as there; a batch is packed by tokens unless
    `batch_size` is given.

    Attributes:
        compiled: the compiled model.
        prompts: by their names; `default_prompt_name` is the one that goes before texts without another.
        truncate_dim: how many of a vector's numbers are kept; None keeps all.
    """

    def __init__(
        self,
        model_name_or_path: CompiledModel | Source,
        *,
        device: Any = None,
        prompts: Mapping[str, str | None] | None = None,
        default_prompt_name: str | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        model_kwargs: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Compile a model, or take one.

        Args:
            model_name_or_path: as `headrace.compile` takes it, a folder that `save` or `export_onnx` wrote, or a
                compiled model.
            device: "cpu", "cuda", "cuda:1"; None takes the best present.
            prompts: over those of the folder.
            similarity_fn_name: cosine, dot, euclidean or manhattan, over what the folder says.
            model_kwargs: its `dtype` is taken.
            others: sentence-transformers' other arguments, refused with what has their effect here.

        Raises:
            HeadraceError: whatever `headrace.compile` refuses.
        """
        require_known(others, "SentenceTransformer")
        self.compiled = opened(
            model_name_or_path, "embed", "embed", device, model_kwargs, trust_remote_code=trust_remote_code,
            revision=revision,
        )  # fmt: skip
        text = self.compiled.program.facts.text
        self.prompts: dict[str, str | None] = dict(prompts or text.prompts)
        for name in ("query", "document"):
            self.prompts.setdefault(name, None)
        self.default_prompt_name = default_prompt_name or text.default_prompt
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            raise InputError(self._no_prompt(self.default_prompt_name))
        self.similarity_fn_name = similarity_fn_name or str(self.compiled.program.facts.similarity)
        self.truncate_dim, self.max_seq_length = truncate_dim, self.compiled.max_length
        self.model_card_data = Card()

    def encode(
        self,
        inputs: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **others: Any,
    ) -> Any:
        """The vector of each text: [n, d], or [d] of one text alone.

        Args:
            inputs: a text, or any number of them; `sentences` is their older name. Or batches of MTEB.
            batch_size: None packs by tokens.
            output_value: "sentence_embedding"; "token_embeddings" for a tensor [t, d] a text; or None for a dict a text
                of both and the `input_ids` [t], of one pass, unpadded.
            precision: float32, int8, uint8, binary or ubinary.
            convert_to_numpy: an array; neither this nor `convert_to_tensor` gives a list of tensors.
            convert_to_tensor: one tensor.
            normalize_embeddings: to unit length, besides what the folder's modules do.
            truncate_dim: keep the first so many numbers.

        Raises:
            InputError: a text or an option that is not as accepted.
        """
        given = others.pop("sentences", None) if inputs is None else inputs
        if (asked := mteb.asked(others)) is not None:
            given, prompt = mteb.texts(given), mteb.prompt(self.prompts, asked)
        require_known(others, "encode")
        require_here(device, self.compiled)
        options: dict[str, Any] = {
            "prompt": self._prompt(prompt, prompt_name), "batch_size": batch_size, "progress": show_progress_bar,
            "truncate": True, "max_length": self.max_seq_length,
        }  # fmt: skip
        one = isinstance(given, str)
        if output_value == "token_embeddings":
            rows = self.compiled.token_embed(given, output="torch", **options)
            return rows[0] if one else rows
        if output_value is None:
            items = self._items(given, truncate_dim, **options)
            return items[0] if one else items
        if output_value != "sentence_embedding":
            raise InputError(
                f"output_value is {output_value!r}; sentence_embedding, token_embeddings and None are accepted."
            )
        found = self._finished(self.compiled.embed(given, **options), normalize_embeddings, truncate_dim, precision)
        made = found if convert_to_numpy and not convert_to_tensor else _tensor(found)
        made = made[0] if one else made
        return made if one or convert_to_numpy or convert_to_tensor else list(made)

    def encode_query(self, inputs: Any = None, prompt_name: str | None = None, **options: Any) -> Any:
        """`encode` by the prompt for queries, where there is one and no other is given."""
        return self.encode(inputs, self._side(QUERY, prompt_name, options), **options)

    def encode_document(self, inputs: Any = None, prompt_name: str | None = None, **options: Any) -> Any:
        """`encode` by the prompt for documents, where there is one and no other is given."""
        return self.encode(inputs, self._side(DOCUMENT, prompt_name, options), **options)

    def embed_query(self, text: str) -> list[float]:
        """A query's vector, as LangChain asks for it."""
        found: list[float] = self.encode_query(text).tolist()
        return found

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The documents' vectors, as LangChain asks for them."""
        found: list[list[float]] = self.encode_document(texts).tolist()
        return found

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """How near every vector [n, d] is to every other [m, d]: a tensor [n, m]."""
        return self._compared(similarity, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """How near each vector [n, d] is to the one in its place: a tensor [n]."""
        return self._compared(similarity_pairwise, embeddings1, embeddings2)

    @property
    def similarity_fn_name(self) -> str:
        """What compares vectors: cosine, dot, euclidean or manhattan."""
        return str(self._similarity)

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: Any) -> None:
        """Choose it.

        Raises:
            InputError: it is none.
        """
        chosen = getattr(name, "value", name)
        if chosen not in list(Similarity):
            raise InputError(f"similarity_fn_name is {chosen!r}; choose from {', '.join(Similarity)}.")
        self._similarity = Similarity(chosen)

    def get_embedding_dimension(self) -> int:
        """How long a vector of `encode` is."""
        width = answering(self.compiled.program, Task.EMBED).width
        return width if self.truncate_dim is None else min(width, self.truncate_dim)

    def get_sentence_embedding_dimension(self) -> int:
        """`get_embedding_dimension` by its older name."""
        return self.get_embedding_dimension()

    def get_max_seq_length(self) -> int | None:
        """The tokens that a text is truncated to; None leaves it to the folder and the model."""
        return self.max_seq_length

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Inside, vectors have so many numbers."""
        before = self.truncate_dim
        self.truncate_dim = truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings

    @property
    def tokenizer(self) -> Any:
        """A copy of the tokenizer."""
        return self.compiled.tokenizer

    @property
    def device(self) -> Any:
        """Where the model runs, as torch's device."""
        return device_of(self.compiled)

    @property
    def mteb_model_meta(self) -> Any:
        """What MTEB wants to know of a model; it asks only models that have this."""
        return mteb.meta(self.compiled)

    def __repr__(self) -> str:
        """The compiled model that answers."""
        return f"SentenceTransformer({self.compiled!r})"

    def _finished(
        self, vectors: NDArray[np.float32], unit: bool, kept: int | None, precision: str | None
    ) -> NDArray[Any]:
        """As sentence-transformers does after the modules: cut, to unit length, in fewer bits."""
        kept = self.truncate_dim if kept is None else kept
        cut = vectors[:, :kept] if kept is not None else vectors
        kind, _ = read_precision(precision, None, cut.shape[1])
        unit_vectors = normalise(cut) if unit else cut
        return unit_vectors if kind is Precision.FLOAT32 else quantised(unit_vectors, kind, None)

    def _items(self, given: Any, kept: int | None, **options: Any) -> list[dict[str, Any]]:
        """Everything of one pass, a text at a time."""
        found = self.compiled.run(given, (Task.EMBED, Task.TOKEN_EMBED), **options)
        vectors = self._finished(found[Task.EMBED], False, kept, None)
        names = (IDS, "token_embeddings", "sentence_embedding")
        rows = zip(found["token_ids"], found[Task.TOKEN_EMBED], vectors, strict=True)
        return [dict(zip(names, map(_tensor, row), strict=True)) for row in rows]

    def _side(self, names: tuple[str, ...], prompt_name: str | None, options: Mapping[str, Any]) -> str | None:
        if prompt_name is not None or options.get("prompt") is not None:
            return prompt_name
        return next((name for name in names if name in self.prompts), None)

    def _prompt(self, prompt: str | None, name: str | None) -> Verbatim:
        """The text of the one that is given, else of the default."""
        if prompt is None:
            name = self.default_prompt_name if name is None else name
            if name is not None and name not in self.prompts:
                raise InputError(self._no_prompt(name))
            prompt = None if name is None else self.prompts[name]
        return Verbatim(prompt or "")

    def _no_prompt(self, name: str) -> str:
        return f"There is no prompt named {name!r}; prompts are {', '.join(self.prompts)}. Pass a text as prompt=."

    def _compared(self, compare: Callable[..., Any], a: Any, b: Any) -> Any:
        return _tensor(compare(_array(a), _array(b), self._similarity))


def _array(given: Any) -> Any:
    """Vectors of torch, perhaps on a device, as an array; several in a list together."""
    if isinstance(given, (list, tuple)):
        return np.stack([_array(one) for one in given]) if given else np.empty((0, 0), np.float32)
    return given.detach().cpu().float().numpy() if hasattr(given, "detach") else given


def _tensor(made: NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(made)
