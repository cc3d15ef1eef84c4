"""Programs that break one thing, in every form that a program has, are refused by pass, rule and place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace.errors import VerifyError
from headrace.graphs.views import arguments
from headrace.ir import (
    OFFSETS,
    Input,
    Layout,
    Limits,
    Output,
    OutputKind,
    Pooling,
    PoolKind,
    Prefill,
    Program,
    Quantized,
    RecurrentSpec,
    Role,
    Route,
    Stage,
    State,
    Tap,
    Task,
    TaskDecision,
    Window,
)
from headrace.ir.passes import run_passes
from headrace.lowering.decide.enable import EnableTasks
from headrace.lowering.decide.padding import MeasurePadding
from headrace.lowering.decide.route import DecideRoute
from headrace.lowering.forms.cached import CacheStates
from headrace.lowering.forms.select import SelectTask
from headrace.lowering.optimise.quantize import QuantizeLinear
from headrace.lowering.optimise.quantize_caches import QuantizeCaches
from headrace.lowering.pipeline import prepare
from headrace.lowering.types.attention import TypeAttention
from headrace.ops.attention import ATTENTION, MASK, POOL
from headrace.ops.cached import ATTENTION_PAGED
from headrace.ops.lstm import LSTM
from headrace.ops.packed import ATTENTION_VARLEN, POOL_VARLEN
from headrace.verify.spec import SPEC
from headrace.verify.verifier import verify
from tests.synthetic import labels, program_of

Change = Callable[[Program], Program]
OUTPUTS = (Output("hidden", OutputKind.HIDDEN, 16), Output("embedding", OutputKind.EMBEDDING, 16))
POOLING = Pooling((PoolKind.MEAN,), False, "made by hand")
PADDED = ("traced", "typed", "lowered", "quantised")
DECIDED = ("typed", "lowered", "quantised", "packed")
EVERY = ("traced", *DECIDED)
CACHED = ("cached",)


class Model(nn.Module):
    """A mask, an attention, a linear layer, a recurrence perhaps, and a pooling."""

    def __init__(self, carries: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.linear, self.carries = nn.Embedding(96, 16), nn.Linear(16, 16), carries
        self.weight = nn.Parameter(torch.rand(16, 3))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        heads = self.table(input_ids).unflatten(-1, (4, 4)).transpose(1, 2)
        form, (batch, length) = ("causal", [3, 0]), input_ids.shape
        mask = torch.ops.headrace.mask(attention_mask, batch, length, length, 0, 0, *form, input_ids.device)
        rows = torch.ops.headrace.attention(heads, heads, heads, mask, None, None, 0.5, *form, 0.0).flatten(2)
        rows = self.linear(rows)
        if self.carries:
            rows = torch.ops.headrace.causal_conv1d(rows.transpose(1, 2), self.weight, None).transpose(1, 2)
        return rows, torch.ops.headrace.pool(rows, attention_mask, "mean")


@pytest.fixture(scope="module")
def sound() -> dict[str, Program]:
    """One program in each form."""

    def typed(traced: Program) -> Program:
        return run_passes(traced, [TypeAttention(), DecideRoute(), MeasurePadding(), EnableTasks()])

    names = ("input_ids", "attention_mask")
    carrying, plain = (
        program_of(Model(carries), *names, outputs=OUTPUTS, pooling=POOLING, recurrent_calls=int(carries))
        for carries in (True, False)
    )
    decided = typed(carrying)
    lowered = prepare(decided, Task.EMBED)
    quantised = run_passes(lowered, [QuantizeLinear(least=16)])
    packed = prepare(typed(plain), Task.EMBED, Layout.PACKED)
    assert packed.form.layout is Layout.PACKED, packed.form.layout_why
    # It answers with hidden rows, a row that is asked for each.
    whole = run_passes(decided, [EnableTasks(Prefill.SINGLE_PASS)])
    cached = run_passes(whole, [SelectTask(Task.TOKEN_EMBED), CacheStates(4)])
    coded = run_passes(decided, [SelectTask(Task.EMBED), CacheStates(4), QuantizeCaches()])
    return {
        "traced": carrying, "typed": decided, "lowered": lowered, "quantised": quantised, "packed": packed,
        "cached": cached, "coded": coded,
    }  # fmt: skip


def drop_scales(graph: torch.fx.Graph) -> None:
    node = next(iter(graph.find_nodes(op="call_function", target=ATTENTION_PAGED)))
    node.args = (*node.args[:-2], None, None)


def mangled(change: Callable[[torch.fx.Graph], None]) -> Change:
    """The program with a graph that no rewrite would leave."""

    def applied(program: Program) -> Program:
        exported = copy.deepcopy(program.graph)
        change(exported.graph)
        return program.with_(exported=exported)

    return applied


def argument(targets: tuple[Any, ...], name: str, value: Any) -> Change:
    """The first node of the operators, with another argument."""

    def edit(graph: torch.fx.Graph) -> None:
        node = next(node for node in graph.nodes if node.target in targets)
        given = arguments(node)
        node.args = tuple((given | {name: value(graph) if callable(value) else value}).values())

    return mangled(edit)


def first_spec(**changes: Any) -> Change:
    return lambda program: program.with_(attention=(replace(program.nodes.attention[0], **changes),))


def first_cache(**changes: Any) -> Change:
    return lambda p: p.with_(caches=(replace(p.form.caches[0], **changes), *p.form.caches[1:]))


def facts(**changes: Any) -> Change:
    return lambda program: program.with_(**changes)


def one_name_twice(graph: torch.fx.Graph) -> None:
    *_, one, other, _ = graph.nodes
    other.name = one.name


def of_another_width(graph: torch.fx.Graph) -> None:
    """An LSTM whose weights are none of its rows'."""
    output = graph.output_node()
    rows = next(node for node in graph.nodes if node.target is POOL).args[0]
    with graph.inserting_before(output):
        graph.call_function(LSTM, (rows,) * 5, name="lstm")


def nothing_returned(graph: torch.fx.Graph) -> None:
    returned: Any = graph.output_node().args[0]
    graph.output_node().args = ((*returned[:-1], None),)


def twice(program: Program) -> Program:
    return program.with_(attention=program.nodes.attention * 2)


def another(program: Program) -> Program:
    first = program.nodes.attention[0]
    return program.with_(attention=(*program.nodes.attention, replace(first, node="gone")))


def without(name: str) -> Change:
    return lambda program: program.with_(inputs=tuple(one for one in program.signature.inputs if one.name != name))


def role_of_first(*roles: Role) -> Change:
    """The first inputs have these roles."""
    return lambda program: program.with_(
        inputs=tuple(replace(one, role=role) for one, role in zip(program.signature.inputs, roles, strict=False))
        + program.signature.inputs[len(roles) :]
    )


def first_output(**changes: Any) -> Change:
    return lambda program: program.with_(
        outputs=(replace(program.signature.outputs[0], **changes), *program.signature.outputs[1:])
    )


ATTENDING, POOLS = (ATTENTION, ATTENTION_VARLEN), (POOL, POOL_VARLEN)
UNOFFERED = TaskDecision(Task.FILL_MASK, True, "made by hand")
B1, B2, B5 = Route(State.CUSTOM, "B1", ""), Route(State.ENCODER_DECODER, "B2", ""), Route(State.DECODER, "B5", "")


@dataclass(frozen=True)
class Broken:
    """One breach: in which forms it can arise, the rule that names it, and where."""

    what: str
    change: Change
    forms: tuple[str, ...]
    rule: str
    place: str


BROKEN = [
    Broken("two nodes of one name", mangled(one_name_twice), EVERY, "node_names", ""),
    Broken(
        "a ghost input",
        lambda p: p.with_(inputs=(*p.signature.inputs, Input("ghost", Role.TARGET_IDS))),
        EVERY,
        "inputs_placed",
        "ghost",
    ),
    Broken("an input that is not named", without("input_ids"), EVERY, "inputs_placed", "input_ids"),
    Broken("no inputs", facts(inputs=()), EVERY, "inputs_placed", "input_ids"),
    Broken(
        "an input of another dtype",
        lambda p: p.with_(inputs=(replace(p.signature.inputs[0], dtype="float32"), *p.signature.inputs[1:])),
        EVERY,
        "inputs_placed",
        "input_ids",
    ),
    Broken("two inputs of one role", role_of_first(Role.TYPES, Role.TYPES), EVERY, "input_roles", "input_ids"),
    Broken("whole numbers called an array", role_of_first(Role.ARRAY), EVERY, "input_roles", "input_ids"),
    Broken("inputs out of order", lambda p: p.with_(inputs=p.signature.inputs[::-1]), EVERY, "inputs_placed", ""),
    Broken(
        "an output that no node makes",
        lambda p: p.with_(outputs=(*p.signature.outputs, Output("more", OutputKind.HIDDEN, 16))),
        EVERY,
        "outputs_named",
        "output",
    ),
    Broken("an output that is nothing", mangled(nothing_returned), EVERY, "outputs_named", "embedding"),
    Broken("a wrong width", first_output(width=17), EVERY, "output_widths", ""),
    Broken(
        "a pooling over a missing output",
        lambda p: p.with_(outputs=p.signature.outputs[:1]),
        ("traced", "typed"),
        "pooling_output",
        "pooling",
    ),
    Broken(
        "another number of labels than columns",
        lambda p: first_output(kind=OutputKind.TOKEN_LOGITS)(p).with_(labels=labels(3)),
        EVERY,
        "labels_width",
        "",
    ),
    Broken("taps without an output", facts(taps=(Tap("attention", 16),)), EVERY, "taps_side_by_side", "taps"),
    Broken("taps of no node", facts(taps=(Tap("gone", 16),)), EVERY, "taps_side_by_side", "gone"),
    Broken("a window of negative size", argument(ATTENDING, "window", [-3, 0]), EVERY, "attention_form", "attention"),
    Broken("a window of one side", argument(ATTENDING, "window", [3]), EVERY, "attention_form", "attention"),
    Broken("an unknown kind of mask", argument(ATTENDING, "kind", "round"), EVERY, "attention_form", "attention"),
    Broken("a negative cap", argument(ATTENDING, "softcap", -1.0), EVERY, "attention_form", "attention"),
    Broken("a mask's negative window", argument((MASK,), "window", [-3, 0]), PADDED, "mask_form", "mask"),
    Broken("a mask of another kind", argument((MASK,), "kind", "bidirectional"), PADDED, "masks_agree", "attention"),
    Broken(
        "a mask that is none",
        argument((ATTENTION,), "mask", lambda graph: next(iter(graph.nodes))),
        PADDED,
        "masks_agree",
        "attention",
    ),
    Broken("an unknown pooling", argument(POOLS, "kind", "sum"), EVERY, "pool_form", "pool"),
    Broken(
        "a pooling of no rows",
        argument(POOLS, "hidden", lambda graph: next(node for node in graph.nodes if node.name == "input_ids")),
        EVERY,
        "pool_form",
        "pool",
    ),
    Broken("packed without offsets", without(OFFSETS), ("packed",), "rows_form", OFFSETS),
    Broken(
        "packed rows found by something else",
        argument((ATTENTION_VARLEN,), "cu_seqlens", lambda graph: next(iter(graph.nodes))),
        ("packed",),
        "rows_form",
        "attention_varlen",
    ),
    Broken("padded operators called packed", facts(layout=Layout.PACKED), PADDED, "rows_form", "attention"),
    Broken("packed operators called padded", facts(layout=Layout.PADDED), ("packed",), "rows_form", "attention_varlen"),
    Broken("packed, and why it is not", facts(layout_why="made by hand"), ("packed",), "rows_form", "layout"),
    Broken(
        "cached operators called packed", facts(layout=Layout.PACKED, caches=()), CACHED, "rows_form", "attention_paged"
    ),
    Broken("cached without offsets", without(OFFSETS), CACHED, "rows_form", OFFSETS),
    Broken("a cache that is no input", without("state_0"), CACHED, "caches_kept", "state_0"),
    Broken("a cache of a group that is not there", facts(groups=()), CACHED, "caches_kept", "k_0"),
    Broken("a cache of another width", first_cache(sizes=(4, 5)), CACHED, "caches_kept", "k_0"),
    Broken("a cache of another dtype", first_cache(dtype="bfloat16"), CACHED, "caches_kept", "k_0"),
    Broken(
        "a state of a group",
        lambda p: p.with_(caches=(*p.form.caches[:-1], replace(p.form.caches[-1], group="window_4"))),
        CACHED,
        "caches_kept",
        "state_0",
    ),
    Broken(
        "a recurrence of a step unsaid", facts(recurrent=()), CACHED, "recurrences_match_nodes", "causal_conv1d_state"
    ),
    Broken("a spec of other heads in a cache", first_spec(kv_heads=2), CACHED, "specs_match_nodes", "attention_paged"),
    Broken("codes unsaid", facts(quantized_caches=None), ("coded",), "cache_scales", "caches"),
    Broken("codes without scales", mangled(drop_scales), ("coded",), "cache_scales", "attention_paged"),
    Broken("eight bits unsaid", facts(quantized=None), ("quantised",), "quantized_form", "quantized"),
    Broken(
        "eight bits that are not there",
        facts(quantized=Quantized("fp8", 1, 1)),
        ("traced", "typed", "lowered", "packed"),
        "quantized_form",
        "quantized",
    ),
    Broken("specs without nodes", another, DECIDED, "specs_match_nodes", "attention"),
    Broken("a spec of another window", first_spec(window=Window(4, 0)), DECIDED, "specs_match_nodes", "attention"),
    Broken("a spec of other heads", first_spec(q_heads=8), DECIDED, "specs_match_nodes", "attention"),
    Broken("a spec of another width", first_spec(qk_head_dim=9), DECIDED, "specs_match_nodes", "attention"),
    Broken("a spec of another scale", first_spec(scale=0.25), DECIDED, "specs_match_nodes", "attention"),
    Broken("a spec of another mask node", first_spec(mask_node="gone"), DECIDED, "specs_match_nodes", "attention"),
    Broken("a spec with sinks", first_spec(sinks=True), DECIDED, "specs_match_nodes", "attention"),
    Broken(
        "a dead recurrent node",
        lambda p: p.with_(recurrent=(*p.nodes.recurrent, RecurrentSpec("gone", 9, "chunk_scan"))),
        DECIDED,
        "recurrences_match_nodes",
        "gone",
    ),
    Broken(
        "a recurrence of another operator",
        lambda p: p.with_(recurrent=(replace(p.nodes.recurrent[0], operator="wkv"),)),
        PADDED[1:],
        "recurrences_match_nodes",
        "causal_conv1d",
    ),
    Broken("an LSTM of another width", mangled(of_another_width), PADDED, "lstm_form", "lstm"),
    Broken("a recurrence unsaid", facts(recurrent=()), PADDED[1:], "recurrences_match_nodes", "causal_conv1d"),
    Broken("recovered and gone", facts(recovered=("gone",)), DECIDED, "recovered_named", "gone"),
    Broken("compressed", first_spec(compressed=True), DECIDED, "specs_match_nodes", "attention"),
    Broken("recovered unsaid", first_spec(recovered=True), DECIDED, "recovered_named", "attention"),
    Broken("a route that the nodes deny", facts(route=B5), PADDED[1:], "route_agrees", "route"),
    Broken(
        "a route that has no such nodes",
        facts(route=B2),
        ("typed",),
        "route_agrees",
        "route",
    ),
    Broken("a custom route without a name", facts(route=B1), DECIDED, "route_agrees", "route"),
    Broken(
        "a task without offer",
        lambda p: p.with_(tasks=(*p.decision.tasks, UNOFFERED)),
        EVERY,
        "tasks_decided",
        "fill_mask",
    ),
    Broken(
        "an offered task undecided", lambda p: p.with_(tasks=p.decision.tasks[1:]), DECIDED, "tasks_decided", "embed"
    ),
    Broken(
        "a task supported by none but its decision",
        lambda p: p.with_(tasks=tuple(replace(one, supported=True) for one in p.decision.tasks)),
        DECIDED,
        "tasks_decided",
        "token_embed",
    ),
    Broken("lowered without a route", facts(route=None), DECIDED[1:], "ready", "route"),
    Broken("lowered without a rule for padding", facts(padding=None), DECIDED[1:], "ready", "padding"),
    Broken(
        "lowered for nothing that is supported",
        first_output(kind=OutputKind.VOCABULARY_LOGITS),
        DECIDED[1:],
        "ready",
        "",
    ),
]


@pytest.mark.parametrize("form", EVERY)
def test_sound_programs_pass(sound: dict[str, Program], form: str) -> None:
    verify(sound[form], "mangle")


@pytest.mark.parametrize(
    ("broken", "form"), [(one, form) for one in BROKEN for form in one.forms], ids=lambda v: getattr(v, "what", v)
)
def test_a_broken_program(sound: dict[str, Program], broken: Broken, form: str) -> None:
    with pytest.raises(VerifyError, match=r"After the pass mangle the program breaks \d+ rule\(s\): ") as refused:
        verify(broken.change(sound[form]), "mangle")
    assert f"{broken.rule}: {broken.place}" in str(refused.value)


# What no program has, whatever its graph: the part that would hold it refuses to be made.
IMPOSSIBLE = [
    Broken("a vocabulary of less than nothing", facts(vocabulary=-5), EVERY, "vocabulary", "vocabulary"),
    Broken("a vocabulary of nothing", facts(vocabulary=0), EVERY, "vocabulary", "vocabulary"),
    Broken("a marker that is no token", facts(marker=96), EVERY, "vocabulary", "marker"),
    Broken("no token types", facts(token_types=0), EVERY, "vocabulary", "token_types"),
    Broken("room for no token", facts(limits=Limits(0, "made by hand")), EVERY, "limits", "limits"),
    Broken("room for no target", facts(target_limits=Limits(-1, "")), EVERY, "limits", "target_limits"),
    Broken("no hidden rows", facts(rows=0), EVERY, "rows", "rows"),
    Broken("an input twice", lambda p: p.with_(inputs=p.signature.inputs * 2), EVERY, "input_names", "input_ids"),
    Broken("fewer calls than none", facts(attention_calls=-1), EVERY, "calls", "attention_calls"),
    Broken("a cache twice", lambda p: p.with_(caches=p.form.caches * 2), CACHED, "caches", "k_0"),
    Broken("caches of packed rows", facts(layout=Layout.PACKED), CACHED, "caches", "caches"),
    Broken("cached without a cache", facts(caches=()), CACHED, "caches", "caches"),
    Broken("blocks of nothing", facts(block=0), CACHED, "caches", "block"),
    Broken("two specs of a node", twice, ("typed", "lowered"), "specs", "attention"),
    Broken("a task decided twice", facts(tasks=(UNOFFERED, UNOFFERED)), ("typed",), "tasks", "tasks"),
    Broken(
        "layers that there are not",
        facts(quantized=Quantized("fp8", 3, 2)),
        ("lowered", "packed"),
        "quantized",
        "quantized",
    ),
]


@dataclass(frozen=True)
class Mangle:
    """A pass that makes what cannot be."""

    change: Change
    name: str = "mangle"

    def __call__(self, program: Program) -> Program:
        return self.change(program)


@pytest.mark.parametrize(
    ("broken", "form"),
    [(broken, form) for broken in IMPOSSIBLE for form in broken.forms],
    ids=lambda value: value.what if isinstance(value, Broken) else value,
)
def test_a_part_that_no_program_has(sound: dict[str, Program], broken: Broken, form: str) -> None:
    with pytest.raises(VerifyError, match="In the pass mangle the program breaks a rule: ") as refused:
        run_passes(sound[form], (Mangle(broken.change),))
    assert f"{broken.rule}: {broken.place}: " in str(refused.value)


def test_every_rule_is_tried() -> None:
    """At each stage at which it holds; `dynamic_shapes` with the verifier's own tests."""
    stages = {"traced": Stage.TRACED, "typed": Stage.TYPED}
    tried = {(one.rule, stages.get(form, Stage.LOWERED)) for one in BROKEN for form in one.forms}
    wanted = {(rule.name, stage) for rule in SPEC for stage in rule.holds} - {("dynamic_shapes", s) for s in Stage}
    assert wanted == tried
