"""What the Inductor targets share: the IR's operators in terms that Inductor fuses, and ahead-of-time compilation.

One graph with a symbolic batch and sequence is compiled per program. It is right from (1, 1) on and never compiles
again: ahead-of-time code carries no guards.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from headrace import debug, graphs
from headrace.backends.inductor import recurrent
from headrace.backends.inductor.compiled import CODE_BYTES, Compiled
from headrace.backends.inductor.host.dense import use_dense
from headrace.backends.inductor.host.packed import held_weights, pack_linear
from headrace.backends.inductor.host.paged import use_host_attention
from headrace.backends.inductor.host.varlen import use_host_varlen
from headrace.backends.inductor.layers import roll_layers
from headrace.backends.inductor.memory import compose
from headrace.backends.inductor.packages import compile_module, write_package
from headrace.backends.inductor.runner import Runner
from headrace.ir import Layout, MaskKind, Program, Window
from headrace.ops.attention import ATTENTION, MASK, POOL, attend, attention_scores, materialise_mask, pool_rows
from headrace.ops.packed import POOL_VARLEN, pool_packed
from headrace.utils.gc_freeze import sparing_the_old
from headrace.utils.scratch import room_told


def sdpa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    kind: str,
    window: list[int],
    softcap: float,
) -> Tensor:
    """`headrace::attention` as scaled_dot_product_attention; as plain products where SDPA has no such term.

    SDPA gives zeros where a query sees no key, as the operator demands (checked in tests/backends).
    """
    if softcap > 0 or sinks is not None:
        return plain_attention(q, k, v, mask, bias, sinks, scale, kind, window, softcap)
    mask = _mask(q, k, mask, kind, window)
    added: Tensor | None = mask
    if bias is not None:
        added = bias if mask is None else torch.where(mask, bias, -torch.inf)
    groups = q.shape[1] // k.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(
        q, _repeated(k, groups), _repeated(v, groups), attn_mask=added, scale=scale
    )
    # SDPA's kernels lay their output out as they like; the operator's is contiguous, and later views rely on it.
    return out.transpose(1, 2).contiguous()


def plain_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    kind: str,
    window: list[int],
    softcap: float,
) -> Tensor:
    """`headrace::attention` as two products and a softmax, as eager models compute it."""
    return attend(attention_scores(q, k, bias, scale, softcap), v, _mask(q, k, mask, kind, window), sinks)


def _mask(q: Tensor, k: Tensor, mask: Tensor | None, kind: str, window: list[int]) -> Tensor | None:
    """The mask node's, or what `kind` and `window` say; None where every key is seen."""
    bounds = Window(*window)
    if mask is not None or not (MaskKind(kind).causal or bounds.bounded):
        return mask
    q_len, kv_len = q.shape[2], k.shape[2]
    return materialise_mask(None, q.shape[0], q_len, kv_len, kv_len - q_len, 0, kind, bounds, q.device)


def _repeated(x: Tensor, groups: int) -> Tensor:
    """Keys or values once per query head."""
    return x if groups == 1 else x.repeat_interleave(groups, 1)


def plain_mask(
    padding: Tensor | None,
    batch: int,
    q_len: int,
    kv_len: int,
    q_offset: int,
    kv_offset: int,
    kind: str,
    window: list[int],
    device: torch.device,
) -> Tensor:
    """`headrace::mask` as comparisons of positions, which Inductor fuses into their user."""
    return materialise_mask(padding, batch, q_len, kv_len, q_offset, kv_offset, kind, Window(*window), device)


Decompositions = Mapping[Any, Callable[..., Tensor]]
DECOMPOSITIONS: Decompositions = {
    ATTENTION: sdpa_attention,
    MASK: plain_mask,
    POOL: pool_rows,
    **recurrent.DECOMPOSITIONS,
}


# Beside those, what packed programs of a host call.
HOST: Decompositions = {**DECOMPOSITIONS, POOL_VARLEN: pool_packed}


def compile_program(program: Program, decompositions: Decompositions = HOST) -> Compiled:
    """Compile a program ahead of time, the IR's operators by what they are made of and layers that repeat once."""
    with quiet(), sparing_the_old(), room_told("The compiled model", CODE_BYTES):
        module = _module(program, decompositions)
        formats = held_weights(module.graph)
        with debug.stage("layers"):
            stacks = roll_layers(module)
        with debug.stage("code"):
            code, weights = compile_module(module, _example(program), stacks, _label(program))
        with debug.stage("load code"):
            memory = compose(weights)
            runner = Runner(code.files(), memory)
    return Compiled(runner, program, lambda path: write_package(path, code, memory), formats)


def _module(program: Program, decompositions: Decompositions) -> fx.GraphModule:
    """The graph with its weights and without operators of the IR, which takes the inputs in the program's order."""
    graph = program.graph
    if program.form.layout is Layout.CACHED:  # it writes to what it is given, which is traced into values and copies
        graph = graphs.rewrite(pack_linear(graph), use_host_attention).run_decompositions(dict(decompositions))
    else:
        graph = graphs.rewrite(use_dense(graph), use_host_varlen)
    module = graphs.flat_module(graph)
    for node in module.graph.nodes:
        node.target = decompositions.get(node.target, node.target)
    taken = tuple(node.name for node in module.graph.find_nodes(op="placeholder"))
    assert taken == program.signature.input_names, "the code takes its inputs in the graph's order"
    return module


def _label(program: Program) -> str:
    returned = "+".join(output.kind for output in program.signature.outputs)
    return f"{program.source.name}, {returned}, {program.dtype}, torch {torch.__version__}"


def _example(program: Program) -> tuple[Any, ...]:
    """The inputs that the program was exported with, in its order."""
    args, named = program.graph.example_inputs
    assert not args, "inputs are given by name"
    made = tuple(named[name] for name in program.signature.input_names)
    assert all(one.is_contiguous() for one in made), "the code keeps its example's strides"
    return made


@contextmanager
def quiet() -> Iterator[None]:
    """Inductor and pytree warn of their own deprecations, which a user can do nothing about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
