"""The recurrent operators of rows in which sequences follow one another: packed ones, and those of the cached form.

`headrace::NAME_varlen` takes what `headrace::NAME` does, with one row of tokens, then int32 `cu_seqlens` [n + 1], where
each sequence begins, and the end of the last. Every sequence begins from nothing; empty ones are allowed, and tokens
past the last one are zeros in the answer. That is laid out token by token, whichever dimension its tokens follow.

`headrace::NAME_state` goes on from the state that each sequence left: it takes what `headrace::NAME` does, with one
such row, then a pool of states [N, ...] which it writes, and int32 `rows` [n] (the row of each sequence in the pool),
`cu_seqlens` [n + 1] and `context` [n], how many of its tokens came before. A sequence of no context begins from
nothing, whatever its row holds, and one of no tokens leaves its row as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headrace.compat.torch_code import define
from headrace.ir import PoolKind
from headrace.ops import linear_recurrence as linear
from headrace.ops import recurrent
from headrace.ops.packed import divisor, largest, summed

Sizes = tuple[int, ...]
STATE_ARGUMENTS = "Tensor(a!) state, Tensor rows, Tensor cu_seqlens, Tensor context"


@dataclass(frozen=True)
class Recurrence:
    """One recurrent operator and how its state is kept.

    Attributes:
        operator: the one of whole sequences.
        schema: of that.
        run: its definition: operands, then a state [B, ...], to its answer and the state after it.
        like: what its answer looks like, from operands without values.
        along: the dimension of each operand that its tokens follow, None where it has none.
        answer: that of its answer.
        sizes: of one sequence's state, from the operands' shapes.
        narrow: whether the state has the answer's dtype, not the accumulator's.
        empty: the state of no token, from one of its shape.
    """

    operator: Any
    schema: str
    run: Callable[..., tuple[Tensor, Tensor]]
    like: Callable[..., Tensor]
    along: tuple[int | None, ...]
    answer: int
    sizes: Callable[[list[Sizes]], Sizes]
    narrow: bool = False
    empty: Callable[[Tensor], Tensor] = torch.zeros_like

    @property
    def name(self) -> str:
        """The operator's bare name."""
        return str(self.operator).split(".")[1]

    def state_sizes(self, operands: tuple[Any, ...]) -> Sizes:
        """The sizes of one sequence's state, from operands with or without values."""
        return self.sizes([tuple(x.shape) if isinstance(x, Tensor) else () for x in operands])

    def state_dtype(self, operands: tuple[Any, ...]) -> torch.dtype:
        """The dtype that the state is kept in."""
        tokens = [x for x, place in zip(operands, self.along, strict=True) if place is not None]
        return self.like(*operands).dtype if self.narrow else recurrent.accumulator(*tokens)

    def go_on(self, *given: Any) -> Tensor:
        """The definition of the stateful operator: every sequence alone, but those of one token together."""
        *operands, state, rows, cu_seqlens, context = given
        y = torch.zeros_like(self.like(*operands))
        begins, counts, rows = cu_seqlens[:-1].long(), cu_seqlens.diff(), rows.long()
        before = state[rows]
        fresh = (context == 0).reshape(-1, *[1] * (before.dim() - 1))
        before = torch.where(fresh, self.empty(before), before)
        single = (counts == 1).nonzero()[:, 0]
        if len(single):
            at = begins[single]
            now, after = self.run(*self._of(operands, lambda x, dim: x.index_select(dim, at).transpose(0, dim)),
                                  before[single])  # fmt: skip
            y.transpose(0, self.answer)[at] = now
            state[rows[single]] = after.to(state.dtype)
        for order, (begin, count) in enumerate(zip(begins.tolist(), counts.tolist(), strict=True)):
            if count > 1:
                own = self._of(operands, lambda x, dim, begin=begin, count=count: x.narrow(dim, begin, count))
                now, after = self.run(*own, before[order : order + 1])
                y.narrow(self.answer, begin, count).copy_(now)
                state[rows[order]] = after[0].to(state.dtype)
        return y

    def each(self, *given: Any) -> Tensor:
        """The definition of the packed operator: every sequence alone."""
        *operands, cu_seqlens = given
        y = self._by_token(*given).zero_()
        for begin, end in itertools.pairwise(cu_seqlens.tolist()):
            if end > begin:
                own = self._of(operands, lambda x, dim, begin=begin, end=end: x.narrow(dim, begin, end - begin))
                y.narrow(self.answer, begin, end - begin).copy_(self.operator(*own))
        return y

    def _by_token(self, *given: Any) -> Tensor:
        """An answer without values, laid out token by token."""
        like = self.like(*given[:-1]).movedim(self.answer, 1)
        return like.new_empty(like.shape).movedim(1, self.answer)

    def _of(self, operands: list[Any], part: Callable[..., Tensor]) -> list[Any]:
        """The operands, of those that have tokens a part."""
        return [x if x is None or dim is None else part(x, dim) for x, dim in zip(operands, self.along, strict=True)]

    @cached_property
    def varlen(self) -> Any:
        """The operator of a packed row: by `each`, on any device."""
        taken = self.schema.replace(") ->", ", Tensor cu_seqlens) ->")
        return define(f"{self.name}_varlen{taken}", self.each, self._by_token)

    @cached_property
    def going_on(self) -> Any:
        """The operator that goes on from a state: by `go_on`, on any device."""
        taken = self.schema.replace(") ->", f", {STATE_ARGUMENTS}) ->")
        return define(f"{self.name}_state{taken}", self.go_on, lambda *given: self.like(*given[:-4]))


RECURRENCES: dict[Any, Recurrence] = {
    one.operator: one
    for one in (
        Recurrence(
            recurrent.CAUSAL_CONV1D, recurrent.CONVOLUTION_SCHEMA, recurrent.run_convolution,
            recurrent.convolution_shape, (2, None, None), 2, lambda given: (given[1][0], given[1][1] - 1), narrow=True,
        ),
        Recurrence(
            recurrent.SELECTIVE_SCAN, recurrent.SELECTIVE_SCHEMA, recurrent.run_selective,
            recurrent.selective_scan_shape, (2, 2, None, 2, 2, None, 2, None, None), 2, lambda given: given[2],
        ),
        Recurrence(
            recurrent.CHUNK_SCAN, recurrent.CHUNK_SCHEMA, recurrent.run_chunk, recurrent.chunk_scan_shape,
            (1, 1, None, 1, 1, None, None, None, None, None), 1, lambda given: (*given[0][2:], given[3][3]),
        ),
        Recurrence(
            recurrent.GATED_DELTA_RULE, recurrent.DELTA_SCHEMA, recurrent.run_delta, recurrent.gated_delta_rule_shape,
            (1, 1, 1, 1, 1, None), 1, lambda given: (given[2][2], given[0][3], given[2][3]),
        ),
        Recurrence(
            recurrent.TOKEN_SHIFT, recurrent.SHIFT_SCHEMA, recurrent.run_shift, recurrent.token_shift_shape,
            (1,), 1, lambda given: given[0][2:], narrow=True,
        ),
        Recurrence(
            linear.LINEAR_RECURRENCE, linear.LINEAR_SCHEMA, linear.run_linear, linear.linear_recurrence_shape,
            (1, 1), 1, lambda given: given[0][2:],
        ),
        Recurrence(
            linear.WKV, linear.WKV_SCHEMA, linear.run_wkv, linear.wkv_shape, (None, None, 1, 1), 1,
            lambda given: (3, given[2][2]), empty=linear.empty_wkv,
        ),
        Recurrence(
            linear.MLSTM, linear.MLSTM_SCHEMA, linear.run_mlstm, linear.mlstm_shape, (2, 2, 2, 2, 2, None), 2,
            lambda given: (given[0][1], given[0][3], given[2][3] + 2),
        ),
    )
}  # fmt: skip
VARLEN: dict[Any, Recurrence] = {one.varlen: one for one in RECURRENCES.values()}
STATEFUL: dict[Any, Recurrence] = {one.going_on: one for one in RECURRENCES.values()}


POOL_SCHEMA = f"pool_state(Tensor hidden, str kind, {STATE_ARGUMENTS}) -> Tensor"


def pool_state(hidden: Tensor, kind: str, state: Tensor, rows: Tensor, cu_seqlens: Tensor, context: Tensor) -> Tensor:
    """`pool` of texts that come in pieces: of rows [1, T, H], and of those before, each sequence's one so far, [n, H].

    Args:
        kind: a `PoolKind`, but for the last row, which needs no state.
        state: [N, H], the first row, the largest, or the sum, in float32.
    """
    begin, end, kept = cu_seqlens[:-1].long(), cu_seqlens[1:].long(), rows.long()
    fresh, before, own = (context == 0)[:, None], state[kept], hidden[0]
    if kind == PoolKind.CLS:
        first = own.index_select(0, begin.clamp(max=own.shape[0] - 1))
        after = torch.where(fresh, first.to(state.dtype), before)
    elif kind == PoolKind.MAX:
        after = torch.where(fresh, -torch.inf, before).maximum(largest(own, end - begin))
    else:
        after = torch.where(fresh, 0.0, before) + summed(own, begin, end, begin - context, kind)
    after = torch.where((end > begin)[:, None], after, before)
    state[kept] = after
    if kind in {PoolKind.CLS, PoolKind.MAX}:
        return after.to(hidden.dtype)
    return (after / divisor(kind, end - begin + context)).to(hidden.dtype)


def pooled_shape(hidden: Tensor, _: str, __: Tensor, rows: Tensor, *___: object) -> Tensor:
    """[n, H]."""
    return hidden.new_empty((rows.shape[0], hidden.shape[2]))


POOL_STATE = define(POOL_SCHEMA, pool_state, pooled_shape)
