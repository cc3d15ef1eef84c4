"""What the GPU targets share: which device they need, which kernels they choose, and programs moved to the device."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace import debug
from headrace.backends.gpu.architecture import ARCHITECTURES, of_vendor
from headrace.backends.gpu.device import current, on_device
from headrace.backends.gpu.executable import OfGraph, Packed, Padded, Placed
from headrace.backends.gpu.memory import memory_told
from headrace.backends.gpu.plan import plan
from headrace.backends.gpu.readback import Answer, Host
from headrace.backends.gpu.stepping import Stepping
from headrace.backends.inductor.compile import DECOMPOSITIONS, Decompositions
from headrace.backends.interface import Choice, Executable
from headrace.backends.kernels.tuning import family, widest_row
from headrace.errors import TargetError
from headrace.ir import CacheDtype, Layout, Program
from headrace.target import Target

if TYPE_CHECKING:
    from headrace.backends.kernels.compile.aot import Kernel


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
    fills_rows = True
    ahead, pools, tensors = True, True, True
    cache_dtypes = (CacheDtype.FP8,)
    schemes = ("fp8",)
    # Enough for products to run near their peak; more only costs memory.
    step_tokens = 16384

    def __init__(self, architecture: str | None = None, device: int | None = None) -> None:
        """For the device that is here; or for an architecture by name, and then up to its compiled kernels anywhere.

        Args:
            device: which one of several, by number; None is torch's current one.

        Raises:
            TargetError: no such architecture is known.
        """
        self.device = device
        known = of_vendor(self.vendor)
        if architecture is not None and architecture not in known:
            raise TargetError(f"{self.name} knows no architecture {architecture!r}. Choose from {', '.join(known)}.")
        self.architecture = known[architecture] if architecture else None

    @property
    def target(self) -> Target:
        """With the device that was asked for."""
        return Target(self.name, devices=() if self.device is None else (self.device,))

    def layout_of(self, program: Program) -> Layout:
        """The same for every program."""
        return self.layout

    def check(self, compiles: bool) -> None:
        """A device must be here that runs it, unless an architecture is named and nothing is to run here."""
        if self.architecture is None or compiles:
            with self.placed():
                self.require_device()
                here = family(current())
            if self.architecture is not None and here != self.architecture.name:
                raise TargetError(
                    f"{self.name}:{self.architecture} was asked for, and the device here is {here}. Leave the "
                    f"architecture out, or compile kernels alone: {self.elsewhere}."
                )

    def placed(self) -> AbstractContextManager[Any]:
        """What runs within has the target's device for torch's current one.

        Raises:
            TargetError: the machine has fewer devices.
        """
        if self.device is None or not torch.cuda.is_available():  # the latter is refused where a device is needed
            return nullcontext()
        if self.device >= (count := torch.cuda.device_count()):
            raise TargetError(
                f"The target {self.name}:{self.device} names a device that is not here: torch sees {count}, from "
                f"{self.name}:0 to {self.name}:{count - 1}."
            )
        return torch.cuda.device(self.device)

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
        from headrace.backends.kernels.compile.aot import kernels

        with self.placed():
            name = self.architecture.name if self.architecture else family(current())
        if name not in ARCHITECTURES:
            raise TargetError(f"{name} is in no table of ours; name one: {', '.join(of_vendor(self.vendor))}.")
        return kernels(program, ARCHITECTURES[name])

    def plan(self, program: Program) -> tuple[Choice, ...]:
        """What it will do with a program and why, before anything is compiled."""
        return plan(program, self.name, self.architecture, self.attention)

    def feed(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Each array as a tensor on the host."""
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}

    def fetch(self, output: Tensor | Host | Answer) -> Host | Answer:
        """Begin to copy the output to the host, where the executable has not done so itself."""
        with self.placed():
            return Host(output) if isinstance(output, Tensor) else output

    def compile(self, program: Program) -> Executable:
        """Move the program to the device and compile it."""
        with self.placed():
            with debug.stage("move"):
                moved = program.with_(exported=on_device(program.graph))
            made = self._made(moved)
        return made if self.device is None else Placed(made, self.placed)

    def _made(self, program: Program) -> OfGraph:
        match program.form.layout:
            case Layout.PADDED:
                return Padded(program, self.decompositions)
            case Layout.PACKED:
                return Packed(program, self.step_tokens)
            case Layout.CACHED:
                return Stepping(program)

    def widest_row(self, dtype: str) -> int:
        """What the kernel of attention over caches holds in its registers and its local memory."""
        with self.placed():
            name = self.architecture.name if self.architecture else family(current())
        return widest_row(name, getattr(torch, dtype))

    def cache_bytes(self) -> int:
        """Half of what the device has free, what torch keeps for later among it."""
        with self.placed():
            kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            return (torch.cuda.mem_get_info()[0] + kept) // 2

    def resized(self, array: Tensor | None, shape: tuple[int, ...], dtype: str) -> Tensor:
        """A larger copy on the device, zeros past what there was."""
        with self.placed(), memory_told():
            made = torch.zeros(shape, dtype=getattr(torch, dtype), device="cuda")
            if array is not None:
                made[: len(array)] = array
        return made

    def load(self, path: Path, program: Program) -> Executable:
        """Compile anew from the saved graph, which Inductor's cache makes short."""
        self.check(compiles=True)
        return self.compile(program.with_(exported=torch.export.load(path)))
