"""What goes into a program and what comes out: axes, inputs, heads and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from headrace.ir.part import require

Held = TypeVar("Held")


class Head(StrEnum):
    """What the model ends in, told by the shape of what it returns."""

    NONE = "none"
    SEQUENCE = "sequence"
    TOKEN = "token"
    SPAN = "span"
    CHOICE = "choice"
    MASKED_LM = "masked-lm"
    CAUSAL_LM = "causal-lm"
    SEQ2SEQ_LM = "seq2seq-lm"
    OTHER = "other"


class Role(StrEnum):
    """What an input holds, whatever the graph calls it."""

    IDS = "ids"
    PADDING = "padding"
    POSITIONS = "positions"
    TYPES = "token_types"
    TARGET_IDS = "target_ids"
    TARGET_PADDING = "target_padding"
    OFFSETS = "offsets"
    ARRAY = "array"
    CONTEXT = "context"
    WANTED = "wanted"
    SLOTS = "slots"
    BLOCKS = "blocks"
    ROWS = "rows"
    LENGTHS = "lengths"
    CACHE = "cache"


# What a step of sequences in one row is given beside their tokens.
STEP_ROLES = (
    Role.OFFSETS, Role.POSITIONS, Role.CONTEXT, Role.WANTED, Role.SLOTS, Role.BLOCKS, Role.ROWS, Role.LENGTHS,
    Role.CACHE,
)  # fmt: skip


class PoolKind(StrEnum):
    """Which rows of a sequence make its vector."""

    CLS = "cls"
    LAST = "last"
    MEAN = "mean"
    MAX = "max"
    MEAN_SQRT_LEN = "mean_sqrt_len_tokens"
    WEIGHTED_MEAN = "weightedmean"


class OutputKind(StrEnum):
    """What one output of the graph holds."""

    HIDDEN = "hidden"
    EMBEDDING = "embedding"
    TOKEN_EMBEDDING = "token_embedding"
    SPARSE_EMBEDDING = "sparse_embedding"
    LEXICAL_WEIGHTS = "lexical_weights"
    MULTI_EMBEDDING = "multi_embedding"
    SEQUENCE_LOGITS = "sequence_logits"
    TOKEN_LOGITS = "token_logits"
    SPAN_LOGITS = "span_logits"
    VOCABULARY_LOGITS = "vocabulary_logits"
    DECODER_HIDDEN = "decoder_hidden"
    CROSS = "cross"
    RAW = "raw"
    TAPS = "taps"


PER_TOKEN_OUTPUTS = frozenset(
    {
        OutputKind.HIDDEN,
        OutputKind.TOKEN_EMBEDDING,
        OutputKind.LEXICAL_WEIGHTS,
        OutputKind.MULTI_EMBEDDING,
        OutputKind.TOKEN_LOGITS,
        OutputKind.SPAN_LOGITS,
        OutputKind.VOCABULARY_LOGITS,
        OutputKind.DECODER_HIDDEN,
        OutputKind.CROSS,
        OutputKind.RAW,
        OutputKind.TAPS,
    }
)


class Axis(NamedTuple):
    """One dimension of an input: its size where it is fixed, None where each call brings its own.

    The size `first` yields one hidden row, and every `stride` above it one more: a token is a row, a convolution makes
    one of many samples. `least` is the smallest size that is served.
    """

    name: str
    size: int | None = None
    first: int = 1
    stride: int = 1
    least: int = 1

    def at(self, rows: int) -> int:
        """The smallest size that is served and yields so many rows."""
        return self.size if self.size is not None else max(self.least, self.first + (rows - 1) * self.stride)

    def rows(self, size: int) -> int:
        """How many rows a size yields."""
        return (size - self.first) // self.stride + 1


# The target is the sequence of an encoder-decoder's decoder; its length is independent of the text's.
BATCH, SEQUENCE, TARGET = Axis("batch"), Axis("sequence"), Axis("target")


@dataclass(frozen=True)
class Output:
    """One output of the graph, by the kind of what it holds; `width` is its last dimension.

    `along` is the dimension that its rows follow, where it has one a token.
    """

    name: str
    kind: OutputKind
    width: int
    along: Axis = SEQUENCE


class Tap(NamedTuple):
    """One node whose values the graph returns, and how many of them each token has."""

    node: str
    width: int


# What packed graphs call the input that says where each sequence of a row begins, and where the last ends.
OFFSETS = "cu_seqlens"


@dataclass(frozen=True)
class Input:
    """One input of the graph. Inputs that share a dynamic axis share its size in a call."""

    name: str
    role: Role
    dtype: str = "int64"
    axes: tuple[Axis, ...] = (BATCH, SEQUENCE)

    @property
    def is_array(self) -> bool:
        """Whether it holds measured values (pixels, samples, features) and not one integer a token."""
        return self.role is Role.ARRAY


@dataclass(frozen=True)
class Signature:
    """What a program takes and returns.

    Attributes:
        inputs: the graph's inputs, in order.
        outputs: the graph's outputs, in order.
        head_rows: which rows of a sequence the head reads, None where it reads all or was not cut.
        head_note: why the head is OTHER.
        vocabulary: token ids lie below it; 0 where the inputs are arrays.
        token_types: token type ids lie below it; None where nothing bounds them.
        marker: the token whose rows the head reads, so that every text must hold it; None where it reads any.
        rows: hidden rows of a request where all have as many; None where they follow the sequence.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    head: Head
    vocabulary: int
    head_rows: PoolKind | None = None
    head_note: str = ""
    token_types: int | None = None
    marker: int | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no model takes or returns.

        Raises:
            PartError: names of inputs that repeat, a vocabulary that holds no token, a marker outside of it.
        """
        names, ids = self.input_names, len(self.arrays) < len(self.inputs)
        size, types, marker = self.vocabulary, self.token_types, self.marker
        require("input_names", [(names.count(name) > 1, name, "named twice") for name in dict.fromkeys(names)])
        require(
            "vocabulary",
            [
                (size < (1 if ids else 0), "vocabulary", f"{size} tokens"),
                (types is not None and types < 1, "token_types", f"{types} token types"),
                (marker is not None and not 0 <= marker < size, "marker", f"{marker} in a vocabulary of {size}"),
            ],
        )
        require("rows", [(self.rows is not None and self.rows < 1, "rows", f"{self.rows} hidden rows")])

    def output(self, kind: OutputKind) -> Output | None:
        """The output of that kind, if the graph has one."""
        return next((output for output in self.outputs if output.kind is kind), None)

    def name(self, role: Role) -> str | None:
        """What the graph calls the input of that role, None where it has none."""
        return next((given.name for given in self.inputs if given.role is role), None)

    def has(self, role: Role) -> bool:
        """Whether the graph has an input of that role."""
        return self.name(role) is not None

    def names(self, *roles: Role) -> frozenset[str]:
        """What the graph calls its inputs of those roles."""
        return frozenset(given.name for given in self.inputs if given.role in roles)

    def named(self, values: Mapping[Role, Held]) -> dict[str, Held]:
        """Of values by role those that the graph takes, by its names and in its order; caches are a state's to give."""
        return {given.name: values[given.role] for given in self.inputs if given.role is not Role.CACHE}

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the graph's inputs, in order."""
        return tuple(given.name for given in self.inputs)

    @property
    def arrays(self) -> tuple[Input, ...]:
        """The inputs that are arrays; empty where the model reads token ids."""
        return tuple(given for given in self.inputs if given.is_array)
