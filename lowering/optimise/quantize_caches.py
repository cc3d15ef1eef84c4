"""Keep keys and values in eight bits between steps, and measure what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, fx
from torch.nn.functional import cosine_similarity

from headrace import graphs, sample
from headrace.errors import InputError
from headrace.graphs.views import arguments, in_order
from headrace.ir import (
    CODES,
    CROSS,
    DTYPE_BYTES,
    Cache,
    CacheDtype,
    CacheKind,
    Input,
    OutputKind,
    Program,
    QuantizedCaches,
    Role,
)
from headrace.lowering.decide.padding import wide_outputs
from headrace.lowering.forms.pieces import Pieces, Texts
from headrace.ops.cached import ATTENTION_PAGED

# Tokens of the sample texts, as far as the program takes them.
LENGTHS = (48, 7, 24)


@dataclass(frozen=True)
class QuantizeCaches:
    """Keys and values of a cached program are codes of eight bits with a scale for each token and head.

    States of recurrences stay as they are: they are written over and over, so that errors would add up.
    """

    name: str = "quantize-caches"

    def __call__(self, program: Program) -> Program:
        """Swap the caches, and run sample texts with both.

        Raises:
            InputError: the program keeps no keys and values of its own text, or an encoder's beside them.
        """
        paged = [cache for cache in program.form.caches if cache.kind is CacheKind.PAGED]
        _refuse(program, paged)
        forms = {cache.name: (cache.name, 4, torch.uint8) for cache in paged}
        forms |= {_scales(cache.name): (cache.name, 3, torch.float32) for cache in paged}
        exported = graphs.rewrite(graphs.with_inputs(program.graph, forms), _swap)
        caches = tuple(made for cache in program.form.caches for made in _coded(cache))
        paged_after = [cache for cache in caches if cache.kind is CacheKind.PAGED]
        made = program.with_(
            exported=exported, caches=caches, inputs=_inputs(program, paged),
            quantized_caches=QuantizedCaches(CacheDtype.FP8, _bytes(paged), _bytes(paged_after), 0, 1.0, 1.0),
        )  # fmt: skip
        return _measured(program, made)


def _refuse(program: Program, paged: Sequence[Cache]) -> None:
    if not paged:
        raise InputError(
            f'{program.source.name} keeps no keys and values, so that kv_cache_dtype="{CacheDtype.FP8}" would change '
            "nothing. Leave it out."
        )
    if CROSS in program.form.groups:
        raise InputError(
            f"{program.source.name} keeps an encoder's keys and values beside its own, which are written whole. "
            f'kv_cache_dtype="{CacheDtype.FP8}" is for models of one text alone. Leave it out.'
        )


def _scales(name: str) -> str:
    return f"{name}_scale"


def _coded(cache: Cache) -> tuple[Cache, ...]:
    """What takes the place of a cache."""
    if cache.kind is not CacheKind.PAGED:
        return (cache,)
    scales = replace(cache, name=_scales(cache.name), sizes=cache.sizes[:1], dtype="float32")
    return replace(cache, dtype=CODES), scales


def _inputs(program: Program, paged: Sequence[Cache]) -> tuple[Input, ...]:
    """Those of the program, the scales at their end."""
    names = [cache.name for cache in paged]
    given = tuple(replace(one, dtype=CODES) if one.name in names else one for one in program.signature.inputs)
    known = {one.name: one.axes for one in given}
    scales = (Input(_scales(name), Role.CACHE, "float32", known[name][:3]) for name in names)
    return (*given, *scales)


def _bytes(caches: Sequence[Cache]) -> int:
    return sum(prod(cache.sizes) * DTYPE_BYTES[cache.dtype] for cache in caches)


def _swap(graph: fx.Graph) -> None:
    """Each attention is given the scales of the caches that it reads."""
    named = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for node in graph.nodes:
        if node.target is ATTENTION_PAGED:
            given = {"v_width": 0} | arguments(node)
            for x in "kv":
                cache = given[f"{x}_cache"]
                given[f"{x}_scale"] = None if cache is None else named[_scales(cache.name)]
            node.args, node.kwargs = in_order(ATTENTION_PAGED, given), {}


@torch.no_grad()
def _measured(plain: Program, made: Program) -> Program:
    """With what sample texts are answered otherwise, both computed in float32: what is left is of the eight bits."""
    longest = (plain.facts.limits.length if plain.facts.limits else None) or max(LENGTHS)
    texts = [sample.text(plain.signature, min(length, longest), seed) for seed, length in enumerate(LENGTHS)]
    wanted, got = (_answers(program, texts) for program in (plain, made))
    found = made.form.quantized_caches
    assert found is not None
    logits = plain.signature.outputs[0].kind is OutputKind.VOCABULARY_LOGITS
    cosines = cosine_similarity(got, wanted, -1)
    return made.with_(
        quantized_caches=replace(
            found, tokens=len(wanted), worst=float(cosines.min()), mean=float(cosines.mean()),
            same=int((got.argmax(-1) == wanted.argmax(-1)).sum()) if logits else None,
        )
    )  # fmt: skip


def _answers(program: Program, texts: Texts) -> Tensor:
    """A program's first output of each token, or of each text: [n, width]."""
    pools = Pieces(program, texts)
    made = wide_outputs(program, pools.inputs(pools.begin(max(LENGTHS))))[0]
    return (made[0] if made.dim() > 2 else made).double()
