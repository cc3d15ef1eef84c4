"""The methods that answer vectors."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, Literal, Unpack, overload

from headrace.errors import InputError
from headrace.ir import Task
from headrace.runtime.engine.engine import Array
from headrace.runtime.methods.calling import Calling
from headrace.runtime.tasks.answers.output import NUMPY, as_output
from headrace.runtime.tasks.answers.vectors import compared_by, similarity, similarity_pairwise
from headrace.runtime.tasks.embed import embed
from headrace.runtime.tasks.interface import Options, Requests
from headrace.runtime.tasks.multi_embed import multi_embed
from headrace.runtime.tasks.sparse_embed import SparseVectors, sparse_embed, vocabulary_of, words
from headrace.runtime.tasks.token_embed import token_embed
from headrace.runtime.text.prompts import side_prompt

Numpy = Literal["numpy"]


class EmbedOptions(Options, total=False):
    """Those of `embed` but for the prompt."""

    normalize: bool | None
    dimensions: int | None
    precision: str | None
    ranges: Any


class Embedding(Calling):
    """A compiled model as what makes vectors of texts.

    `output` of each method says what they come in: "numpy" arrays, "torch" tensors, or "arrow" arrays of pyarrow.
    """

    @overload
    def embed(
        self, texts: Requests, normalize: bool | None = ..., dimensions: int | None = ..., prompt: str | None = ...,
        *, prompt_name: str | None = ..., precision: str | None = ..., ranges: Any = ..., output: Numpy = ...,
        **options: Unpack[Options],
    ) -> Array: ...  # fmt: skip
    @overload
    def embed(
        self, texts: Requests, normalize: bool | None = ..., dimensions: int | None = ..., prompt: str | None = ...,
        *, prompt_name: str | None = ..., precision: str | None = ..., ranges: Any = ..., output: str,
        **options: Unpack[Options],
    ) -> Any: ...  # fmt: skip
    def embed(
        self, texts: Requests, normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
        *, prompt_name: str | None = None, precision: str | None = None, ranges: Any = None, output: str = NUMPY,
        **options: Unpack[Options],
    ) -> Any:  # fmt: skip
        """One vector a text, float32 [n, d].

        Args:
            texts: texts, token ids, or both; token ids are taken as they are.
            normalize: to unit length; None does as the sentence-transformers folder does, else not.
            dimensions: keep the first so many, for models trained so (Matryoshka); applied before normalising.
            prompt: a prompt's name in the folder, or its text; None takes the folder's default.
            prompt_name: a prompt's name in the folder, and nothing else.
            precision: "int8" and "uint8" count in 255 steps between each dimension's ranges; "binary" and "ubinary"
                keep the sign alone, eight a number. None is "float32".
            ranges: of int8 and uint8, [2, d]: `headrace.ranges_of` a representative set; None takes those of the
                answer itself.
            output: "numpy", "torch" (a tensor [n, d]) or "arrow" (a FixedSizeListArray).
            options: those of every task, `headrace.runtime.tasks.interface.Options`.

        Raises:
            TaskNotEnabledError: the model does not embed.
            InputError: a text or an option that is not as accepted.
            TargetError: `output` needs a library that is not installed.
        """
        made = embed(
            self._call(Task.EMBED, **options), texts, normalize, dimensions, prompt, prompt_name, precision, ranges
        )
        return as_output(made, output)

    def embed_query(self, texts: Requests, **options: Unpack[EmbedOptions]) -> Array:
        """`embed` by the folder's prompt for queries, where it has one. Options as there, but for the prompt."""
        _refuse_prompt(options, "embed_query")
        return self.embed(texts, prompt=side_prompt(self.program, "query"), **options)

    def embed_document(self, texts: Requests, **options: Unpack[EmbedOptions]) -> Array:
        """`embed` by the folder's prompt for documents, where it has one. Options as there, but for the prompt."""
        _refuse_prompt(options, "embed_document")
        return self.embed(texts, prompt=side_prompt(self.program, "document"), **options)

    @overload
    def token_embed(
        self, texts: Requests, prompt: str | None = ..., *, prompt_name: str | None = ..., output: Numpy = ...,
        **options: Unpack[Options],
    ) -> list[Array]: ...  # fmt: skip
    @overload
    def token_embed(
        self, texts: Requests, prompt: str | None = ..., *, prompt_name: str | None = ..., output: str,
        **options: Unpack[Options],
    ) -> Any: ...  # fmt: skip
    def token_embed(
        self, texts: Requests, prompt: str | None = None, *, prompt_name: str | None = None, output: str = NUMPY,
        **options: Unpack[Options],
    ) -> Any:  # fmt: skip
        """One vector a token, special tokens included: float32 [t, d] a text. Prompts and options as for `embed`.

        Args:
            output: "numpy" and "torch" give a list, "arrow" a ListArray of FixedSizeListArrays.
        """
        made = token_embed(self._call(Task.TOKEN_EMBED, **options), texts, prompt, prompt_name)
        return as_output(made, output)

    @overload
    def sparse_embed(
        self, texts: Requests, prompt: str | None = ..., *, prompt_name: str | None = ..., max_active: int | None = ...,
        output: Numpy = ..., **options: Unpack[Options],
    ) -> SparseVectors: ...  # fmt: skip
    @overload
    def sparse_embed(
        self, texts: Requests, prompt: str | None = ..., *, prompt_name: str | None = ..., max_active: int | None = ...,
        output: str, **options: Unpack[Options],
    ) -> Any: ...  # fmt: skip
    def sparse_embed(
        self, texts: Requests, prompt: str | None = None, *, prompt_name: str | None = None,
        max_active: int | None = None, output: str = NUMPY, **options: Unpack[Options],
    ) -> Any:  # fmt: skip
        """One sparse vector a text, as (indices, weights), with `.csr()` for SciPy. Prompts and options as for `embed`.

        Args:
            max_active: keep so many of the largest numbers; None does as the folder says, else keeps all.
            output: "torch" gives a sparse COO tensor [n, d], "arrow" a ListArray of structs of index and weight.
        """
        made = sparse_embed(self._call(Task.SPARSE_EMBED, **options), texts, prompt, prompt_name, max_active)
        return as_output(made, output)

    @overload
    def multi_embed(
        self, texts: Requests, side: str = ..., prompt: str | None = ..., *, prompt_name: str | None = ...,
        output: Numpy = ..., **options: Unpack[Options],
    ) -> list[Array]: ...  # fmt: skip
    @overload
    def multi_embed(
        self, texts: Requests, side: str = ..., prompt: str | None = ..., *, prompt_name: str | None = ...,
        output: str, **options: Unpack[Options],
    ) -> Any: ...  # fmt: skip
    def multi_embed(
        self, texts: Requests, side: str = "document", prompt: str | None = None, *, prompt_name: str | None = None,
        output: str = NUMPY, **options: Unpack[Options],
    ) -> Any:  # fmt: skip
        """A vector for each token of a text that scores, float32 [t, d] a text; `similarity` compares such texts.

        Args:
            side: "query" or "document": each is cut, filled up and scored in its own way, and has its own prompt.
            prompt: as for `embed`; None takes the side's, where the folder has one.
            output: as of `token_embed`.
        """
        made = multi_embed(self._call(Task.MULTI_EMBED, **options), texts, side, prompt, prompt_name)
        return as_output(made, output)

    def sparse_words(self, vectors: SparseVectors, top: int | None = None) -> list[list[tuple[str, float]]]:
        """The tokens and weights of each vector of `sparse_embed`, the heaviest first: `top` of them, None for all.

        Raises:
            InputError: the vectors are not over the tokenizer's vocabulary, or there is no tokenizer.
        """
        if not isinstance(vectors, SparseVectors):
            raise InputError(f"vectors is {reprlib.repr(vectors)}; what sparse_embed answers is accepted.")
        return [words(one, vocabulary_of(self._tokenizer, vectors.width), top) for one in vectors]

    def similarity(self, a: Array, b: Array) -> Array:
        """How near every row of `a` [n, d] is to every row of `b` [m, d]: [n, m]; or every text of many vectors.

        By the cosine, unless the folder names another (similarity_fn_name); distances are negated. Of a model that
        makes several kinds of answers, those of `multi_embed`, a list, are compared by the mean MaxSim, and those of
        `sparse_embed` by their dot products.
        """
        return similarity(a, b, compared_by(self.program, a))

    def similarity_pairwise(self, a: Array, b: Array) -> Array:
        """How near each row of `a` [n, d] is to the row of `b` [n, d] in its place: [n]. As `similarity` else."""
        return similarity_pairwise(a, b, compared_by(self.program, a))


def _refuse_prompt(options: Mapping[str, Any], method: str) -> None:
    for name in ("prompt", "prompt_name"):
        if name in options:
            raise InputError(f"{method} brings the folder's own prompt, and {name}= another. Call embed with {name}=.")
