"""A compiled model as sentence-transformers' CrossEncoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.ir import Activation, Task
from headrace.runtime.adapters.opening import device_of, opened, require_here, require_known
from headrace.runtime.model import CompiledModel
from headrace.runtime.tasks.answers.activation import activate
from headrace.runtime.text.columns import unpacked

if TYPE_CHECKING:
    from headrace.runtime.api import Source


class CrossEncoder:
    """What sentence-transformers' class answers, under its names, by a compiled model.

    Pairs beyond the model's limit are truncated, the longer text first, as there; a batch is packed by tokens unless
    `batch_size` is given. Of one label a score is a number, of several an array of them.

    Attributes:
        compiled: the compiled model.
        max_seq_length: tokens a pair at most; None leaves it to the folder and the model. `max_length` is its older
            name.
        activation_fn: what makes scores of logits, a function of a tensor [n, labels]; None follows the folder, else is
            the sigmoid of one label, and nothing of several.
    """

    def __init__(
        self,
        model_name_or_path: CompiledModel | Source,
        *,
        device: Any = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        max_length: int | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        model_kwargs: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Compile a model, or take one. Arguments and errors as of `SentenceTransformer`.

        Raises:
            TaskNotEnabledError: it neither scores nor classifies.
        """
        require_known(others, "CrossEncoder")
        self.compiled = opened(
            model_name_or_path, "score", "classify", device, model_kwargs, trust_remote_code=trust_remote_code,
            revision=revision,
        )  # fmt: skip
        self.max_seq_length, self.activation_fn = max_length, activation_fn

    def predict(
        self,
        inputs: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        *,
        sentences: Any = None,
        **others: Any,
    ) -> Any:
        """The score of each pair: [n], or [n, labels] of several labels; without the first axis of one pair alone.

        Args:
            inputs: pairs, or one: `("a", "b")` is a pair here. `sentences` is their older name.
            activation_fn: over the model's, for this call.
            apply_softmax: of several labels.
            convert_to_numpy: an array; neither this nor `convert_to_tensor` gives a list of tensors.

        Raises:
            InputError: something that is no pair, or an option that is not as accepted.
        """
        require_known(others, "predict")
        require_here(device, self.compiled)
        given = unpacked(sentences if inputs is None else inputs, "The pairs")
        given = given if isinstance(given, (list, tuple)) else list(given)
        one = bool(given) and not isinstance(given[0], (list, tuple))
        logits = self._logits(
            [tuple(given)] if one else list(given), prompt=prompt, prompt_name=prompt_name, batch_size=batch_size,
            progress=show_progress_bar, truncate=True, max_length=self.max_seq_length,
        )  # fmt: skip
        scores = self._scores(logits, activation_fn or self.activation_fn)
        if apply_softmax and scores.ndim > 1:
            scores = activate(scores, Activation.SOFTMAX)
        made: Any = scores
        if convert_to_tensor or not convert_to_numpy:
            import torch

            made = torch.from_numpy(scores)
        made = made[0] if one else made
        return made if one or convert_to_numpy or convert_to_tensor else list(made)

    def rank(
        self, query: str, documents: Any, top_k: int | None = None, return_documents: bool = False, **options: Any
    ) -> list[dict[str, Any]]:
        """The documents, best first, as {"corpus_id": ..., "score": ...}, with "text" where they are to be returned.

        Options are those of `predict`.

        Raises:
            InputError: the model has several labels.
        """
        listed = list(unpacked(documents, "The documents"))
        if self.num_labels != 1:
            raise InputError(
                f"rank needs one label, and the model has {self.num_labels}. Call predict on the pairs instead."
            )
        scores = self.predict([(query, document) for document in listed], **options).tolist() if listed else []
        order = sorted(range(len(scores)), key=lambda place: -scores[place])[:top_k]
        found: list[dict[str, Any]] = [{"corpus_id": place, "score": scores[place]} for place in order]
        return [one | {"text": listed[one["corpus_id"]]} for one in found] if return_documents else found

    @property
    def num_labels(self) -> int:
        """How many labels the head has."""
        labels = self.compiled.program.facts.labels
        return 1 if labels is None else len(labels.names)

    @property
    def max_length(self) -> int | None:
        """`max_seq_length` by its older name."""
        return self.max_seq_length

    @max_length.setter
    def max_length(self, tokens: int | None) -> None:
        """Set it."""
        self.max_seq_length = tokens

    @property
    def tokenizer(self) -> Any:
        """A copy of the tokenizer."""
        return self.compiled.tokenizer

    @property
    def device(self) -> Any:
        """Where the model runs, as torch's device."""
        return device_of(self.compiled)

    def __repr__(self) -> str:
        """The compiled model that answers."""
        return f"CrossEncoder({self.compiled!r})"

    def _logits(self, pairs: list[Any], **options: Any) -> NDArray[np.float32]:
        """The head's own numbers, [n, labels]."""
        if Task.CLASSIFY in self.compiled.tasks:
            found = [list(one.scores.values()) for one in self.compiled.classify(pairs, raw=True, **options)]
        else:
            found = [[score] for score in self.compiled.score(pairs, raw=True, **options)]
        return np.array(found, np.float32).reshape(len(pairs), self.num_labels)

    def _scores(self, logits: NDArray[np.float32], chosen: Callable[[Any], Any] | None) -> NDArray[np.float32]:
        if chosen is not None:
            import torch

            scores: NDArray[np.float32] = chosen(torch.from_numpy(logits)).float().numpy()
        else:
            scores = activate(logits, self._activation())
        return scores[:, 0] if self.num_labels == 1 and scores.ndim > 1 else scores

    def _activation(self) -> Activation:
        labels = self.compiled.program.facts.labels
        if labels is not None and labels.named:
            return labels.activation
        return Activation.SIGMOID if self.num_labels == 1 else Activation.IDENTITY
