"""The methods that answer labels, scores and parts of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Unpack

from headrace.ir import Task
from headrace.runtime.methods.calling import Calling
from headrace.runtime.tasks.answer_question import FoundAnswer, answer_question
from headrace.runtime.tasks.classify import Classification, classify
from headrace.runtime.tasks.fill_mask import Fill, fill_mask
from headrace.runtime.tasks.interface import Options, Requests
from headrace.runtime.tasks.multiple_choice import Choice, multiple_choice
from headrace.runtime.tasks.score import score
from headrace.runtime.tasks.token_classify import Aggregation, Entity, token_classify
from headrace.runtime.tasks.zero_shot_classify import TEMPLATE, zero_shot_classify

Pair = tuple[str, str]


class Labelling(Calling):
    """A compiled model as what judges texts, pairs of them and their tokens."""

    def classify(
        self, texts: Requests | Iterable[Pair], prompt: str | None = None, *, raw: bool = False,
        prompt_name: str | None = None, **options: Unpack[Options],
    ) -> list[Classification]:  # fmt: skip
        """The best label of each text or pair of texts, with every label's score. Prompts are as for `embed`.

        Args:
            texts: all of them texts, or all pairs: tuples of two inside a list, also where there is one pair alone.
            raw: the head's logits in place of scores.
        """
        return classify(self._call(Task.CLASSIFY, **options), texts, prompt, raw, prompt_name)

    def score(
        self, pairs: Iterable[Pair], prompt: str | None = None, *, raw: bool = False, prompt_name: str | None = None,
        **options: Unpack[Options],
    ) -> list[float]:  # fmt: skip
        """How well the two texts of each pair fit, by the head's one label; a pair alone is [(text, other)].

        Args:
            prompt: as for `embed`; it goes before the first of the two.
            raw: the head's logit in place of a score.
        """
        return score(self._call(Task.SCORE, **options), pairs, prompt, raw, prompt_name)

    def token_classify(
        self, texts: str | Iterable[str] | Iterable[Sequence[str]], aggregation: Aggregation = "none", *,
        ignore_labels: list[str] | None = None, stride: int | None = None, join: bool = True,
        scores: bool = False, **options: Unpack[Options],
    ) -> list[list[Entity]]:  # fmt: skip
        """The labelled tokens or spans of each text, by transformers' aggregation strategies.

        Args:
            texts: all of them texts, or all lists of words, each of which is then one word to the aggregation.
            aggregation: "none" answers token by token, "simple" joins neighbours of one label; "first", "average" and
                "max" before that give each word one label: its first token's, the best on average, its surest token's.
            ignore_labels: the labels that are left out, as they are answered; None is ["O"], [] leaves none out.
            stride: read texts beyond the model's limit in windows that share so many tokens, and join what they find;
                None refuses or truncates such texts.
            join: False leaves neighbours of one label apart: one answer a token or word.
            scores: every label's score beside the best; of single tokens and words alone.

        Raises:
            InputError: an option that is not as above, or texts that are neither all str nor all lists of words.
            InputTooLongError: a text beyond the model's limit, without `stride` or truncation.
        """
        call = self._call(Task.TOKEN_CLASSIFY, **options)
        return token_classify(call, texts, aggregation, ignore_labels, stride, join, scores)

    def zero_shot_classify(
        self, texts: str | Iterable[str], labels: list[str], *, hypothesis_template: str = TEMPLATE,
        multi_label: bool = False, **options: Unpack[Options],
    ) -> list[Classification]:  # fmt: skip
        """Which of the labels fits each text best, with every label's score, by a model of natural language inference.

        Args:
            labels: what is chosen from; each makes one request of a text.
            hypothesis_template: the sentence that a label makes in place of {}.
            multi_label: whether several may fit: each is then held against its contradiction, not against the others.
            options: with `truncate` long texts give way, never the sentence.

        Raises:
            InputError: no labels, one of them twice, or a template without a place for them.
            InputTooLongError: a text that is too long with a sentence, and is not to be truncated.
        """
        call = self._call(Task.ZERO_SHOT_CLASSIFY, **options)
        return zero_shot_classify(call, texts, labels, hypothesis_template, multi_label)

    def answer_question(
        self, pairs: Iterable[Pair], *, top_k: int = 1, max_answer_len: int = 15, doc_stride: int | None = None,
        max_seq_len: int | None = None, handle_impossible_answer: bool = False, align_to_words: bool = True,
        batch_size: int | None = None, progress: bool | None = None,
    ) -> list[list[FoundAnswer]]:  # fmt: skip
        """The likeliest parts of a context that answer a question: for each pair, `top_k` at most, the best first.

        By the rules of transformers' question-answering pipeline, but that no part comes twice.

        Args:
            pairs: of a question and its context; one alone is [(question, context)].
            max_answer_len: the tokens of an answer at most.
            doc_stride: tokens that neighbouring windows of a long context share; None is 128, or half a window if less.
            max_seq_len: the tokens of a question and a window at most; None is 384, or the model's limit if less.
            handle_impossible_answer: whether an empty answer, that the context holds none, is one too.
            align_to_words: whether an answer that begins or ends within a word takes the whole word.

        Raises:
            InputError: what is no such pair or option, or a question that leaves a window no room.
        """
        call = self._call(Task.ANSWER_QUESTION, None, batch_size, progress)
        return answer_question(
            call, pairs, top_k, max_answer_len, doc_stride, max_seq_len, handle_impossible_answer, align_to_words
        )

    def multiple_choice(
        self, questions: Iterable[tuple[str, Sequence[str]]], **options: Unpack[Options]
    ) -> list[Choice]:  # fmt: skip
        """Which of several texts goes on best from one, for each request, with the score of each.

        Args:
            questions: a text and those to choose from: ("It rained, so", ["he took an umbrella.", "he took a nap."]).
        """
        return multiple_choice(self._call(Task.MULTIPLE_CHOICE, **options), questions)

    def fill_mask(
        self, texts: Requests, top: int = 5, **options: Unpack[Options]
    ) -> list[list[list[Fill]]]:  # fmt: skip
        """For each text and each mask token in it, the likeliest tokens."""
        return fill_mask(self._call(Task.FILL_MASK, **options), texts, top)
