"""The tasks: the list of all, and what is known of each without running anything (contract C)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headrace.ir.signature import Head, OutputKind


class Task(StrEnum):
    """What a caller can ask for."""

    TOKEN_CLASSIFY = "token_classify"
    SCORE = "score"
    CLASSIFY = "classify"
    ZERO_SHOT_CLASSIFY = "zero_shot_classify"
    ANSWER_QUESTION = "answer_question"
    MULTIPLE_CHOICE = "multiple_choice"
    FILL_MASK = "fill_mask"
    GENERATE = "generate"
    EMBED = "embed"
    TOKEN_EMBED = "token_embed"
    SPARSE_EMBED = "sparse_embed"
    MULTI_EMBED = "multi_embed"
    RAW = "raw"


class Needs(StrEnum):
    """What of a route enables a task."""

    ANY_ROUTE = "any route"
    EVERY_TOKEN = "every token of a sequence in one step"
    DECODING = "a route that decodes"


@dataclass(frozen=True)
class TaskRules:
    """What is known of a task, which the module of `runtime/tasks` that is named as it is answers.

    Attributes:
        does: what a model of this task can do, in words.
        outputs: what answers it, the first that the program has.
        heads: the heads that offer it; sentence-transformers modules may offer it besides.
        one_label: whether they do so only with one label, of texts.
        entails: whether they do so only with a label for what follows from a text, beside others.
        needs: what enables it.
    """

    does: str
    outputs: tuple[OutputKind, ...]
    heads: tuple[Head, ...] = ()
    one_label: bool = False
    entails: bool = False
    needs: Needs = Needs.ANY_ROUTE


# In order: of the tasks that a head offers, the first is its default (C7).
TASK_RULES: Mapping[Task, TaskRules] = {
    Task.TOKEN_CLASSIFY: TaskRules("label tokens", (OutputKind.TOKEN_LOGITS,), (Head.TOKEN,), needs=Needs.EVERY_TOKEN),
    Task.SCORE: TaskRules("score pairs of texts", (OutputKind.SEQUENCE_LOGITS,), (Head.SEQUENCE,), one_label=True),
    Task.CLASSIFY: TaskRules("classify texts", (OutputKind.SEQUENCE_LOGITS,), (Head.SEQUENCE,)),
    Task.ZERO_SHOT_CLASSIFY: TaskRules(
        "classify texts by labels that each call names", (OutputKind.SEQUENCE_LOGITS,), (Head.SEQUENCE,), entails=True
    ),
    Task.ANSWER_QUESTION: TaskRules(
        "find the parts of a text that answer a question",
        (OutputKind.SPAN_LOGITS,),
        (Head.SPAN,),
        needs=Needs.EVERY_TOKEN,
    ),
    Task.MULTIPLE_CHOICE: TaskRules(
        "choose among texts that go on from one", (OutputKind.SEQUENCE_LOGITS,), (Head.CHOICE,)
    ),
    Task.FILL_MASK: TaskRules(
        "fill in masked tokens", (OutputKind.VOCABULARY_LOGITS,), (Head.MASKED_LM,), needs=Needs.EVERY_TOKEN
    ),
    Task.GENERATE: TaskRules(
        "generate text",
        (OutputKind.VOCABULARY_LOGITS,),
        (Head.CAUSAL_LM, Head.SEQ2SEQ_LM),
        needs=Needs.DECODING,
    ),
    Task.EMBED: TaskRules("embed texts", (OutputKind.EMBEDDING,), (Head.NONE, Head.CAUSAL_LM, Head.SEQ2SEQ_LM)),
    Task.TOKEN_EMBED: TaskRules(
        "embed single tokens",
        (OutputKind.TOKEN_EMBEDDING, OutputKind.HIDDEN),
        (Head.NONE, Head.CAUSAL_LM, Head.SEQ2SEQ_LM),
        needs=Needs.EVERY_TOKEN,
    ),
    Task.SPARSE_EMBED: TaskRules("embed texts sparsely", (OutputKind.SPARSE_EMBEDDING, OutputKind.LEXICAL_WEIGHTS)),
    Task.MULTI_EMBED: TaskRules(
        "embed texts as many vectors",
        (OutputKind.MULTI_EMBEDDING, OutputKind.TOKEN_EMBEDDING),
        needs=Needs.EVERY_TOKEN,
    ),
    Task.RAW: TaskRules(
        "return what a head does that no other task is of", (OutputKind.RAW,), (Head.OTHER,), needs=Needs.EVERY_TOKEN
    ),
}
