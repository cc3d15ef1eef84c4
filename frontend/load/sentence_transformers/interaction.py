"""What a multi-vector pipeline of sentence-transformers says of scoring: which tokens count, how queries are filled."""

from __future__ import annotations

from typing import Any

from headrace.errors import LoadError
from headrace.frontend.load.keys import require_known
from headrace.frontend.load.sentence_transformers.pipeline import Pipeline
from headrace.ir import Expansion, Interaction

MASK = "MultiVectorMask"
SIDES = ("query", "document")
STRATEGIES = ("fixed", "min")


def read_interaction(pipeline: Pipeline, tokenizer: Any) -> Interaction | None:
    """The facts of a multi-vector pipeline; None of any other.

    Raises:
        LoadError: it has no mask that says which tokens count, or says what is not served.
    """
    if not pipeline.interacts:
        return None
    mask = next((step for step in pipeline.steps if step.kind == MASK), None)
    if mask is None:
        raise LoadError(
            f"{pipeline.folder} is a MultiVectorEncoder without a {MASK}, so that nothing says what counts."
        )
    config = require_known(mask.config, mask.where, ("skiplist_words", "skiplist_tasks", "keep_only_token_ids"))
    said, where = pipeline.transformer.config, pipeline.transformer.where
    tasks = config.get("skiplist_tasks") or ["document"]
    return Interaction(
        skipped=_ids(config.get("skiplist_words") or [], tokenizer),
        skips_in=tuple(sorted({tasks} if isinstance(tasks, str) else set(tasks))),
        kept=tuple(config.get("keep_only_token_ids") or ()),
        query_length=said.get("query_length"),
        document_length=said.get("document_length"),
        expansion=_expansion(said.get("query_expansion"), f"{where}'s query_expansion", tokenizer),
    )


def _ids(words: list[str], tokenizer: Any) -> tuple[int, ...]:
    """The tokens of words that are tokens; of the others, none could be told from what is not known."""
    known = {} if tokenizer is None else tokenizer.get_vocab()
    return tuple(known[word] for word in words if word in known)


def _expansion(given: Any, where: str, tokenizer: Any) -> Expansion | None:
    if given is None:
        return None
    said = require_known(given, where, ("strategy", "length", "token", "attend"))
    if (strategy := said.get("strategy")) not in STRATEGIES:
        raise LoadError(f"{where} names the strategy {strategy!r}; {' and '.join(STRATEGIES)} are served.")
    token = said.get("token")
    known = {} if tokenizer is None else tokenizer.get_vocab()
    usual = getattr(tokenizer, "mask_token_id", None)
    filler = known.get(token) if token else usual if usual is not None else getattr(tokenizer, "eos_token_id", None)
    if filler is None:
        raise LoadError(
            f"{where} fills queries with {token or 'a mask or end token'}, which the tokenizer does not have."
        )
    fixed = strategy == "fixed"
    # They take the place of padding, which has a side; what only reaches a least length goes behind.
    left = fixed and getattr(tokenizer, "padding_side", "right") == "left"
    return Expansion(int(said["length"]), int(filler), bool(said.get("attend", False)), fixed, left)
