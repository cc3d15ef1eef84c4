"""Every kernel of a program, as Inductor emits it for a GPU that is not here: `python -m tests.gate.emitted`.

One process an architecture. The graph is the one that the GPU targets compile, made by their code, but in one piece and
not in parts: a layer's kernels are the same.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

from tests.gate import fake_device, rows

TOKENS, SEQUENCES, BATCH = 4096, 34, 8
OURS = (
    "attend_tiles", "list_tiles", "reduce_sequences", "rotate_rows", "convolve_rows", "scan_chunks", "solve_chunks",
    "scan_delta",
)  # fmt: skip
# RDNA has 256 registers a thread: its smallest blocks of the scans that multiply still spill some, Bamba's and
# Qwen3-Next's so many.
# Those of Mamba-2's scan on sm90 are what was fastest there, held to its definition: Bamba's spills 2 by Triton 3.9.
SPILLING = {("gfx1", "scan_chunks"): 32, ("gfx1", "scan_delta"): 27, ("sm90", "scan_chunks"): 2}
# The first as the targets have it. Folding would compute constants on the device, and the launchers load kernels.
OFF = ("shape_padding", "joint_graph_constant_folding", "use_static_triton_launcher", "use_static_cuda_launcher")


def main(architecture: str, folder: str, out: str, whole: str, *names: str) -> None:
    """Compile the kernels of each program that lies in the folder, and our own by themselves; write a row each.

    Args:
        whole: "whole" compiles every specialisation of our own, "part" one of each.
    """
    device = fake_device.install(architecture)
    from tests.gate import ours, programs

    found = list(ours.compiled(device, whole == "whole"))
    for name in names:
        program = programs.read(Path(folder), name)
        found += [_row(name, kernel, device) for kernel in kernels_of(program)]
    rows.write(Path(out), found)


@dataclass(frozen=True)
class Emitted:
    """What Inductor makes of a program.

    Attributes:
        kernels: its record of each Triton kernel, compiled, with the kernel's name and source.
        code: the Python that launches them, whose `call` takes weights and inputs.
        weights: the names of the former, in that order.
        inputs: of the latter.
    """

    kernels: list[tuple[str, str, Any]]
    code: str
    weights: tuple[str, ...]
    inputs: tuple[str, ...]


def kernels_of(program: Any) -> list[tuple[str, str, Any]]:
    """Inductor's record of each Triton kernel that the program's graph comes down to, compiled."""
    return emitted(program).kernels


def emitted(program: Any, most: int | None = None) -> Emitted:
    """All that Inductor makes of the program's graph; its weights are taken away from it.

    Args:
        most: configurations of a kernel that are compiled; otherwise all that it would time on the device.
    """
    import torch
    from torch._inductor import async_compile, config
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.graph import GraphLowering

    module, inputs, mode = _on_the_device(program)
    made: list[Any] = []
    codes: list[str] = []

    def compiled(self: Any, name: str, source: str, device_str: str = "cuda") -> Any:
        """What one of Inductor's own worker processes does: every configuration, and none is loaded."""
        kernel = getattr(PyCodeCache.load(source), name)
        kernel.configs = kernel.configs[:most]
        kernel.precompile(warm_cache_only=True)
        made.append((name, source, kernel))
        return kernel

    async_compile.AsyncCompile.triton = compiled  # type: ignore[method-assign, assignment]
    GraphLowering.save_output_code = staticmethod(codes.append)
    off = {name: False for name in OFF if hasattr(config, name)}
    tracing = torch._guards.tracing(torch._guards.TracingContext(mode))
    weights = [name for name, _ in module.named_parameters()] + [name for name, _ in module.named_buffers()]
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    with torch.no_grad(), tracing, config.patch(**off):
        compile_fx(module, inputs)
    return Emitted(made, codes[-1], tuple(weights), tuple(names))


def _on_the_device(program: Any) -> tuple[Any, list[Any], Any]:
    """The module that the target compiles, its weights and inputs without data on the device, and their fake mode."""
    import torch

    from headrace.backends.gpu import device
    from headrace.ir import OFFSETS

    exported = program.graph
    traced = next(node.meta["val"].fake_mode for node in exported.graph.nodes if hasattr(node.meta["val"], "fake_mode"))
    exported._state_dict = {name: _fake(traced, weight) for name, weight in exported.state_dict.items()}
    exported._constants = {name: _fake(traced, value) for name, value in exported.constants.items()}
    # Weights without data are nobody's to compare and share.
    device.MOVED[device.DEVICE] = lambda weight: torch.nn.Parameter(weight.to(device.DEVICE), requires_grad=False)
    with traced:
        moved = program.with_(exported=device.on_device(program.graph))
        module = lowered(moved)
    mode = _fresh()
    for part in module.modules():
        for name, weight in part._parameters.items():
            part._parameters[name] = torch.nn.Parameter(_empty(mode, weight), requires_grad=False)
        for name, value in part._buffers.items():
            part._buffers[name] = _empty(mode, value)
    sizes = {"batch": BATCH, "tokens": TOKENS, "bounds": SEQUENCES, "sequence": TOKENS // BATCH, "row": 1}
    given = {one.name: one for one in program.signature.inputs}
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    inputs = [_free(mode, name, [sizes[axis.name] for axis in given[name].axes], name == OFFSETS) for name in names]
    return module, inputs, mode


def lowered(program: Any) -> Any:
    """The module that the target compiles of a program, wherever its weights lie."""
    from headrace import graphs
    from headrace.backends.gpu import executable
    from headrace.ir import Layout

    if program.form.layout is Layout.PADDED:
        return graphs.flat_module(program.graph.run_decompositions(dict(_decompositions())))
    return executable._kernels(program)


def _empty(mode: Any, like: Any) -> Any:
    import torch

    with mode:
        return torch.empty(like.shape, dtype=like.dtype, device="cuda")


def _decompositions() -> Any:
    import torch

    from headrace.backends.gpu.rocm import PLAIN
    from headrace.backends.inductor.compile import DECOMPOSITIONS

    return PLAIN if torch.version.hip else DECOMPOSITIONS


def _fake(mode: Any, value: Any) -> Any:
    import torch

    return mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value


def _fresh() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(tracked_fakes=[]))


def _free(mode: Any, name: str, sizes: list[int], offsets: bool) -> Any:
    """An input whose sizes are symbols, bounded as the target bounds them, but for rows that are one."""
    import torch
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext
    from torch.utils._sympy.value_ranges import ValueRanges

    from headrace.backends.gpu.executable import LONGEST

    free = [DimDynamic.STATIC if size == 1 else DimDynamic.DYNAMIC for size in sizes]
    context: Any = StatelessSymbolicContext(dynamic_sizes=free, constraint_sizes=[None] * len(sizes))
    dtype = torch.int32 if offsets else torch.int64
    made = mode.from_tensor(torch.empty(sizes, dtype=dtype), symbolic_context=context, source=ConstantSource(name))
    for size in made.shape:
        if isinstance(size, torch.SymInt):
            mode.shape_env.var_to_range[size.node.expr] = ValueRanges(2, LONGEST + 1)
    with mode:
        return torch.empty(made.shape, dtype=dtype, device="cuda")


def _row(of: str, made: Any, device: Any) -> rows.Row:
    from headrace.backends.kernels.compile import machine_code
    from headrace.backends.kernels.use_kernels import HELD_STATES

    name, source, kernel = made
    from torch._inductor import config

    codes = [machine_code.read(result.kernel, device) for result in kernel.compile_results]
    # Most of NVIDIA's run Mamba-2's scan in float32, which no matrix unit takes as it is.
    widened = name.startswith("scan_chunks") and device.vendor == "cuda" and device.name not in HELD_STATES
    multiplies = "bfloat16" if "tl.dot(" in source and not widened else None
    # Inductor times the configurations and keeps one; none that spills more than this, where another spills less.
    spills = 0 if name in OURS else config.triton.spill_threshold
    spills = SPILLING.get((device.name[:4], name), spills)
    each = [machine_code.faults(code, multiplies=multiplies, spills=spills) for code in codes]
    return rows.row(of, name, codes, min(each, key=len))


if __name__ == "__main__":
    main(*sys.argv[1:])
