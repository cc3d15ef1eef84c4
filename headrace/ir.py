"""The IR: a `Program` is an exported graph and the facts that the passes established about it.

The graph is a `torch.export.ExportedProgram`; the semantics live in the arguments of the operators in
`headrace.ops`. Everything here imports without torch, since manifests are read where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class AttentionType(StrEnum):
    """Contract A: which rows an attention's keys come from, and which of them a query sees."""

    DECODER = "DECODER"
    ENCODER_ONLY = "ENCODER_ONLY"
    ENCODER = "ENCODER"
    ENCODER_DECODER = "ENCODER_DECODER"


class MaskKind(StrEnum):
    """The relation between query and key positions, before the window narrows it.

    CHUNKED is causal within blocks of `window.left + 1` positions, counted from a sequence's first token (Llama 4).
    """

    CAUSAL = "causal"
    CHUNKED = "chunked"
    BIDIRECTIONAL = "bidirectional"
    OPAQUE = "opaque"

    @property
    def causal(self) -> bool:
        """Whether no query sees a later key."""
        return self in (MaskKind.CAUSAL, MaskKind.CHUNKED)


class Window(NamedTuple):
    """How many keys a query sees before and after itself, inclusive; -1 is without bound."""

    left: int = -1
    right: int = -1

    @property
    def bounded(self) -> bool:
        """Whether the window narrows what the mask kind alone would show."""
        return self.left >= 0 or self.right > 0

    def __str__(self) -> str:
        """E.g. `(64, 64)` or `(*, 0)`."""
        return "({}, {})".format(*("*" if side < 0 else side for side in self))


EVERYTHING = Window()


class Verdict(StrEnum):
    """What the probe saw of one attention (contract A3)."""

    PENDING = "pending"
    PROVEN = "proven"
    PROVEN_SHRUNK = "proven with the window shrunk"
    UNPROBED = "unprobed"


class BiasKind(StrEnum):
    """What is added to the scaled scores beside the mask.

    Of the distance between query and key alone, so that a kernel computes it and no [T, T] tensor exists, are
        ALIBI: `-slope[head] * |key - query|`; its values are [Hq], the slopes.
        RELATIVE: `table[head, clamp(key - query, -reach, reach) + reach]`; its values are [Hq, 2 * reach + 1], rows
            contiguous. T5's and MPNet's buckets are one, since distances past the largest share a bucket.
    TENSOR is any other.
    """

    NONE = "none"
    TENSOR = "tensor"
    ALIBI = "alibi"
    RELATIVE = "relative"


@dataclass(frozen=True)
class AttentionSpec:
    """One attention node. `call_order` is its key: module paths may repeat where layers share weights.

    `recovered` where the model's own code computes it and no interface announced it.
    """

    node: str
    call_order: int
    type: AttentionType
    q_heads: int
    kv_heads: int
    qk_head_dim: int
    v_head_dim: int
    scale: float
    mask: MaskKind
    window: Window = EVERYTHING
    softcap: float = 0.0
    sinks: bool = False
    bias: BiasKind = BiasKind.NONE
    mask_node: str | None = None
    latent: bool = False
    recovered: bool = False
    verdict: Verdict = Verdict.PENDING
    provenance: str = ""

    def __post_init__(self) -> None:
        """Refuse what no attention can be."""
        if self.kv_heads < 1 or self.q_heads % self.kv_heads:
            raise ValueError(f"{self.node}: {self.q_heads} query heads do not divide into {self.kv_heads} key heads")
        if self.type is AttentionType.DECODER and not self.mask.causal:
            raise ValueError(f"{self.node}: DECODER needs a causal mask, not {self.mask}")

    def sees(self, query: int, key: int) -> bool:
        """Whether the query at one position sees the key at another, both of one sequence."""
        left, right = self.window
        if self.mask.causal and key > query:
            return False
        if self.mask is MaskKind.CHUNKED:
            return query // (left + 1) == key // (left + 1)
        return not (0 <= left < query - key) and not (0 <= right < key - query)


@dataclass(frozen=True)
class RecurrentSpec:
    """One node that carries state along the sequence without attention.

    Attributes:
        operator: which recurrence it is, by the name of its operator.
        state: the sizes of the state that one sequence leaves behind; empty where the node does not say.
        causal: whether the operator looks back only; None where its arguments do not say.
        verdict: what the probe saw of the stack that the node stands in.
    """

    node: str
    call_order: int
    operator: str
    state: tuple[int, ...] = ()
    causal: bool | None = None
    verdict: Verdict = Verdict.PENDING
    provenance: str = ""


class Head(StrEnum):
    """What the model ends in, told by the shape of what it returns."""

    NONE = "none"
    SEQUENCE = "sequence"
    TOKEN = "token"
    MASKED_LM = "masked-lm"
    CAUSAL_LM = "causal-lm"
    SEQ2SEQ_LM = "seq2seq-lm"
    OTHER = "other"


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
    SEQUENCE_LOGITS = "sequence_logits"
    TOKEN_LOGITS = "token_logits"
    VOCABULARY_LOGITS = "vocabulary_logits"
    DECODER_HIDDEN = "decoder_hidden"
    TAPS = "taps"


PER_TOKEN_OUTPUTS = frozenset(
    {
        OutputKind.HIDDEN,
        OutputKind.TOKEN_EMBEDDING,
        OutputKind.TOKEN_LOGITS,
        OutputKind.VOCABULARY_LOGITS,
        OutputKind.DECODER_HIDDEN,
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


class Task(StrEnum):
    """What a caller can ask for."""

    CLASSIFY = "classify"
    EMBED = "embed"
    FILL_MASK = "fill_mask"
    GENERATE = "generate"
    SCORE = "score"
    SPARSE_EMBED = "sparse_embed"
    TOKEN_CLASSIFY = "token_classify"
    TOKEN_EMBED = "token_embed"


@dataclass(frozen=True)
class TaskDecision:
    """Contract C for one offered task: supported where the route enables it, and why or why not."""

    task: Task
    supported: bool
    reason: str


class Prefill(StrEnum):
    """Whether every token of a sequence is present in one step."""

    SINGLE_PASS = "single_pass"
    CHUNKED = "chunked"


class State(StrEnum):
    """The model states of contract B."""

    CUSTOM = "CustomState"
    ENCODER_DECODER = "EncoderDecoderState"
    ENCODER_ONLY = "EncoderOnlyState"
    HYBRID = "HybridState"
    DECODER = "DecoderState"


@dataclass(frozen=True)
class Route:
    """The decision of contract B: the state, the rule that chose it and the evidence in words."""

    state: State
    rule: str
    reason: str
    custom: str | None = None

    @property
    def name(self) -> str:
        """The state's name as a reader knows it: a custom state's own."""
        return self.custom or self.state.value


class Activation(StrEnum):
    """What turns a head's logits into scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    IDENTITY = "identity"


@dataclass(frozen=True)
class Labels:
    """The names of a head's outputs in order, what scores them, and the source of that rule."""

    names: tuple[str, ...]
    activation: Activation
    why: str


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


class PaddingRule(StrEnum):
    """Whether a padded batch answers as each sequence alone."""

    EXACT = "exact"
    UNPADDED = "unpadded"


@dataclass(frozen=True)
class Claim:
    """What a flag of the config says about causality. Never evidence: a claim that the mask denies is refused."""

    flag: str
    value: bool
    says: MaskKind


@dataclass(frozen=True)
class TextRules:
    """What the model folder says of text.

    Attributes:
        max_length: the length in tokens that it truncates to, if it `truncates`.
        prompts: instruction prompts by name; `default_prompt` is one of the names.
        pools_prompt: whether a prompt's tokens take part in pooling.
        why: what sets the length.
    """

    max_length: int | None = None
    truncates: bool = False
    prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str | None = None
    lower_case: bool = False
    pools_prompt: bool = True
    why: str = "no limit is set"


@dataclass(frozen=True)
class Source:
    """Where a program came from; for messages and manifests, never for a decision."""

    name: str
    config_hash: str
    versions: tuple[tuple[str, str], ...]
    parameters: int


# The input that says where each sequence of a packed row begins, and where the last ends.
OFFSETS = "cu_seqlens"


@dataclass(frozen=True)
class Input:
    """One input of the graph. Inputs that share a dynamic axis share its size in a call."""

    name: str
    dtype: str = "int64"
    axes: tuple[Axis, ...] = (BATCH, SEQUENCE)

    @property
    def is_array(self) -> bool:
        """Whether it holds measured values (pixels, samples, features) and not one integer a token."""
        return not self.dtype.startswith("int")


class Layout(StrEnum):
    """How the sequences of a batch lie: one a row and padded, or after one another in a single row."""

    PADDED = "padded"
    PACKED = "packed"


class Stage(StrEnum):
    """How far a program has come; each verifier rule belongs to one."""

    TRACED = "traced"
    TYPED = "typed"
    LOWERED = "lowered"


@dataclass(frozen=True)
class Program:
    """An exported graph and the typed facts about it. Passes return new programs; nothing is changed in place.

    Attributes:
        exported: the graph, None where only the facts were read back from a manifest.
        inputs: the graph's inputs, in order.
        vocabulary: token ids lie below it; 0 where the inputs are arrays.
        rows: hidden rows of a request where all have as many; None where they follow the sequence.
        token_types: token type ids lie below it; None where nothing bounds them.
        marker: the token whose rows the head reads, so that every text must hold it; None where it reads any.
        target_limits: the decoder's longest target, None where the graph takes no target.
        dtype: the dtype that the weights and activations run in, as torch names it.
        attention_calls: how often the eager model called transformers' attention interface.
        recovered: the attention nodes that came of the model's own code instead.
        missing: parameters that the checkpoint lacked; refused once a served output reads one.
        layout_why: what keeps the program padded on a target that runs packed ones; empty where nothing does.
        declared_tasks: what sentence-transformers modules add to the head's offer.
        taps: the nodes whose values its output of kind TAPS holds side by side, in that order.
    """

    exported: ExportedProgram | None = field(repr=False, compare=False)
    source: Source
    stage: Stage
    dtype: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    head: Head
    vocabulary: int
    positions: Positions
    limits: Limits
    rows: int | None = None
    token_types: int | None = None
    marker: int | None = None
    target_limits: Limits | None = None
    text: TextRules = TextRules()
    labels: Labels | None = None
    pooling: Pooling | None = None
    head_rows: PoolKind | None = None
    head_note: str = ""
    claims: tuple[Claim, ...] = ()
    routed_experts: bool = False
    attention_calls: int = 0
    recurrent_calls: int = 0
    recovered: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    declared_tasks: tuple[Task, ...] = ()
    declared_default: Task | None = None
    declared_state: str | None = None
    attention: tuple[AttentionSpec, ...] = ()
    recurrent: tuple[RecurrentSpec, ...] = ()
    padding: PaddingRule | None = None
    layout: Layout = Layout.PADDED
    layout_why: str = ""
    route: Route | None = None
    prefill: Prefill | None = None
    tasks: tuple[TaskDecision, ...] = ()
    taps: tuple[Tap, ...] = ()

    def with_(self, **changes: Any) -> Program:
        """A copy with some facts replaced."""
        return replace(self, **changes)

    def output(self, kind: OutputKind) -> Output | None:
        """The output of that kind, if the graph has one."""
        return next((output for output in self.outputs if output.kind is kind), None)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the graph's inputs, in order."""
        return tuple(given.name for given in self.inputs)

    @property
    def arrays(self) -> tuple[Input, ...]:
        """The inputs that are arrays; empty where the model reads token ids."""
        return tuple(given for given in self.inputs if given.is_array)

    @property
    def graph(self) -> ExportedProgram:
        """The exported graph; a program read back from a manifest has none."""
        assert self.exported is not None, "this program holds facts only"
        return self.exported

    def as_text(self) -> str:
        """The program on a page: facts, then one line an attention, then the decisions."""
        from headrace.text import program_text

        return program_text(self)
