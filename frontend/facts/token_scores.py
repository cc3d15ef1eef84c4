"""Scores by the logits of one or two tokens: what they ask of the model, and a language model that scores so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.errors import LoadError, TraceError, warn
from headrace.frontend.eager.model import DryRun
from headrace.frontend.load.checkpoint import Checkpoint
from headrace.frontend.load.sentence_transformers.modules.chain import Chain, LogitScore
from headrace.frontend.load.sentence_transformers.sentence_modules import SentenceModules
from headrace.ir import ChatRules, Head, TextRules

# The tokens that sentence-transformers' CrossEncoder compares, of a language model that names none.
YES, NO = "yes", "no"
# What in a template shows that it takes a message's content for a list of typed parts, as sentence-transformers tells.
STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")


def require_logits(score: LogitScore | None, seen: DryRun) -> None:
    """Refuse a score of logits that the model does not make.

    Raises:
        TraceError: the model has no logits of a next token, or not of the tokens that are compared.
    """
    if score is None:
        return
    if seen.head is not Head.CAUSAL_LM:
        raise TraceError(
            f"The scores are differences of a language model's logits, and this model ends in {seen.head}. Give the "
            "folder whose config.json names the class with the language model's head in architectures."
        )
    if (highest := max(score.yes, score.no or 0)) >= seen.width:
        raise TraceError(f"The scores compare the token {highest}, and the model has logits of {seen.width}.")


def as_reranker(checkpoint: Checkpoint) -> Checkpoint:
    """A language model's checkpoint as one that scores pairs, as sentence-transformers' CrossEncoder takes it.

    A pair's texts go through the tokenizer's chat template by their roles, where it has one.

    Raises:
        LoadError: the tokenizer has no token for the one or the other answer.
    """
    tokenizer: Any = checkpoint.tokenizer
    known = {} if tokenizer is None else tokenizer.get_vocab()
    if lacking := [token for token in (YES, NO) if token not in known]:
        raise LoadError(
            f"A language model scores a pair by its logits of the tokens {YES} and {NO}, and the tokenizer has no "
            f"{' and no '.join(lacking)}. Save the model as a CrossEncoder with a LogitScore over its own tokens."
        )
    warn(
        f"The language model scores pairs by its logits of the tokens {YES} and {NO}, as sentence-transformers' "
        "CrossEncoder does. One that was trained to rank answers better."
    )
    chain = Chain([LogitScore(known[YES], known[NO])])
    template = getattr(tokenizer, "chat_template", None)
    chat = ChatRules(any(one in str(template) for one in STRUCTURED)) if template else None
    text = TextRules(truncates=True, why="sentence-transformers truncates", chat=chat)
    sentence = SentenceModules((), chain, normalize=False, headless=False, scores=True)
    return replace(checkpoint, sentence=sentence, text=text)
