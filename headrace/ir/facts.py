"""Facts about a program beside its nodes: labels, pooling, positions, limits, text rules, where it came from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headrace.ir.part import require
from headrace.ir.signature import PoolKind


class Activation(StrEnum):
    """What turns a head's logits into scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    IDENTITY = "identity"


@dataclass(frozen=True)
class Labels:
    """The names of a head's outputs in order, what scores them, and the source of that rule.

    `named` is whether the folder names what scores them, as a cross-encoder's does.
    """

    names: tuple[str, ...]
    activation: Activation
    why: str
    named: bool = False

    @property
    def entailment(self) -> int | None:
        """The place of the label that says that a pair's second text follows from its first; None without one.

        The field writes it "entailment" or "ENTAILMENT"; transformers goes by its beginning.
        """
        return next((place for place, name in enumerate(self.names) if name.lower().startswith("entail")), None)


@dataclass(frozen=True)
class Pooling:
    """How rows become one vector: the kinds are concatenated; `why` says where the choice comes from.

    Without a kind the vector is the model's own: its projection or pooler's output, which no rows of ours make.
    """

    kinds: tuple[PoolKind, ...]
    normalize: bool
    why: str
    assumed: bool = False


class PositionSource(StrEnum):
    """Where the graph takes a token's position from."""

    INPUT = "input"
    GRAPH = "graph"


@dataclass(frozen=True)
class Positions:
    """A token's position is `offset` plus its index in the sequence.

    `table` is the number of positions that a learned table has rows for, from position 0; None without a table.
    """

    source: PositionSource
    offset: int = 0
    table: int | None = None


@dataclass(frozen=True)
class Limits:
    """The longest usable length in tokens, None where nothing bounds it, and what sets it."""

    length: int | None
    why: str


class Similarity(StrEnum):
    """What compares two vectors, or two texts of many. More is nearer: a distance is negated."""

    COSINE = "cosine"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"
    MAXSIM = "maxsim"
    MEANMAXSIM = "meanmaxsim"


@dataclass(frozen=True)
class ChatRules:
    """How the tokenizer's chat template renders what is tokenised.

    A text is the user's message, the two of a pair are the query's and the document's, a prompt is the system's.

    Attributes:
        structured: whether a message's content is a list of typed parts, not the text itself.
        options: the rendering's keyword arguments, as JSON.
        restores: whether the template's own end is put back where truncation took it.
    """

    structured: bool
    options: str = "{}"
    restores: bool = True


@dataclass(frozen=True)
class Expansion:
    """Queries filled up with tokens that score too (arXiv 2004.12832).

    Attributes:
        length: the tokens of a filled query.
        token: the id that fills.
        attends: whether the others attend to them; they attend to the others in any case.
        fixed: whether a longer query is cut to the length.
        left: whether they go before the query.
    """

    length: int
    token: int
    attends: bool
    fixed: bool
    left: bool = False


@dataclass(frozen=True)
class Interaction:
    """Which vectors of a text score where texts are compared token by token.

    Attributes:
        skipped: token ids that do not, in the sides of `skips_in` ("query", "document").
        kept: of a document, the only token ids that do; empty keeps all.
        query_length: the tokens that a query is cut to, None where the text's own rule holds; so for documents.
        expansion: what queries are filled up with.
        begins: the first token of a text that scores: those before it, such as the one that a vector is pooled from,
            have no vectors.
        similarity: what compares two texts of many vectors, where the model makes one vector of a text besides.
    """

    skipped: tuple[int, ...] = ()
    skips_in: tuple[str, ...] = ("document",)
    kept: tuple[int, ...] = ()
    query_length: int | None = None
    document_length: int | None = None
    expansion: Expansion | None = None
    begins: int = 0
    similarity: Similarity = Similarity.MAXSIM


@dataclass(frozen=True)
class TextRules:
    """What the model folder says of text.

    Attributes:
        max_length: the length in tokens that it truncates to, if it `truncates`.
        prompts: instruction prompts by name; `default_prompt` is one of the names.
        pools_prompt: whether a prompt's tokens take part in pooling.
        why: what sets the length.
        chat: the template that texts go through, None where they are tokenised as they are.
        special_tokens: whether the tokenizer adds its own.
    """

    max_length: int | None = None
    truncates: bool = False
    prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str | None = None
    lower_case: bool = False
    pools_prompt: bool = True
    why: str = "no limit is set"
    chat: ChatRules | None = None
    special_tokens: bool = True


@dataclass(frozen=True)
class Filling:
    """How a text is filled up for a model that was trained on texts of one length, their padding read as text.

    Attributes:
        length: the tokens of a filled text.
        token: the id that fills.
        left: whether it goes before the text.
        why: what says so.
    """

    length: int
    token: int
    left: bool
    why: str


class BeamStop(StrEnum):
    """When a beam search ends: at as many whole candidates as beams, or once none is likely, or able, to beat them."""

    FIRST = "first"
    UNLIKELY = "unlikely"
    NEVER = "never"


@dataclass(frozen=True)
class Beams:
    """A beam search: candidates are compared by their log-probability over their length to the power of the penalty.

    Attributes:
        renormalize: whether log-probabilities are taken anew once some tokens were ruled out.
    """

    count: int
    length_penalty: float = 1.0
    stop: BeamStop = BeamStop.UNLIKELY
    renormalize: bool = False


@dataclass(frozen=True)
class Decoding:
    """How the folder has tokens follow one another: transformers' GenerationConfig as facts.

    Lengths without `new` in their names count the tokens that the decoder holds before the first new one.

    Attributes:
        start: what the decoder of an encoder-decoder begins with; empty where the prompt is what it begins with.
        ends: tokens that end a text.
        first: the token that must follow a single one, None where any may.
        last: tokens of which one must end a text that is as long as it may be.
        suppressed: tokens that never come; `suppressed_first` not as the first.
        bad_words: sequences of tokens whose last never follows the others.
        biases: the same, with what is added to the last one's logit.
        no_repeat: no sequence of so many tokens comes twice, 0 where any may.
        encoder_no_repeat: none of so many tokens of an encoder-decoder's prompt comes, 0 where any may.
        temperature: 0 takes the likeliest token.
        stop: strings that end a text.
        beams: None where one candidate is followed.
        unserved: what changes texts and is not done here, as `name=value`.
        unserved_sampling: the same, of what changes sampled texts alone.
        unread: entries of the file that are none of transformers' own.
    """

    start: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    first: int | None = None
    last: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    biases: tuple[tuple[tuple[int, ...], float], ...] = ()
    no_repeat: int = 0
    encoder_no_repeat: int = 0
    max_length: int | None = None
    max_new_tokens: int | None = None
    min_length: int = 0
    min_new_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    beams: Beams | None = None
    unserved: tuple[str, ...] = ()
    unserved_sampling: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Quantized:
    """Linear layers that multiply in fewer bits than the program's dtype has, and what that costs its answers.

    Attributes:
        scheme: how they multiply; fp8: rows and weights in float8_e4m3fn, a scale for each row and output;
            int8: both as integers, scaled so.
        layers: how many do so.
        among: how many linear layers there are.
        sequences: sample sequences whose answers were held against those of the program that is not quantised.
        worst: the least cosine between the two, None where nothing was measured.
        median: the median of the cosines.
    """

    scheme: str
    layers: int
    among: int
    sequences: int = 0
    worst: float | None = None
    median: float | None = None


class HeldWeights(NamedTuple):
    """Weights that a compiled program holds in one format, none of whose numbers it changes.

    Attributes:
        format: float32, bfloat16, or int8 in groups that share a scale and an offset.
        matrices: how many.
        size: their bytes, scales with them.
    """

    format: str
    matrices: int
    size: int


@dataclass(frozen=True)
class Source:
    """Where a program came from; for messages and manifests, never for a decision."""

    name: str
    config_hash: str
    versions: tuple[tuple[str, str], ...]
    parameters: int


class RawPart(NamedTuple):
    """One tensor of a head that no task is of, among the columns of the output `raw`.

    Attributes:
        name: as the model returns it.
        per_token: whether it has a row a token; else it is one of the whole text, and the same in every row.
        sizes: of what each token, or the text, has of it.
    """

    name: str
    per_token: bool
    sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        """How many columns it takes."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class Facts:
    """What is known of a program beside its nodes.

    Attributes:
        target_limits: the decoder's longest target, None where the graph takes no target.
        filling: how texts are filled up to the length that the model was trained on; None where they are not.
        labels: of the head, None where it names none.
        pooling: how rows become a vector, None where the model makes none.
        similarity: what compares two such vectors.
        decoding: how tokens follow one another, None where the head is none of a language model.
        active: the most numbers of a sparse vector that are not zero; None keeps all.
        interaction: which of a text's vectors score, None where texts are not compared so.
        unweighed: token ids whose weights are no part of a sparse vector that is made of tokens' weights.
        raw: what the output `raw` holds side by side; empty where there is none.
        processor: the configuration, as JSON, of what makes the arrays that it reads of images or sound; "" where the
            folder has none.
    """

    positions: Positions
    limits: Limits
    target_limits: Limits | None = None
    text: TextRules = field(default_factory=TextRules)
    filling: Filling | None = None
    labels: Labels | None = None
    pooling: Pooling | None = None
    similarity: Similarity = Similarity.COSINE
    decoding: Decoding | None = None
    active: int | None = None
    interaction: Interaction | None = None
    unweighed: tuple[int, ...] = ()
    raw: tuple[RawPart, ...] = ()
    processor: str = ""

    def __post_init__(self) -> None:
        """Refuse bounds that leave room for no token.

        Raises:
            PartError: names the bound.
        """
        bounds = {"limits": self.limits, "target_limits": self.target_limits or Limits(None, "")}
        first, table = self.positions.offset, self.positions.table
        require(
            "limits",
            [
                *(
                    (
                        bound.length is not None and bound.length < 1,
                        name,
                        f"at most {bound.length} tokens ({bound.why})",
                    )
                    for name, bound in bounds.items()
                ),
                (first < 0, "positions", f"from {first}"),
                (table is not None and table <= first, "positions", f"from {first} in a table of {table} rows"),
            ],
        )
