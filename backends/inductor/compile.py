"""What the Inductor targets share: the IR's operators in terms that Inductor fuses, and ahead-of-time compilation.

One graph with a symbolic batch and sequence is compiled per program. It is right from (1, 1) on and never compiles
again: ahead-of-time code carries no guards.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace import debug, graphs
from headrace.backends.inductor import recurrent
from headrace.backends.inductor.packages import Runner, compile_package
from headrace.backends.inductor.paged import use_host_attention
from headrace.ir import Layout, MaskKind, Program, Window
from headrace.ops import cached, stateful  # noqa: F401 - code that is loaded calls their operators
from headrace.ops.attention import ATTENTION, MASK, POOL, attend, attention_scores, materialise_mask, pool_rows
from headrace.utils.forks import on_living_threads
from headrace.utils.scratch import Scratch, room_told


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


class Compiled:
    """An ahead-of-time compiled program, loaded from its package."""

    def __init__(self, package: Path, program: Program, keep: Any = None) -> None:
        """Load the package; `keep` is held as long as the executable, e.g. the folder that the package lies in."""
        self.calls = 0
        self._package, self._inputs, self._keep = package, program.signature.input_names, keep
        self._alone = len(program.signature.outputs) == 1
        with room_told("A copy of the compiled code, which loading takes,", package.stat().st_size):
            self._run = Runner(package)

    @on_living_threads
    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, Tensor]) -> Any:
        """Run the compiled code: its output, or a tuple of several."""
        self.calls += 1
        outputs = self._run([inputs[name] for name in self._inputs])
        return outputs[0] if self._alone else tuple(outputs)

    def save(self, path: Path) -> None:
        """Copy the package."""
        shutil.copyfile(self._package, path)


def compile_program(program: Program, decompositions: Decompositions = DECOMPOSITIONS) -> Compiled:
    """Decompose the IR's operators and compile the graph ahead of time."""
    scratch = Scratch()
    package = scratch.path / "model.pt2"
    needs = 2 * sum(weight.nbytes for weight in graphs.weights_of(program.graph).values())  # in the cache, and packed
    with quiet(), room_told("The compiled model", needs):
        graph = program.graph
        if program.form.layout is Layout.CACHED:
            graph = graphs.rewrite(graph, use_host_attention)
        lowered = graph.run_decompositions(dict(decompositions))
        assert graphs.inputs_of(lowered) == program.signature.input_names, (
            "the code takes its inputs in the graph's order"
        )
        compile_package(lowered.module(check_guards=False), lowered.example_inputs, package)
    debug.say(debug.CODE, f"compiled package: {package}")
    return Compiled(package, program, keep=scratch)


@contextmanager
def quiet() -> Iterator[None]:
    """Inductor and pytree warn of their own deprecations, which a user can do nothing about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
