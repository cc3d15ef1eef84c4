"""What a sentence-transformers pipeline does after its transformer, and what it compares vectors by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import LoadError
from headrace.frontend.load.sentence_transformers.modules.build import (
    bag_of_words,
    build,
    require_weighable,
    token_weights,
)
from headrace.frontend.load.sentence_transformers.modules.chain import (
    IDS,
    LENGTHS,
    LEXICAL,
    LOGITS,
    MULTI,
    ROWS,
    SCORES,
    VECTOR,
    Applied,
    Chain,
    First,
    Normalize,
    Pooled,
    SentenceModule,
)
from headrace.frontend.load.sentence_transformers.pipeline import (
    BAG,
    CLIP,
    MODULES,
    SETTINGS,
    SPARSE_STATIC,
    STATIC,
    WORDS,
    Pipeline,
)
from headrace.frontend.load.sentence_transformers.text_rules import (
    FILLING,
    GENERATING,
    LABELLED,
    PLAIN,
    transformer_task,
)
from headrace.ir import OutputKind, PoolKind, Similarity, Task

INTERACTING = (Similarity.MAXSIM, Similarity.MEANMAXSIM)
# What compares vectors where nothing says it; elsewhere it is the cosine.
USUAL = {"SparseEncoder": Similarity.DOT, "MultiVectorEncoder": Similarity.MAXSIM}
# What there is before the first module after a transformer for each task.
KNOWN = {PLAIN: (ROWS, IDS), GENERATING: (LOGITS, IDS), FILLING: (LOGITS, IDS), LABELLED: (SCORES,)}


@dataclass(frozen=True)
class SentenceModules:
    """What stands in modules.json.

    Attributes:
        pools: the pooling kinds; empty where the folder has no Pooling and so yields one vector a token.
        chain: what follows the transformer, the pooling among it.
        normalize: whether the last module normalises a text's vector; that is left to the caller's `normalize`.
        headless: whether the transformer ends in rows.
        scores: whether it is a cross-encoder, which scores by what the modules make.
        sparse: whether it is a sparse encoder, whose vectors are mostly zeros.
        active: the most numbers of a sparse vector that are not zero, None keeps all.
        interacts: whether a text has many vectors.
    """

    pools: tuple[PoolKind, ...]
    chain: Chain
    normalize: bool
    headless: bool = True
    scores: bool = False
    sparse: bool = False
    active: int | None = None
    interacts: bool = False

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What the modules define: scores; a vector a text where they pool; a vector a token in any case."""
        if self.scores:
            return (Task.SCORE, Task.CLASSIFY)
        if self.sparse:
            return (Task.SPARSE_EMBED,)
        if self.interacts:
            return (Task.MULTI_EMBED, Task.TOKEN_EMBED)
        kinds = {OutputKind.LEXICAL_WEIGHTS: Task.SPARSE_EMBED, OutputKind.MULTI_EMBEDDING: Task.MULTI_EMBED}
        beside = tuple(kinds[kind] for kind in self.beside)
        if self.pools:
            return (Task.EMBED, *beside, Task.TOKEN_EMBED)
        return (Task.EMBED,) if self.makes_vector else (*beside, Task.TOKEN_EMBED)

    @property
    def makes_vector(self) -> bool:
        """Whether they make a text's vector that is no pooling of its rows, as of the words that it holds."""
        return self.chain.writes(VECTOR) and not (self.pools or self.scores or self.sparse)

    @property
    def beside(self) -> tuple[OutputKind, ...]:
        """What tokens score by that stands beside a text's vector, and is no part of it."""
        made = {LEXICAL: OutputKind.LEXICAL_WEIGHTS, MULTI: OutputKind.MULTI_EMBEDDING}
        return tuple(kind for name, kind in made.items() if self.chain.writes(name))

    @property
    def makes_rows(self) -> bool:
        """Whether a token's vector is another than the transformer's row, or all that there is."""
        return self.chain.writes(ROWS) or not (self.pools or self.makes_vector or self.scores or self.sparse)


def read_sentence_modules(pipeline: Pipeline) -> SentenceModules | None:
    """The modules after the transformer; None where that comes with its head, or its vector, and nothing after it.

    Raises:
        LoadError: a module that does not do what is known of its kind, or one in a place where it makes no sense.
    """
    kinds, task = pipeline.kinds, transformer_task(pipeline)
    if kinds[0] == CLIP:
        if after := ", ".join(kinds[1:]):
            raise LoadError(f"{pipeline.folder}/{MODULES} puts {after} after a {CLIP}, which is not served.")
        return None
    if task not in KNOWN or (task == LABELLED and len(kinds) > 1):
        after = f" puts {', '.join(kinds[1:])} after" if kinds[1:] else " is of"
        raise LoadError(
            f"{pipeline.folder}/{MODULES}{after} a transformer for {task} (transformer_task), which is not served; "
            f"{LABELLED} alone is, and modules after {', '.join(KNOWN)}."
        )
    if task == LABELLED:
        return None
    made, dimensions = _made(pipeline, KNOWN[task]), _dimensions(pipeline)
    require_weighable(made, f"{pipeline.folder}/{MODULES}")
    scores, sparse = (pipeline.settings.get("model_type") == kind for kind in ("CrossEncoder", "SparseEncoder"))
    # What normalises a text's vector is left to the caller's `normalize`, but for what is cut afterwards.
    normalize = dimensions is None and not sparse and _normalises(made)
    cut = [] if dimensions is None else [Applied(First(dimensions), VECTOR, VECTOR)]
    chain = Chain([*made[: -1 if normalize else None], *cut])
    _require_made(pipeline, chain, SCORES if scores else VECTOR if sparse or task == FILLING else "")
    if task == GENERATING and not scores:
        raise LoadError(
            f"{pipeline.folder} makes {LOGITS} and is no CrossEncoder (model_type), which alone reads them."
        )
    pools = next((step.pool.kinds for step in made if isinstance(step, Pooled)), ())
    active = pipeline.settings.get("max_active_dims")
    return SentenceModules(pools, chain, normalize, task == PLAIN, scores, sparse, active, pipeline.interacts)


def _made(pipeline: Pipeline, known: Iterable[str]) -> list[SentenceModule]:
    """The modules, those among them that a table of tokens stands for."""
    first, *steps = pipeline.steps
    if first.kind == STATIC:  # which pools by itself
        return [Pooled((PoolKind.MEAN,)), *build(steps, {*known, VECTOR})]
    if first.kind == SPARSE_STATIC:
        return [token_weights(first), *build(steps, {*known, VECTOR})]
    if first.kind == BAG:
        return [bag_of_words(first), *build(steps, {*known, VECTOR})]
    return build(steps, {*known, LENGTHS} if first.kind == WORDS else set(known))


def _require_made(pipeline: Pipeline, chain: Chain, name: str) -> None:
    """Refuse modules that do not make what a pipeline of this type answers, if it is known by its name."""
    if name and not chain.writes(name):
        kind = pipeline.settings.get("model_type") or "SentenceTransformer"
        makers = {
            SCORES: f"a transformer for {LABELLED}, a LogitScore and a Dense into {SCORES} (module_output_name) do",
            VECTOR: "a Pooling, a SpladePooling and a table of tokens do",
        }
        raise LoadError(
            f"{pipeline.folder} is a {kind} of {', '.join(pipeline.kinds)}, which make no {name}; {makers[name]}."
        )


def _normalises(made: list[SentenceModule]) -> bool:
    last = made[-1] if made else None
    return isinstance(last, Applied) and isinstance(last.module, Normalize) and last.reads == last.writes == (VECTOR,)


def read_similarity(pipeline: Pipeline) -> Similarity:
    """What the pipeline's vectors are compared by.

    Raises:
        LoadError: a name that is none of sentence-transformers' for one vector a text.
    """
    usual = USUAL.get(str(pipeline.settings.get("model_type")), Similarity.COSINE)
    named = pipeline.settings.get("similarity_fn_name") or usual
    served = INTERACTING if pipeline.interacts else tuple(kind for kind in Similarity if kind not in INTERACTING)
    if named not in served:
        raise LoadError(
            f"{pipeline.folder}/{SETTINGS} compares vectors by {named} (similarity_fn_name); {', '.join(served)} "
            "are served."
        )
    return Similarity(named)


def _dimensions(pipeline: Pipeline) -> int | None:
    kept = pipeline.settings.get("truncate_dim")
    if kept is not None and (not isinstance(kept, int) or isinstance(kept, bool) or kept < 1 or not pipeline.pools):
        raise LoadError(
            f"{pipeline.folder}/{SETTINGS} gives truncate_dim as {kept!r}; an int of 1 and above is accepted, where "
            "the modules pool."
        )
    return kept
