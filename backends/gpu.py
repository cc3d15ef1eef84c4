"""What the GPU targets share: programs moved to the device, packed ones in terms of our kernels, compiled once.

A packed graph with symbolic tokens and sequences is compiled once per program and covers every row. Rows of few
tokens, where launching costs more than computing, are captured as graphs of the device besides.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from headrace import graphs
from headrace.backends.activations import shorten
from headrace.backends.architecture import ARCHITECTURES, of_vendor
from headrace.backends.held import hold_waves
from headrace.backends.inductor import DECOMPOSITIONS, Compiled, Decompositions, compile_program, quiet
from headrace.backends.interface import Executable
from headrace.backends.kernels.tuning import family
from headrace.backends.plan import Choice, capturable, plan
from headrace.backends.precision import exact
from headrace.backends.replay import Replays
from headrace.errors import OutOfMemoryError, TargetError
from headrace.ir import OFFSETS, Layout, Program

if TYPE_CHECKING:
    from headrace.backends.kernels.ahead import Kernel

# A graph is compiled for rows up to here, or up to the longest request where that is longer.
LONGEST = 1 << 16
# Tokens and sequences of the batch that a graph is compiled on; what it holds for is symbolic.
SAMPLE = (4096, 33)


class Host:
    """A copy to the host under way; `np.asarray` waits for it."""

    def __init__(self, output: Tensor) -> None:
        """Begin to copy, on the stream that computes the output."""
        self._array = torch.empty(output.shape, dtype=torch.float32, pin_memory=True)
        self._array.copy_(output.float(), non_blocking=True)
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.float32]:
        """The array, once it is there."""
        self._done.synchronize()
        array: NDArray[np.float32] = self._array.numpy()
        return array


class Gpu:
    """Runs packed programs where the program admits it, and padded ones ahead-of-time compiled."""

    name: str
    vendor: str
    """As `Architecture.vendor` has it."""
    decompositions: Decompositions = DECOMPOSITIONS
    """What padded programs are compiled in terms of."""
    attention = "scaled_dot_product_attention"
    """What attends in padded programs, in words."""
    suffix = ".pt2"
    dtypes = ("bfloat16", "float16", "float32")
    libraries = ("torch", "triton")
    runs_code = True
    layout = Layout.PACKED
    # Enough for products to run near their peak; more only costs memory.
    step_tokens = 16384

    def __init__(self, architecture: str | None = None) -> None:
        """For the device that is here; or for an architecture by name, and then up to its compiled kernels anywhere.

        Raises:
            TargetError: no such architecture is known.
        """
        known = of_vendor(self.vendor)
        if architecture is not None and architecture not in known:
            raise TargetError(f"{self.name} knows no architecture {architecture!r}. Choose from {', '.join(known)}.")
        self.architecture = known[architecture] if architecture else None

    def check(self, compiles: bool) -> None:
        """A device must be here that runs it, unless an architecture is named and nothing is to run here."""
        if self.architecture is None or compiles:
            self.require_device()
            here = family(torch.device("cuda"))
            if self.architecture is not None and here != self.architecture.name:
                raise TargetError(
                    f"{self.name}:{self.architecture} was asked for, and the device here is {here}. Leave the "
                    f"architecture out, or compile kernels alone: {self.elsewhere}."
                )

    def require_device(self) -> None:
        """Raise a TargetError that names the remedy where no device is here that runs the target."""
        raise NotImplementedError

    @property
    def elsewhere(self) -> str:
        """The command that compiles the target's kernels on any machine."""
        name = self.architecture or list(of_vendor(self.vendor))[1]
        return f"headrace compile MODEL --target {self.name}:{name} --kernels-only"

    def kernels(self, program: Program) -> list[Kernel]:
        """Every kernel of ours that a packed program runs, compiled for the architecture, which need not be here.

        Raises:
            TargetError: the program runs none, Triton is missing, or a kernel would not run as it should.
        """
        from headrace.backends.kernels.ahead import kernels

        name = self.architecture.name if self.architecture else family(torch.device("cuda"))
        if name not in ARCHITECTURES:
            raise TargetError(f"{name} is in no table of ours; name one: {', '.join(of_vendor(self.vendor))}.")
        return kernels(program, ARCHITECTURES[name])

    def plan(self, program: Program) -> tuple[Choice, ...]:
        """What it will do with a program and why, before anything is compiled."""
        return plan(program, self.name, self.architecture, self.attention)

    def feed(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Each array as a tensor on the host."""
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}

    def fetch(self, output: Tensor | Host) -> Host:
        """Begin to copy the output to the host, where the executable has not done so itself."""
        return output if isinstance(output, Host) else Host(output)

    def compile(self, program: Program) -> Executable:
        """Move the program to the device and compile it."""
        moved = program.with_(exported=on_device(program))
        if program.layout is Layout.PADDED:
            return Padded(compile_program(moved, self.decompositions))
        return Packed(moved, self.step_tokens)

    def load(self, path: Path, program: Program) -> Executable:
        """Load a padded program's package; a packed one is compiled anew from its graph."""
        self.check(compiles=True)
        if program.layout is Layout.PADDED:
            return Padded(Compiled(path, program.input_names))
        return Packed(program.with_(exported=torch.export.load(path)), self.step_tokens)


def on_device(program: Program) -> ExportedProgram:
    """A copy of the graph on the GPU."""

    def elsewhere(graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.target is torch.ops.aten._assert_tensor_metadata.default:
                graph.erase_node(node)  # it names the device that the trace ran on
            else:  # torch's own pass sees a device that is a keyword, and no other
                node.args = tuple(torch.device("cuda") if isinstance(arg, torch.device) else arg for arg in node.args)

    return move_to_device_pass(graphs.rewrite(program.graph, elsewhere), "cuda")


class Padded:
    """An ahead-of-time compiled padded program, fed from the host."""

    graphs = 1

    def __init__(self, compiled: Compiled) -> None:
        """Keep what was compiled."""
        self.calls, self._compiled = 0, compiled

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Copy the inputs to the device and run."""
        self.calls += 1
        with exact(), memory_told():
            return self._compiled({name: moved(given) for name, given in inputs.items()})

    def save(self, path: Path) -> None:
        """Copy the package."""
        self._compiled.save(path)


class Packed:
    """A packed program, compiled for any row, with the rows of few tokens captured."""

    graphs = 1

    def __init__(self, program: Program, step_tokens: int) -> None:
        """Compile on a sample, then capture the short rows.

        Args:
            program: packed, its graph on the device.
        """
        self.calls = 0
        self._exported, self._names = program.graph, program.input_names
        self._lock = threading.Lock()
        longest = max(step_tokens, program.limits.length or 0, LONGEST)
        with quiet(), exact(), torch.no_grad():
            self._run = _compiled(_kernels(program), program, longest)
            self._replays = Replays(self._run, program) if capturable(program.graph) else None

    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, Tensor]) -> Host:
        """Copy the inputs to the device, run, and copy the output back, without waiting for any of it.

        The copy back begins here: a captured row's output lies where the next replay writes.
        """
        self.calls += 1
        with self._lock, exact(), memory_told():
            replayed = self._replays(inputs) if self._replays else None
            return Host(self._run(*(moved(inputs[name]) for name in self._names)) if replayed is None else replayed)

    def save(self, path: Path) -> None:
        """Write the graph and its weights."""
        torch.export.save(self._exported, path)


def moved(given: Tensor) -> Tensor:
    """On the device, copied from pinned memory while that computes."""
    return given.pin_memory().to("cuda", non_blocking=True)


def _kernels(program: Program) -> fx.GraphModule:
    from headrace.backends.kernels.lowered import with_kernels

    module = graphs.flat_module(with_kernels(program.graph, family(torch.device("cuda"))))
    shorten(module.graph)
    hold_waves(module.graph)
    returned: Any = module.graph.output_node().args[0]
    module.graph.output_node().args = (returned[0],)
    module.recompile()
    return module


def _compiled(module: fx.GraphModule, program: Program, longest: int) -> Any:
    """One graph for any number of tokens up to `longest` and of sequences; its first call compiles it."""
    # Padding of small products is decided by guards on sizes, which would compile again for other sizes.
    compiled = torch.compile(module, fullgraph=True, dynamic=True, options={"shape_padding": False})
    sample = sample_row(program, *SAMPLE)
    try:
        compiled(*_free(sample, program.input_names, longest))
    except ConstraintViolationError:
        # A guard that torch cannot prove for every size, such as those of experts' routing: it is checked at each call.
        compiled(*_free(sample_row(program, *SAMPLE), program.input_names, None))
    return compiled


def _free(sample: dict[str, Tensor], names: tuple[str, ...], longest: int | None) -> list[Tensor]:
    """The inputs in order, their free sizes marked: bounded by `longest`, or as far as the guards allow."""
    for name, tensor in sample.items():
        axis, least = (0, 3) if name == OFFSETS else (1, 2)
        if longest is None:
            torch._dynamo.maybe_mark_dynamic(tensor, axis)
        else:
            # A bound lets Inductor choose its index width once, where a guard would compile again for long rows.
            torch._dynamo.mark_dynamic(tensor, axis, min=least, max=longest + 1)
    return [sample[name] for name in names]


def sample_row(program: Program, tokens: int, count: int) -> dict[str, Tensor]:
    """A row of sequences of like length, on the device."""
    offsets = torch.arange(count + 1, device="cuda", dtype=torch.int64) * tokens // count
    begin = offsets[:-1].repeat_interleave(offsets.diff())
    place = (torch.arange(tokens, device="cuda") - begin)[None]
    rows = {
        "input_ids": place % program.vocabulary,
        "position_ids": place % (program.limits.length or tokens) + program.positions.offset,
    }
    return {name: rows.get(name, place * 0) for name in program.input_names if name != OFFSETS} | {
        OFFSETS: offsets.to(torch.int32)
    }


@contextmanager
def memory_told() -> Iterator[None]:
    """What the device's allocator refuses, as an error of ours; its cache is given back first."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise OutOfMemoryError(str(error).split(". ", maxsplit=1)[0]) from error
