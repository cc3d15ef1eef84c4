"""token_classify: the labelled tokens or spans of a text."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from numpy.typing import ArrayLike

from headrace.errors import InputError
from headrace.ir import Labels
from headrace.runtime.places import Places
from headrace.runtime.tasks.answers.groups import OUTSIDE, Group, grouped, surest
from headrace.runtime.tasks.answers.mapping import Record
from headrace.runtime.tasks.answers.records import scored
from headrace.runtime.tasks.answers.tagged import AGGREGATIONS, Aggregation, Tagger, Unit, read_tokens
from headrace.runtime.tasks.interface import Answering, Call, Command
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.validate import counts, require_choice
from headrace.runtime.text.windows import Window, flat

__all__ = ["AGGREGATIONS", "Aggregation", "Entity", "entities", "token_classify"]

IgnoreLabels = Annotated[list[str] | None, 'A label to leave out, else O; may come again. "" leaves none out.']
Stride = Annotated[int | None, "Read long texts in windows that share so many tokens."]
Join = Annotated[bool, "Whether neighbours of one label are one entity; else each token or word is."]
Scores = Annotated[bool, "Every label's score, of each token or word."]


@dataclass(frozen=True)
class Entity(Record):
    """A labelled part of a text: `text[start:end]`; `word` is that part as the tokenizer spells it.

    Of a text that came in words, the characters are counted in the words with a space between each two.

    Attributes:
        index: of a single token or word, its first token's place among all of the text, the tokenizer's own included.
        words: of a text that came in words, the first that it touches and the one past the last.
        scores: of a single token or word, where they were asked for, every label's.
    """

    label: str
    score: float
    start: int
    end: int
    word: str
    index: int | None = None
    words: tuple[int, int] | None = None
    scores: dict[str, float] | None = None


@dataclass(frozen=True)
class Shape:
    """How the labels of tokens become entities.

    Attributes:
        aggregation: "none" answers token by token; "simple" joins neighbours of one label; "first", "average" and
            "max" before that give each word one label. Where the tokenizer does not mark what continues a word, a word
            is what stands between spaces; of a text that came in words, each is one.
        ignored: the labels that are left out.
        join: whether neighbours are joined.
        scores: whether every label's score comes with each token or word.
    """

    aggregation: str = "none"
    ignored: tuple[str, ...] = (OUTSIDE,)
    join: bool = True
    scores: bool = False

    @property
    def single(self) -> bool:
        """Whether each token or word is an entity of its own."""
        return self.aggregation == "none" or not self.join


def token_classify(
    call: Call,
    texts: Any,
    aggregation: Annotated[str, "none, simple, first, average or max."] = "none",
    ignore_labels: IgnoreLabels = None,
    stride: Stride = None,
    join: Join = True,
    scores: Scores = False,
) -> list[list[Entity]]:
    """See `CompiledModel.token_classify`."""
    shape = read_shape(aggregation, ignore_labels, join, scores)
    _require_stride(stride, call.truncate)
    listed = call.drawn(texts)
    call.lane()
    labels, reader = call.program.facts.labels, call.texts()
    assert labels is not None
    encoded = _encoded(call, listed, whole=stride is not None)
    windows = [reader.windows(one, stride or 0, first=number) for number, one in enumerate(encoded, call.first)]
    rows = iter(call.encoded_rows(*flat(windows)))
    return [
        entities([next(rows) for _ in cut], labels, text, one, shape, cut)
        for text, one, cut in zip(listed, encoded, windows, strict=True)
    ]


def _encoded(call: Call, listed: Sequence[Any], whole: bool) -> list[Encoded]:
    """The texts' tokens with spans, within the model's bound or whole."""
    reader = call.texts()
    if not whole and all(isinstance(text, str) for text in listed):
        return reader.encode(listed, truncate=call.truncate, offsets=True, places=Places(call.first))
    found = reader.whole(listed, first=call.first)
    return found if whole else reader.fitted(found, truncate=call.truncate, first=call.first)


def read_shape(aggregation: Any, ignore_labels: Any, join: Any, scores: Any) -> Shape:
    """The user's wish, checked.

    Raises:
        InputError: no strategy of transformers, no labels, or scores of what is no single token or word.
    """
    if not isinstance(aggregation, str) or aggregation not in AGGREGATIONS:
        raise InputError(f"aggregation is {reprlib.repr(aggregation)}; choose from {', '.join(AGGREGATIONS)}.")
    if ignore_labels is None:
        ignore_labels = [OUTSIDE]
    elif not isinstance(ignore_labels, (list, tuple)) or not all(isinstance(one, str) for one in ignore_labels):
        raise InputError(f"ignore_labels is {reprlib.repr(ignore_labels)}; a list of str is accepted, [] ignores none.")
    require_choice("join", join)
    require_choice("scores", scores)
    shape = Shape(aggregation, tuple(ignore_labels), bool(join), bool(scores))
    if shape.scores and not shape.single:
        raise InputError(
            f'scores=True with aggregation="{aggregation}" and join=True asks for every label\'s score of joined '
            'parts, whose score is a mean of different labels. Pass join=False, or aggregation="none".'
        )
    return shape


def _require_stride(stride: Any, truncate: Any) -> None:
    if stride is not None and not counts(stride, least=0):
        raise InputError(f"stride is {stride!r}, the tokens that neighbouring windows share; an int of 0 and above is.")
    if stride is not None and truncate is not None:
        raise InputError("stride reads a long text whole, and truncate cuts or refuses it. Pass one of them.")


def entities(
    rows: Sequence[ArrayLike],
    labels: Labels,
    text: str | Sequence[str],
    encoded: Encoded,
    shape: Shape,
    windows: Sequence[Window] | None = None,
) -> list[Entity]:
    """The labelled parts of one text, by the rules of transformers' token-classification pipeline.

    Args:
        rows: the logits [tokens, labels] of each window, the tokenizer's own tokens included.
        labels: their names; those that begin with B- begin a part.
        text: what was encoded, or its words.
        encoded: the whole text's tokens, with spans.
        windows: of the text in its order; None of one that is whole.
    """
    spans = encoded.spans
    assert spans is not None, "encoded with offsets"
    tokens = read_tokens(text if isinstance(text, str) else " ".join(text), spans)
    tagger = Tagger(labels, shape.aggregation, spans.join)
    units = tagger.units(tokens, windows or [Window(encoded, 0, len(tokens))], rows)
    if shape.single:
        return [_of_unit(unit, shape, labels) for unit in surest(units) if unit.label not in shape.ignored]
    return [_of_group(group, tagger) for group in grouped(units, shape.ignored)]


def _of_unit(unit: Unit, shape: Shape, labels: Labels) -> Entity:
    every = dict(zip(labels.names, map(float, unit.scores), strict=True)) if shape.scores else None
    words = None if unit.given < 0 else (unit.given, unit.given + 1)
    return Entity(unit.label, unit.score, unit.start, unit.end, unit.word, unit.index, words, every)


def _of_group(group: Group, tagger: Tagger) -> Entity:
    first, last = group.units[0].given, group.units[-1].given
    spelled = tagger.join([unit.word for unit in group.units])
    return Entity(
        group.label, group.score, group.start, group.end, spelled, words=None if first < 0 else (first, last + 1)
    )


def record(found: list[Entity]) -> dict[str, Any]:
    """The entities of a text as a JSON object, without what they do not have."""
    return {"entities": [{key: value for key, value in scored(one).items() if value is not None} for one in found]}


SAYS = 'The labelled tokens or spans of each text: {"entities": [{"label": ..., "start": ..., ...}]}.'
TASK = Answering(token_classify, Command(SAYS, record, words=True))
