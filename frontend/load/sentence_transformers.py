"""What a sentence-transformers pipeline does after its transformer, and what it compares vectors by."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import LoadError
from headrace.frontend.load.modules.build import build, require_weighable
from headrace.frontend.load.modules.chain import (
    IDS,
    ROWS,
    VECTOR,
    Applied,
    Chain,
    First,
    Normalize,
    Pooled,
    SentenceModule,
)
from headrace.frontend.load.pipeline import MODULES, SETTINGS, STATIC, Pipeline
from headrace.frontend.load.text_rules import LABELLED, PLAIN, transformer_task
from headrace.ir import PoolKind, Similarity, Task


@dataclass(frozen=True)
class SentenceModules:
    """What stands in modules.json.

    Attributes:
        pools: the pooling kinds; empty where the folder has no Pooling and so yields one vector a token.
        chain: what follows the transformer, the pooling among it.
        normalize: whether the last module normalises a text's vector; that is left to the caller's `normalize`.
    """

    pools: tuple[PoolKind, ...]
    chain: Chain
    normalize: bool

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What the modules define: a vector a text where they pool; a vector a token in any case."""
        return (Task.EMBED, Task.TOKEN_EMBED) if self.pools else (Task.TOKEN_EMBED,)

    @property
    def makes_rows(self) -> bool:
        """Whether a token's vector is another than the transformer's row, or all that there is."""
        return not self.pools or self.chain.writes(ROWS)


def read_sentence_modules(pipeline: Pipeline) -> SentenceModules | None:
    """The modules after the transformer; None where that comes with its head, and nothing after it.

    Raises:
        LoadError: a module that does not do what is known of its kind, or one in a place where it makes no sense.
    """
    kinds, task = pipeline.kinds, transformer_task(pipeline)
    if task != PLAIN:
        if len(kinds) > 1:
            raise LoadError(f"{pipeline.folder}/{MODULES} puts {', '.join(kinds[1:])} after a transformer for {task}.")
        if task != LABELLED:
            raise LoadError(
                f"{pipeline.transformer.where} is of a transformer for {task} (transformer_task), which is not served; "
                f"{PLAIN} and {LABELLED} are."
            )
        return None
    if pipeline.settings.get("model_type") == "CrossEncoder":
        raise LoadError(f"{pipeline.folder} is a CrossEncoder that scores by {', '.join(kinds)}; {LABELLED} is served.")
    dimensions, steps = _dimensions(pipeline), list(pipeline.steps[1:])
    if kinds[0] == STATIC:  # which pools by itself
        made = [Pooled((PoolKind.MEAN,)), *build(steps, {ROWS, IDS, VECTOR})]
    else:
        made = build(steps, {ROWS, IDS})
    require_weighable(made, f"{pipeline.folder}/{MODULES}")
    # What normalises a text's vector is left to the caller's `normalize`, but for what is cut afterwards.
    normalize = dimensions is None and _normalises(made)
    made = [
        *made[: -1 if normalize else None],
        *([] if dimensions is None else [Applied(First(dimensions), VECTOR, VECTOR)]),
    ]
    pools = next((step.pool.kinds for step in made if isinstance(step, Pooled)), ())
    return SentenceModules(pools, Chain(made), normalize)


def _normalises(made: list[SentenceModule]) -> bool:
    last = made[-1] if made else None
    return isinstance(last, Applied) and isinstance(last.module, Normalize) and last.reads == last.writes == (VECTOR,)


def read_similarity(pipeline: Pipeline) -> Similarity:
    """What the pipeline's vectors are compared by.

    Raises:
        LoadError: a name that is none of sentence-transformers' for one vector a text.
    """
    named = pipeline.settings.get("similarity_fn_name") or Similarity.COSINE
    if named not in list(Similarity):
        raise LoadError(
            f"{pipeline.folder}/{SETTINGS} compares vectors by {named} (similarity_fn_name); {', '.join(Similarity)} "
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
