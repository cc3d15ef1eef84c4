"""FlagEmbedding's folders of BGE-M3's kind: two linear layers beside a transformer make what single tokens score by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import LoadError
from headrace.frontend.load.config import readable
from headrace.frontend.load.sentence_transformers.modules.chain import (
    LEXICAL,
    MULTI,
    ROWS,
    Applied,
    Chain,
    Normalize,
    Pooled,
    SentenceModule,
)
from headrace.frontend.load.sentence_transformers.sentence_modules import SentenceModules
from headrace.ir import Interaction, PoolKind, Similarity

# Which file makes which value (FlagEmbedding's `M3Embedder`), and what follows its linear layer there.
FILES = {"sparse_linear.pt": (LEXICAL, nn.ReLU), "colbert_linear.pt": (MULTI, Normalize)}
# The tokens whose weights FlagEmbedding leaves out, by the tokenizer's names of them.
UNWEIGHED = ("cls_token_id", "eos_token_id", "pad_token_id", "unk_token_id")


def with_token_scores(folder: Path, sentence: SentenceModules | None) -> SentenceModules | None:
    """What the folder's modules make, and what its linear layers make beside that; the same where it has none.

    Without modules.json a text's vector is its first token's at unit length, as FlagEmbedding makes it.

    Raises:
        LoadError: the files hold something else, or modules that make no vector of a text stand beside them.
    """
    there = [name for name in FILES if (folder / name).is_file()]
    if not there:
        return sentence
    if sentence is None:
        sentence = SentenceModules((PoolKind.CLS,), Chain([Pooled((PoolKind.CLS,))]), normalize=True)
    if sentence.scores or sentence.sparse or sentence.interacts or not sentence.pools:
        raise LoadError(
            f"{folder} holds {', '.join(there)}, which stand beside modules that pool a text to one vector, and its "
            "modules.json lists others. Move the files away, or give the folder that they belong to."
        )
    layers = [_layer(folder / name) for name in there]
    return replace(sentence, chain=Chain([*layers, *sentence.chain.members]).to(dtype=torch.float32))


def _layer(path: Path) -> SentenceModule:
    name, after = FILES[path.name]
    with readable(path):
        held: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    weight = held.get("weight")
    if weight is None or weight.dim() != 2 or not set(held) <= {"weight", "bias"}:
        raise LoadError(
            f"{path} holds {', '.join(map(str, held)) or 'nothing'}; the weight [d, width] of a linear layer is "
            "accepted, and its bias."
        )
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in held)
    linear.load_state_dict(held)
    return Applied(nn.Sequential(linear, after()), ROWS, name)


def token_interaction(sentence: SentenceModules | None) -> Interaction | None:
    """Which tokens' vectors score, where they stand beside a text's: all but the first, which is pooled."""
    made = sentence is not None and sentence.chain.writes(MULTI)
    return Interaction(begins=1, similarity=Similarity.MEANMAXSIM) if made else None


def unweighed(sentence: SentenceModules | None, tokenizer: Any) -> tuple[int, ...]:
    """The ids whose weights do not count, where tokens have some."""
    if sentence is None or tokenizer is None or not sentence.chain.writes(LEXICAL):
        return ()
    found = {getattr(tokenizer, name, None) for name in UNWEIGHED}
    return tuple(sorted(one for one in found if one is not None))
