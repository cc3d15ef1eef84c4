"""sparse_embed: a text as the few numbers of a long vector that are not zero, mostly one a word of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import InputError, missing_library
from headrace.ir import OutputKind
from headrace.runtime.tasks.answers.records import shortest
from headrace.runtime.tasks.interface import Answering, Call, Command, Each, Prompt, PromptName
from headrace.runtime.text.prompts import one_prompt
from headrace.runtime.text.validate import counts

Floats = NDArray[np.float32]


class SparseVector(NamedTuple):
    """The places of a vector that are not zero, ascending (int64), and what stands there (float32)."""

    indices: NDArray[np.int64]
    weights: Floats


@dataclass(frozen=True, eq=False)
class SparseVectors(Sequence[SparseVector]):
    """Sparse vectors of one width, by compressed rows; `np.asarray` makes them dense.

    Attributes:
        offsets: int64 [n + 1], where each vector begins among the others, and where the last ends.
        indices: int64, the places that are not zero.
        weights: float32, what stands there.
        width: how long each vector is.
    """

    offsets: NDArray[np.int64]
    indices: NDArray[np.int64]
    weights: Floats
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        """How many vectors, and how long each is."""
        return len(self), self.width

    def csr(self) -> Any:
        """The same as SciPy's `csr_array`.

        Raises:
            TargetError: SciPy is not installed.
        """
        try:
            from scipy.sparse import csr_array
        except ImportError as error:
            raise (missing_library(error, "SparseVectors.csr") or error) from error
        return csr_array((self.weights, self.indices, self.offsets), shape=self.shape)

    def __len__(self) -> int:
        """How many vectors."""
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, place: int) -> SparseVector: ...
    @overload
    def __getitem__(self, place: slice) -> list[SparseVector]: ...
    def __getitem__(self, place: int | slice) -> SparseVector | list[SparseVector]:
        """One vector, or several."""
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        begin, end = self.offsets[:-1][place], self.offsets[1:][place]
        return SparseVector(self.indices[begin:end], self.weights[begin:end])

    def __iter__(self) -> Iterator[SparseVector]:
        """Each vector."""
        return (self[place] for place in range(len(self)))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Dense, float32 [n, width]."""
        made = np.zeros(self.shape, np.float32)
        made[np.arange(len(self)).repeat(np.diff(self.offsets)), self.indices] = self.weights
        return made if dtype is None else made.astype(dtype)


def sparse_embed(
    call: Call,
    texts: Any,
    prompt: Prompt = None,
    prompt_name: PromptName = None,
    max_active: Annotated[int | None, "Keep so many of the largest numbers."] = None,
) -> SparseVectors:
    """See `CompiledModel.sparse_embed`."""
    call.lane()
    if max_active is not None and not counts(max_active):
        raise InputError(f"max_active is {max_active!r}; an int of 1 and above is accepted.")
    made, listed, requests = each(call, max_active), call.drawn(texts), dict[int, Any]()
    found: list[Any] = [None] * len(listed)
    chosen = one_prompt(call.program, prompt, prompt_name)
    for places, (rows,) in call.answered_together((call.task,), listed, requests, prompt=chosen):
        for place, row in zip(places, rows, strict=True):
            found[place] = made.answer(row, requests[place])
    joined: SparseVectors = made.join(found)
    return joined


def each(call: Call, max_active: int | None = None) -> Each:
    """A text's sparse vector, of the model's own numbers or of its tokens' weights."""
    program = call.program
    most, left_out = program.facts.active if max_active is None else max_active, program.facts.unweighed
    if call.engine.kind(call.task) is OutputKind.LEXICAL_WEIGHTS:
        width = program.signature.vocabulary
        return Each(
            lambda row, one: largest(of_tokens(row[:, 0], one.ids, left_out), most), partial(joined, width=width)
        )
    return Each(lambda row, _: largest(of_vector(row), most), partial(joined, width=call.width))


def of_vector(row: Floats) -> SparseVector:
    """The numbers of a vector [width] that are not zero."""
    indices = np.flatnonzero(row)
    return SparseVector(indices, row[indices].copy())


def of_tokens(weights: Floats, ids: NDArray[np.int64], left_out: Sequence[int]) -> SparseVector:
    """The greatest weight of each token of a text, of weights [t] and ids [t]; those above zero, some ids left out."""
    indices, places = np.unique(ids, return_inverse=True)
    greatest = np.zeros(len(indices), np.float32)
    np.maximum.at(greatest, places, weights)
    there = (greatest > 0) & ~np.isin(indices, left_out)
    return SparseVector(indices[there], greatest[there])


def largest(vector: SparseVector, kept: int | None) -> SparseVector:
    """At most so many of a vector's numbers, the largest by size; None keeps all."""
    if kept is None or len(vector.indices) <= kept:
        return vector
    places = np.sort(np.argsort(-np.abs(vector.weights), kind="stable")[:kept])
    return SparseVector(vector.indices[places], vector.weights[places])


def joined(vectors: Sequence[SparseVector], width: int) -> SparseVectors:
    """Vectors of one width together."""
    offsets = np.cumsum([0, *(len(one.indices) for one in vectors)])
    empty = SparseVector(np.empty(0, np.int64), np.empty(0, np.float32))
    indices, weights = (np.concatenate(column) for column in zip(empty, *vectors, strict=True))
    return SparseVectors(offsets, indices, weights, width)


def vocabulary_of(tokenizer: Any, width: int) -> Any:
    """The tokenizer, if its tokens name the places of vectors of that width.

    Raises:
        InputError: there is none, or the vectors are longer: a feature of an encoder is no token.
    """
    names = 0 if tokenizer is None else len(tokenizer)
    if not names or width > 2 * names:
        raise InputError(f"The vectors have {width} places, and the tokenizer names {names} tokens: they are not its.")
    return tokenizer


def words(vector: SparseVector, tokenizer: Any, top: int | None) -> list[tuple[str, float]]:
    """The tokens of a vector over a tokenizer's vocabulary, the heaviest first."""
    order = np.argsort(-vector.weights, kind="stable")[:top]
    tokens = tokenizer.convert_ids_to_tokens(vector.indices[order].tolist())
    return list(zip(tokens, map(float, vector.weights[order]), strict=True))


def record(vector: SparseVector) -> dict[str, Any]:
    """A vector as JSON."""
    return {"indices": vector.indices.tolist(), "weights": [shortest(weight) for weight in vector.weights]}


TASK = Answering(sparse_embed, Command('One sparse vector a text: {"indices": [...], "weights": [...]}.', record), each)
