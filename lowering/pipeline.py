"""The passes in order. Read this first."""

from __future__ import annotations

from typing import Protocol

from headrace.ir import TASK_RULES, Layout, Needs, OutputKind, Prefill, Program, Task
from headrace.ir.passes import Pass, run_passes
from headrace.lowering.decide import probe
from headrace.lowering.decide.enable import EnableTasks
from headrace.lowering.decide.padding import MeasurePadding
from headrace.lowering.decide.probe import Probe
from headrace.lowering.decide.route import DecideRoute
from headrace.lowering.forms.cached import CacheStates
from headrace.lowering.forms.choose import ChooseLayout
from headrace.lowering.forms.select import SelectTask
from headrace.lowering.optimise.merge_linear import MergeLinear
from headrace.lowering.optimise.pool_first import PoolFirst
from headrace.lowering.optimise.quantize import QuantizeLinear
from headrace.lowering.optimise.quantize_caches import QuantizeCaches
from headrace.lowering.recover.recover import Recover
from headrace.lowering.types import check_against_eager
from headrace.lowering.types.attention import TypeAttention
from headrace.lowering.types.check_against_eager import Agree
from headrace.lowering.types.relative_bias import TypeBias


class Eager(check_against_eager.Eager, probe.Eager, Protocol):
    """Everything that the passes ask of the original module."""


def analysis(eager: Eager, prefill: Prefill | None) -> tuple[Pass, ...]:
    """From a traced program to one whose types are proven and whose state and tasks are decided."""
    return (
        Recover(),
        TypeAttention(),
        TypeBias(),
        Agree(eager),
        Probe(eager),
        DecideRoute(),
        MeasurePadding(),
        EnableTasks(prefill),
    )


def preparation(
    task: Task, layout: Layout = Layout.PADDED, beside: tuple[OutputKind, ...] = (), split: Pass | None = None,
    widest_row: int = 0,
) -> tuple[Pass, ...]:  # fmt: skip
    """From there to the program of one task, ready for a backend's decompositions; `beside` is as of `SelectTask`.

    Args:
        split: cuts it to the part of one device, before layers are merged; heads are shared out, so that no row of all
            of them is kept.
        widest_row: as of `CacheStates`.
    """
    if split is not None:
        whole = preparation(task, layout, beside)
        merging = isinstance(whole[-1], MergeLinear)
        return (*whole[:-1], split, whole[-1]) if merging else (*whole, split)
    if TASK_RULES[task].needs is Needs.DECODING:
        # What its head reads is kept in sight, so that it need not read all of it.
        cache = CacheStates(widest_row=widest_row)
        return (SelectTask(task, (*beside, OutputKind.HIDDEN)), PoolFirst(), cache, MergeLinear())
    if layout is Layout.CACHED:
        return (SelectTask(task, beside), PoolFirst(), CacheStates(widest_row=widest_row), MergeLinear())
    if layout is Layout.PADDED:
        return (SelectTask(task, beside), PoolFirst())
    return (SelectTask(task, beside), PoolFirst(), ChooseLayout(layout), MergeLinear())


def analyse(program: Program, eager: Eager, prefill: Prefill | None = None) -> Program:
    """Type, prove, route and enable."""
    return run_passes(program, analysis(eager, prefill))


def prepare(
    program: Program, task: Task, layout: Layout = Layout.PADDED, beside: tuple[OutputKind, ...] = (),
    split: Pass | None = None, widest_row: int = 0,
) -> Program:  # fmt: skip
    """Cut down to one task, in the layout that the target runs best where the program admits it.

    Args:
        beside: other outputs of the same pass that are wanted too.
        split: what cuts it to the part of one device; None where it runs on one.
        widest_row: of the rows that keys and values are linear maps of, the widest that the target keeps in their
            place; 0 where it keeps none.
    """
    return run_passes(program, preparation(task, layout, beside, split, widest_row))


def quantize_caches(prepared: Program) -> Program:
    """A prepared program that keeps keys and values in eight bits."""
    return run_passes(prepared, (QuantizeCaches(),))


def quantize(prepared: Program, scheme: str) -> Program:
    """A prepared program whose large linear layers multiply in eight bits."""
    return run_passes(prepared, (QuantizeLinear(scheme),))
