"""A cached program in terms of ONNX: what it keeps is given as a past and returned as a present.

The program runs new tokens in one row after what their sequences left in paged caches. Its file runs a padded batch
`input_ids` [B, L] after pasts [B, heads, P, width], as those who deploy decoders know it. So the batch is laid out in
one row where the graph begins, and every operator that looks along the tokens takes it as a batch again. Which of the
keys are real, and their positions, is read off `attention_mask` [B, P + L]: padding may lie on either side, or between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import TensorProto
from torch import fx
from torch.export import ExportedProgram

from headrace import graphs
from headrace.backends.onnx import names
from headrace.backends.onnx.export.inputs import Tape, give, put_first
from headrace.backends.onnx.export.translate import Translation, as_function, first
from headrace.backends.onnx.profiles import Form, Profile
from headrace.compat.torch_code import define
from headrace.errors import TargetError
from headrace.ir import CROSS, BiasKind, OutputKind, Program, Role
from headrace.ops import cached
from headrace.ops.cached import ATTENTION_CROSS, ATTENTION_PAGED


def functional(schema: str) -> str:
    """The schema of an operator that writes nothing, of one that does, under another name.

    What writes is hidden from translations where torch decomposes what a graph holds beside it.
    """
    name, given = schema.split("(", 1)
    return f"{name}_past(" + re.sub(r"\(\w!\)", "", given)


# In place of each operator of a cached program that writes a cache; none is ever run.
FUNCTIONAL = {ATTENTION_PAGED: define(functional(cached.PAGED_SCHEMA), cached.attention_paged, cached.paged_shape)}
# Of a cached program's inputs, what is as long as its row of tokens, by the dimension that is.
ALONG = {Role.POSITIONS: 1, Role.SLOTS: 1, Role.TYPES: 1}


class PastTranslation(Translation):
    """The translations of a cached program, and the inputs and outputs that they made.

    Attributes:
        ids: the new tokens [B, L].
        padding: which of all tokens are real, [B, P + L].
        encoded: which of an encoder's rows are, [B, S].
    """

    def __init__(self, profile: Profile) -> None:
        """Begin without operators.

        Raises:
            TargetError: the profile has no place for a past.
        """
        if profile.attention is Form.LENGTHS:
            raise TargetError(
                f"The profile {profile.name} tells real keys by their number, beside which ONNX's Attention takes no "
                "past. Export generation with profile='std' or 'portable'."
            )
        super().__init__(profile)
        self.ids = given_ids(names.IDS, names.BATCH, names.SEQUENCE)
        self.padding = given_ids(names.PADDING, names.BATCH, names.TOTAL)
        self.encoded = given_ids(names.ENCODED_PADDING, names.BATCH, names.ENCODED)
        # By cache, the first output of the node that makes it, and which of its outputs that is: the exporter takes
        # those away that nothing reads yet.
        self._presents: dict[str, tuple[Any, int]] = {}
        # Of those the last entries along an axis, where that is what is kept.
        self._kept: dict[str, tuple[int, int]] = {}

    def table(self) -> dict[Any, Callable[..., Any]]:
        """What each operator becomes."""
        return super().table() | {
            FUNCTIONAL[ATTENTION_PAGED]: as_function(self.attention_paged),
            ATTENTION_CROSS: as_function(self.attention_cross),
        }

    def attention_paged(  # noqa: PLR0913, PLR0917 - what the operator takes
        self, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any, blocks: Any, cu_seqlens: Any,
        context: Any, sinks: Any, bias: Any, scale: float, kind: str, window: Sequence[int], softcap: float,
        bias_kind: str,
    ) -> Any:  # fmt: skip
        """`headrace::attention_paged`: [T, Hq, Dv]."""
        op, heads, width = self.op, int(q.shape[1]), int(v_cache.shape[3])
        seen = self._seen(kind, window)
        added = None if bias is None else self._distance(bias, bias_kind, q)
        plain = self.form is Form.PLAIN or sinks is not None or (bias is not None and softcap > 0)
        if k is not None and not plain:
            mask = self._added(seen, added)[0]
            options = {"q_num_heads": heads, "kv_num_heads": int(k.shape[1]), "scale": scale, "softcap": softcap}
            out = first(op.Attention(*map(self._beside, (q, k, v)), mask, k_cache, v_cache, **options))
            self._presents |= {k_cache.name: (out, 1), v_cache.name: (out, 2)}
        else:
            if k is not None:
                for cache, own in ((k_cache, k), (v_cache, v)):
                    self._presents[cache.name] = (op.Concat(cache, self._batched(own), axis=2), 0)
            keys, values = (
                _known(self.present(cache.name), cache.dtype, *cache.shape[2:]) for cache in (k_cache, v_cache)
            )
            q = self._batched(q)
            if plain:
                out = self._plain(q, keys, values, seen, added, sinks, scale, softcap)
            else:  # an earlier layer put them there
                found = op.Attention(q, keys, values, *self._added(seen, added), scale=scale, softcap=softcap)
                out = op.Transpose(first(found), perm=(0, 2, 1, 3))
        return op.Reshape(out, self._ints(-1, heads, width))

    def attention_cross(
        self, q: Any, k_cache: Any, v_cache: Any, blocks: Any, cu_seqlens: Any, lengths: Any, sinks: Any,
        scale: float, softcap: float,
    ) -> Any:  # fmt: skip
        """`headrace::attention_cross`: [T, Hq, Dv]."""
        op, heads, width = self.op, int(q.shape[1]), int(v_cache.shape[3])
        q = self._batched(q)
        real = op.Unsqueeze(self._truth(self.encoded), self._ints(1, 2))
        seen = op.Expand(
            real, self._shape(self._dim(self.ids, 0), 1, self._dim(self.ids, 1), self._dim(self.encoded, 1))
        )
        if self.form is Form.PLAIN or sinks is not None:
            keys, values = (_known(op.Identity(x), x.dtype, *x.shape[2:]) for x in (k_cache, v_cache))
            out = self._plain(q, keys, values, seen, None, sinks, scale, softcap)
        else:
            found = op.Attention(q, k_cache, v_cache, seen, scale=scale, softcap=softcap)
            out = op.Transpose(first(found), perm=(0, 2, 1, 3))
        return op.Reshape(out, self._ints(-1, heads, width))

    def present(self, cache: str) -> Any:
        """What a cache holds after the new tokens."""
        made, place = self._presents[cache]
        node = made.producer()
        if place >= len(node.outputs):
            node.resize_outputs(place + 1)
        return node.outputs[place]

    def presents(self, tape: Tape) -> dict[str, ir.Value]:
        """What each cache holds after the new tokens, as far as it is kept."""
        found = {cache: self.present(cache) for cache in self._presents}
        for cache, (axis, count) in self._kept.items():
            bounds = [tape.constant([bound]) for bound in (-count, np.iinfo(np.int64).max, axis)]
            found[cache] = tape.op("Slice", [found[cache], *bounds])
            if axis == 1:  # the last token itself
                found[cache] = tape.op("Squeeze", [found[cache], tape.constant([1])])
        return found

    def _batched(self, x: Any) -> Any:
        """Rows [T, H, D] as [B, H, L, D]."""
        op, (heads, width) = self.op, (int(size) for size in x.shape[1:])
        shape = self._shape(self._dim(self.ids, 0), self._dim(self.ids, 1), heads, width)
        return _known(op.Transpose(op.Reshape(x, shape), perm=(0, 2, 1, 3)), x.dtype, heads, width)

    def _beside(self, x: Any) -> Any:
        """Rows [T, H, D] as [B, L, H * D], as which an operator that is told of heads takes them."""
        heads, width = (int(size) for size in x.shape[1:])
        return self.op.Reshape(x, self._shape(self._dim(self.ids, 0), self._dim(self.ids, 1), heads * width))

    def _positions(self) -> tuple[Any, Any]:
        """Those of the queries, [B, 1, L, 1], and of the keys, [B, 1, 1, P + L]: how many real tokens came before."""
        op = self.op
        places = op.Sub(op.CumSum(op.Cast(self.padding, to=TensorProto.INT64), self._size(1)), self._size(1))
        total = self._dim(self.padding, 1)
        first = op.Sub(total, self._dim(self.ids, 1))
        own = op.Slice(places, self._shape(first), self._shape(total), self._ints(1))
        return op.Unsqueeze(own, self._ints(1, 3)), op.Unsqueeze(places, self._ints(1, 2))

    def _seen(self, kind: str, window: Sequence[int]) -> Any:
        """Which keys each query sees: bool [B, 1, L, P + L]."""
        real = self.op.Unsqueeze(self._truth(self.padding), self._ints(1, 2))
        return self.op.And(self._related(*self._positions(), kind, window), real)

    def _distance(self, bias: Any, kind: str, like: Any) -> Any:
        """A bias of the distance alone, [B or 1, Hq, L, P + L]. See `headrace.ops.packed.distance_bias`."""
        op, (queries, keys) = self.op, self._positions()
        distance = op.Sub(keys, queries)
        if kind == BiasKind.ALIBI:
            slopes = op.Reshape(op.Neg(bias), self._ints(1, -1, 1, 1))
            return op.Mul(slopes, op.CastLike(op.Abs(distance), slopes))
        reach = (int(bias.shape[1]) - 1) // 2
        place = op.Add(op.Clip(distance, self._size(-reach), self._size(reach)), self._size(reach))
        found = op.Gather(bias, op.Squeeze(place, self._ints(1)), axis=1)
        return op.CastLike(op.Transpose(found, perm=(1, 0, 2, 3)), like)


def _known(made: Any, dtype: Any, heads: int, width: int) -> Any:
    """Say of a value [B, heads, length, width] what the translations ask."""
    made.dtype, made.shape = dtype, ir.Shape([None, heads, None, width])
    return made


def given_ids(name: str, *sizes: str) -> ir.Value:
    """An input of whole numbers."""
    return ir.Value(name=name, shape=ir.Shape(sizes), type=ir.TensorType(ir.DataType.INT64))


def translatable(program: Program, functional: Mapping[Any, Any]) -> ExportedProgram:
    """The exported program without what a file has not: operators that write, and sizes of inputs that are not given.

    Args:
        functional: by operator the one that takes its place.
    """
    along = {one.name: ALONG[one.role] for one in program.signature.inputs if one.role in ALONG}
    ids = program.signature.name(Role.IDS)

    def edit(graph: fx.Graph) -> None:
        tokens = next(node for node in graph.nodes if node.op == "placeholder" and node.name == ids)
        for node in graph.nodes:
            node.target = functional.get(node.target, node.target)
            if node.target is graphs.SIZE and along.get(node.args[0].name) == node.args[1]:
                node.args = (tokens, 1)

    return graphs.rewrite(program.graph, edit)


def give_past(model: ir.Model, program: Program, made: PastTranslation, last: bool) -> list[str]:
    """Inputs and outputs as users know them, in place of those of a row.

    Args:
        last: whether logits are of the last token of each sequence alone.

    Returns:
        The names of the outputs, in order: they are given once nothing renames values any more.
    """
    given, tape = {value.name: value for value in model.graph.inputs}, Tape("row")
    inputs = [made.ids, made.padding]
    if CROSS in program.form.groups:
        made.padding.name = names.DECODED_PADDING
        inputs.append(made.encoded)
    inputs += _give_row(tape, program, given, made.ids, last)
    put_first(model, tape)
    pasts = names.pasts(program)
    end = Tape("kept")
    presents = made.presents(end)
    model.graph.extend(end.nodes)
    for cache, known in pasts.items():
        _settle(given[cache], presents.get(cache), known)
    model.graph.inputs[:] = [*inputs, *(given[cache] for cache in pasts)]
    model.graph.outputs[:] = [
        _as_batch(model, made.ids, 1 if last else names.SEQUENCE),
        *(presents[cache] for cache in pasts if cache in presents),
    ]
    return [names.OUTPUTS[OutputKind.VOCABULARY_LOGITS], *(known.after for known in pasts.values() if known.after)]


def _give_row(
    tape: Tape, program: Program, given: dict[str | None, ir.Value], ids: ir.Value, last: bool
) -> list[ir.Value]:
    """What the inputs of a row are made of; returned are the further inputs that this takes."""
    row, further = tape.op("Reshape", [ids, tape.constant([1, -1])]), list[ir.Value]()
    for one in program.signature.inputs:
        value = given[one.name]
        value.name = f"row_{one.name}"  # an input may be called as the one that takes its place
        if one.role is Role.IDS:
            give(value, row)
        elif one.role is Role.POSITIONS:
            further.append(given_ids(names.POSITIONS, names.BATCH, names.SEQUENCE))
            places = tape.op("Reshape", [further[-1], tape.constant([1, -1])])
            give(value, tape.op("Add", [places, tape.constant(program.facts.positions.offset)]))
        elif one.role is Role.TYPES:
            give(value, tape.op("Expand", [tape.constant(0), tape.op("Shape", [row])]))
        elif one.role is Role.SLOTS:  # of which torch may read the row's length, where it traces a graph anew
            groups = tape.constant([len(program.form.groups)])
            sizes = tape.op("Concat", [groups, tape.op("Shape", [row], {"start": 1})], {"axis": 0})
            give(value, tape.op("Expand", [tape.constant(0), sizes]))
        elif one.role is Role.WANTED:
            give(value, _wanted(tape, ids, last))
    return further


def _wanted(tape: Tape, ids: ir.Value, last: bool) -> ir.Value:
    """The places in the row whose logits are returned, [w]."""
    end = tape.op("Size", [ids])
    if not last:
        return tape.op("Range", [tape.constant(0), end, tape.constant(1)])
    length = tape.op("Squeeze", [tape.op("Shape", [ids], {"start": 1, "end": 2})])
    return tape.op("Range", [tape.op("Sub", [length, tape.constant(1)]), end, length])


def _settle(past: ir.Value, present: ir.Value | None, known: names.Past) -> None:
    """A cache's values before and after, sized; the first is named too."""
    past.name, past.shape = known.before, ir.Shape(known.sizes)
    if present is not None:
        present.type = past.type
        present.shape = ir.Shape([names.TOTAL if size == names.PAST else size for size in known.sizes])


def _as_batch(model: ir.Model, ids: ir.Value, rows: int | str) -> ir.Value:
    """The logits [1, w, V] as [B, 1 or L, V]."""
    (logits,), tape = model.graph.outputs, Tape("batch")
    assert logits.shape is not None
    width = logits.shape[2]
    assert isinstance(width, int), "a vocabulary has one size"
    batch = tape.op("Shape", [ids], {"start": 0, "end": 1})
    sizes = tape.op("Concat", [batch, tape.constant([-1, width])], {"axis": 0})
    made = tape.op("Reshape", [logits, sizes])
    made.type, made.shape = logits.type, ir.Shape([names.BATCH, rows, width])
    model.graph.extend(tape.nodes)
    return made
