"""The graph of a cached program: what looks along the tokens swapped for what goes on from a cache."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from headrace import graphs
from headrace.errors import TraceError
from headrace.graphs.surgery import measure_elsewhere
from headrace.graphs.views import arguments
from headrace.ir import (
    CROSS,
    OFFSETS,
    PER_TOKEN_OUTPUTS,
    AttentionType,
    Axis,
    BiasKind,
    Cache,
    CacheGroup,
    CacheKind,
    Input,
    MaskKind,
    Output,
    OutputKind,
    PoolKind,
    Program,
    Role,
)
from headrace.lowering.forms.compressed import Compressed, read_compressed
from headrace.lowering.forms.packed import BOUNDS, ROW, TOKENS, drop_ones
from headrace.lowering.forms.positions import feed_positions, given_positions, own_positions
from headrace.lowering.recover.shifts import recover_shifts
from headrace.lowering.types.relative_bias import Distance, null_biases, read_biases
from headrace.ops.attention import ATTENTION, POOL
from headrace.ops.cached import ATTENTION_CROSS, ATTENTION_PAGED
from headrace.ops.packed import POOL_VARLEN
from headrace.ops.stateful import POOL_STATE, RECURRENCES

A = torch.ops.aten
ASSERTIONS = frozenset({A._assert_tensor_metadata.default, A._assert_scalar.default})
GROUPS, SEQUENCES, HELD, ASKED = Axis("groups"), Axis("sequences"), Axis("blocks of a sequence"), Axis("asked")
BLOCKS, STATES = Axis("blocks"), Axis("states")
# What a step of a cached program takes beside ids, positions and types: the input, its dtype and its axes.
STEP = {
    Role.OFFSETS: Input(OFFSETS, Role.OFFSETS, "int32", (BOUNDS,)),
    Role.CONTEXT: Input("context", Role.CONTEXT, "int32", (SEQUENCES,)),
    Role.WANTED: Input("wanted", Role.WANTED, "int64", (ASKED,)),
    Role.SLOTS: Input("slots", Role.SLOTS, "int64", (GROUPS, TOKENS)),
    Role.BLOCKS: Input("blocks", Role.BLOCKS, "int32", (GROUPS, SEQUENCES, HELD)),
    Role.ROWS: Input("rows", Role.ROWS, "int32", (SEQUENCES,)),
    Role.LENGTHS: Input("lengths", Role.LENGTHS, "int32", (SEQUENCES,)),
}
FULL = "full"


@dataclass
class CachedGraph:
    """The graph while it is rewritten, and what it will keep."""

    program: Program
    widest_row: int = 0
    module: fx.GraphModule = field(init=False)
    given: dict[Role, fx.Node] = field(default_factory=dict)
    caches: list[Cache] = field(default_factory=list)
    groups: list[CacheGroup] = field(default_factory=list)
    # Of keys and values, the caches that hold them: layers may share those of an earlier one.
    written: dict[tuple[Any, ...], tuple[fx.Node, fx.Node | None]] = field(default_factory=dict)
    # Of attentions by name, what is kept in place of their keys and values.
    compressed: dict[str, Compressed] = field(default_factory=dict)
    crossed: list[str] = field(default_factory=list)
    encoder: tuple[fx.Node, ...] = ()
    whole_why: str = ""  # as of `Form`
    pooled: set[str] = field(default_factory=set)  # the caches of what is pooled so far

    def __post_init__(self) -> None:
        self.module = graphs.flat_module(self.program.graph)
        self.graph = self.module.graph
        placeholders = {node.name: node for node in self.graph.nodes if node.op == "placeholder"}
        self.last = list(placeholders.values())[-1]
        self.given = {one.role: placeholders[one.name] for one in self.program.signature.inputs}
        if Role.TARGET_IDS in self.given:
            self._take_target()

    def swap(self) -> None:
        """Rewrite the graph. All that is read by running it comes first."""
        biases, own = read_biases(self.program), own_positions(self.program, self.module)
        null = null_biases(self.program)
        rows = self._rows() if self.widest_row else [None] * len(biases)
        recover_shifts(self.graph)
        if own:
            self.given[Role.POSITIONS] = self.last = given_positions(self.program, self.graph, self.last)
            feed_positions(self.graph, own, self.given[Role.POSITIONS])
        for order, node in enumerate(self._calls(ATTENTION)):
            spec = self.program.nodes.attention[order]
            if spec.type is AttentionType.ENCODER_DECODER:
                self._cross(node, order in null)
            elif spec.type is AttentionType.DECODER:
                self._attend(node, spec.node, biases[order], order, rows[order])
        for order, node in enumerate(self._calls(*RECURRENCES)):
            self._go_on(node, order)
        for order, node in enumerate(self._calls(POOL)):
            self._pool(node, order)
        self._return()
        self._clean()

    def _rows(self) -> list[Compressed | None]:
        """What is kept of each attention in place of its keys and values; None where those are."""
        found = read_compressed(self.program)
        if widest := max((row.width for row in found if row and row.width > self.widest_row), default=0):
            self.whole_why = f"a row of {widest} numbers makes them, and the target keeps rows of {self.widest_row}"
        return [row if row and row.width <= self.widest_row else None for row in found]

    def _calls(self, *targets: Any) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.target in targets]

    def _clean(self) -> None:
        """Erase what nothing reads any more."""
        self._drop_padding()
        for node in list(self.graph.nodes):
            if node.target in ASSERTIONS:  # it has an effect, so it would keep alive what it looks at
                self.graph.erase_node(node)
        self.graph.eliminate_dead_code()
        for node in self.encoder:
            if node.users:
                raise TraceError(f"The decoder reads the text's {node.name} past its cross attentions.")
            self.graph.erase_node(node)
        for role, node in list(self.given.items()):
            if not node.users and role not in (Role.IDS, Role.OFFSETS, Role.CONTEXT, Role.WANTED):
                self.graph.erase_node(self.given.pop(role))
        self.module.recompile()

    def inputs(self, block: int) -> tuple[Input, ...]:
        """What the graph takes, in its order."""
        made = {node.name: Input(node.name, role, "int64", (ROW, TOKENS)) for role, node in self.given.items()}
        made |= {one.name: one for role, one in STEP.items() if role in self.given}
        axes = {CacheKind.PAGED: (BLOCKS, Axis("block", block)), CacheKind.ROW: (STATES,)}
        for cache in self.caches:
            sizes = tuple(Axis(f"{cache.name}_{place}", size) for place, size in enumerate(cache.sizes))
            made[cache.name] = Input(cache.name, Role.CACHE, cache.dtype, axes[cache.kind] + sizes)
        known = {GROUPS: Axis("groups", len(self.groups))}
        taken = [made[node.name] for node in self.graph.nodes if node.op == "placeholder"]
        return tuple(replace(one, axes=tuple(known.get(axis, axis) for axis in one.axes)) for one in taken)

    def _take(self, name: str) -> fx.Node:
        with self.graph.inserting_after(self.last):
            taken: fx.Node = self.graph.placeholder(name)
        self.last = taken
        return taken

    def _of(self, role: Role) -> fx.Node:
        if role not in self.given:
            self.given[role] = self._take(STEP[role].name)
        return self.given[role]

    def _keep(
        self, name: str, kind: CacheKind, sizes: tuple[int, ...], dtype: torch.dtype, group: str | None = None
    ) -> fx.Node:
        self.caches.append(Cache(name, kind, sizes, str(dtype).removeprefix("torch."), group))
        return self._take(name)

    def _attend(self, node: fx.Node, name: str, bias: Distance | None, order: int, row: Compressed | None) -> None:
        """[1, H, T, D] operands to the operator's [T, H, D], and its answer back to [1, T, H, Dv]."""
        args = arguments(node)
        if bias is None and args["bias"] is not None:
            raise TraceError(
                f"{name} adds a bias of the shape of its scores, which a cached program does not have: it is no "
                "function of the distance between query and key."
            )
        group = self._group(MaskKind(args["kind"]), args["window"][0])
        place, key = self.groups.index(group), (args["k"], args["v"], group)
        shared = key in self.written
        if not shared:
            self.written[key] = self._paged(args, group, len(self.written), row)
        if row is not None:
            self.compressed[name] = row
        slots, blocks, offsets, context = map(self._of, (Role.SLOTS, Role.BLOCKS, Role.OFFSETS, Role.CONTEXT))
        if bias is not None:
            self.module.register_buffer(f"distance_bias_{order}", bias.values)
        call = self.graph.call_function
        with self.graph.inserting_before(node):
            read = "q" if shared or row else "qkv"
            operands = [call(A.transpose.int, (call(A.select.int, (args[x], 0, 0)), 0, 1)) for x in read]
            q, own = operands[0], list[Any](operands[1:]) or [None, None]
            if row is not None:
                q, own = self._onto_row(q, row, order), [None if shared else self._row(row), None]
            tables = [call(A.select.int, (table, 0, place)) for table in (slots, blocks)]
            added = None if bias is None else self.graph.get_attr(f"distance_bias_{order}")
            told = bias.kind.value if bias else BiasKind.NONE.value
            new = call(ATTENTION_PAGED, (
                q, *own, *self.written[key], *tables, offsets, context, args["sinks"], added,
                args["scale"], args["kind"], args["window"], args["softcap"], told,
                *([row.value_map.shape[1]] if row else []),
            ))  # fmt: skip
            rows = call(A.unsqueeze.default, (self._off_row(new, row, order) if row else new, 0))
        graphs.replace(node, rows)

    def _row(self, row: Compressed) -> fx.Node:
        """[T, 1, C]: what is kept of each token."""
        call, named = self.graph.call_function, {node.name: node for node in self.graph.nodes}
        parts = []
        for name, axis in row.rows:
            rest = [place for place in range(1, named[name].meta["val"].dim()) if place != axis]
            parts.append(call(A.flatten.using_ints, (call(A.permute.default, (named[name], [0, axis, *rest])), 2)))
        return call(A.transpose.int, (call(A.cat.default, (parts, -1)), 0, 1))

    def _onto_row(self, q: fx.Node, row: Compressed, order: int) -> fx.Node:
        """Queries [T, Hq, D] to what scores rows as they would score keys: [T, Hq, C]."""
        call, own = self.graph.call_function, row.key_map.shape[1]
        begin = row.shared if row.shared_first else 0
        mapped = self._mapped(call(A.slice.Tensor, (q, 2, begin, begin + own)), row.key_map, f"key_map_{order}")
        rest = call(A.slice.Tensor, (q, 2, own - begin, own - begin + row.shared))
        return call(A.cat.default, ([mapped, rest], -1)) if row.shared else mapped

    def _off_row(self, rows: fx.Node, row: Compressed, order: int) -> fx.Node:
        """What was gathered of rows' first numbers, [T, Hq, W], to what would have been of values: [T, Hq, Dv]."""
        mapped = self._mapped(rows, row.value_map, f"value_map_{order}")
        return self.graph.call_function(A.clone.default, (mapped,), {"memory_format": torch.contiguous_format})

    def _mapped(self, x: fx.Node, weight: Tensor, name: str) -> fx.Node:
        """[T, Hq, from] by a map [Hq, from, to], [T, Hq, to]."""
        call = self.graph.call_function
        self.module.register_buffer(name, weight)
        heads = call(A.bmm.default, (call(A.transpose.int, (x, 0, 1)), self.graph.get_attr(name)))
        return call(A.transpose.int, (heads, 0, 1))

    def _cross(self, node: fx.Node, null: bool) -> None:
        """A cross attention reads what the encoder's part left in its caches; padding of the text is not among it."""
        args = arguments(node)
        if args["bias"] is not None and not null:
            raise TraceError(f"{node.name} adds a bias to the scores of an encoder's rows, which no cache keeps.")
        if CROSS not in self.groups:
            self.groups.append(CROSS)
        keys, values = self._paged(args, CROSS, len(self.crossed))
        self.crossed.append(node.name)
        blocks, offsets, lengths = map(self._of, (Role.BLOCKS, Role.OFFSETS, Role.LENGTHS))
        call = self.graph.call_function
        with self.graph.inserting_before(node):
            q = call(A.transpose.int, (call(A.select.int, (args["q"], 0, 0)), 0, 1))
            table = call(A.select.int, (blocks, 0, self.groups.index(CROSS)))
            given = (table, offsets, lengths, args["sinks"], args["scale"], args["softcap"])
            new = call(ATTENTION_CROSS, (q, keys, values, *given))
            rows = call(A.unsqueeze.default, (new, 0))
        graphs.replace(node, rows)

    def _take_target(self) -> None:
        """The decoder's own sequence is the one that grows; the encoder's inputs go with what read them."""
        self.encoder = tuple(
            node for role, node in self.given.items() if role not in (Role.TARGET_IDS, Role.TARGET_PADDING)
        )
        names = frozenset(node.name for node in self.encoder)
        measure_elsewhere(self.graph, names)
        self.given = {Role.IDS: self.given[Role.TARGET_IDS]} | (
            {Role.PADDING: self.given[Role.TARGET_PADDING]} if Role.TARGET_PADDING in self.given else {}
        )

    def _group(self, kind: MaskKind, left: int) -> CacheGroup:
        name = FULL if left < 0 else f"{'chunk' if kind is MaskKind.CHUNKED else 'window'}_{left + 1}"
        group = CacheGroup(name, kind, left)
        if group not in self.groups:
            self.groups.append(group)
        return group

    def _paged(
        self, args: dict[str, Any], group: CacheGroup, order: int, row: Compressed | None = None
    ) -> tuple[fx.Node, fx.Node | None]:
        if row is not None:
            dtype = args["k"].meta["val"].dtype
            return self._keep(f"row_{order}", CacheKind.PAGED, (1, row.width), dtype, group.name), None
        made = []
        for x in "kv":
            value = args[x].meta["val"]
            sizes = (int(value.shape[1]), int(value.shape[3]))
            name = f"cross_{x}_{order}" if group is CROSS else f"{x}_{order}"
            made.append(self._keep(name, CacheKind.PAGED, sizes, value.dtype, group.name))
        return made[0], made[1]

    def _go_on(self, node: fx.Node, order: int) -> None:
        kind, args = RECURRENCES[node.target], tuple(arguments(node).values())
        values = tuple(arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args)
        sizes = tuple(int(size) for size in kind.state_sizes(values))
        state = self._keep(f"state_{order}", CacheKind.ROW, sizes, kind.state_dtype(values))
        told = [self._of(role) for role in (Role.ROWS, Role.OFFSETS, Role.CONTEXT)]
        with self.graph.inserting_before(node):
            new = self.graph.call_function(kind.going_on, (*args, state, *told))
        graphs.replace(node, new)

    def _pool(self, node: fx.Node, order: int) -> None:
        """What is pooled of a text so far is kept; its last row is there when it is asked for."""
        hidden, kind = (arguments(node)[name] for name in ("hidden", "kind"))
        offsets, width = self._of(Role.OFFSETS), int(hidden.meta["val"].shape[2])
        if kind == PoolKind.LAST:
            target, args = POOL_VARLEN, tuple[Any, ...]((hidden, offsets, kind))
        else:
            dtype = torch.promote_types(hidden.meta["val"].dtype, torch.float32)
            name = f"pooled_{order}"
            self.pooled.add(name)
            state = self._keep(name, CacheKind.ROW, (width,), dtype)
            target, args = POOL_STATE, (hidden, kind, state, self._of(Role.ROWS), offsets, self._of(Role.CONTEXT))
        with self.graph.inserting_before(node):
            new = self.graph.call_function(target, args)
        graphs.replace(node, new)

    def outputs(self) -> tuple[Output, ...]:
        """What the graph returns: the program's outputs but the rows that a head reads."""
        return tuple(one for one in self.program.signature.outputs if one.kind is not OutputKind.HIDDEN)

    def _return(self) -> None:
        """Of an output with a row a token, the rows that are asked for; of one that is pooled, each sequence's."""
        returned: Any = self.graph.output_node().args[0]
        nodes = dict(zip(self.program.signature.outputs, returned, strict=True))
        hidden = [node for output, node in nodes.items() if output.kind is OutputKind.HIDDEN]
        per_token = [one for one in self.outputs() if one.kind in PER_TOKEN_OUTPUTS]
        assert len(per_token) <= 1, "a task with a row a token has a pass of its own"
        for output in per_token:
            pooled = [nodes[other] for other in self.outputs() if other is not output]
            nodes[output] = self._ask(nodes[output], hidden, pooled)
        self.graph.output_node().args = (tuple(nodes[output] for output in self.outputs()),)

    def _ask(self, answer: fx.Node, hidden: list[fx.Node], pooled: list[fx.Node]) -> fx.Node:
        """Let the head of an answer read the rows that are asked for, and no others."""
        wanted, _, _ = map(self._of, (Role.WANTED, Role.OFFSETS, Role.CONTEXT))
        cut: fx.Node = next((node for node in hidden if _passes(answer, node)), answer)
        of_answer, of_pooled = graphs.ancestors([answer]), graphs.ancestors(pooled)
        users = [user for user in cut.users if user in of_answer]
        if cut is not answer and of_pooled.intersection(users):  # what pools reads every row of what the head does
            cut = answer
        with self.graph.inserting_after(cut):
            asked = self.graph.call_function(A.index_select.default, (cut, 1, wanted))
        if cut is answer:
            return asked
        for user in users:
            user.replace_input_with(cut, asked)
        return answer

    def _drop_padding(self) -> None:
        """Every token of a row is real. What still reads the padding (sizes, a product with it) sees ones."""
        padding = self.given.pop(Role.PADDING, None)
        if padding is not None:
            with self.graph.inserting_after(self.last):
                ones = self.graph.call_function(A.ones_like.default, (self.given[Role.IDS],))
            graphs.replace(padding, ones)
            drop_ones(ones)


def _passes(answer: fx.Node, cut: fx.Node) -> bool:
    """Whether all that the answer reads of the inputs comes by way of one node; sizes are of no text."""
    found, todo = set[fx.Node](), [answer]
    while todo:
        node = todo.pop()
        if node in found or node is cut:
            continue
        if node.op == "placeholder":
            return False
        found.add(node)
        todo += [one for one in node.all_input_nodes if one.target is not A.sym_size.int]
    return True
