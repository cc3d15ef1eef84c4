"""The ROCm target: CUDA's path, and here every difference from it.

torch for ROCm answers to `torch.cuda`, and Triton compiles for AMD what it compiles for NVIDIA, so that everything
else is shared. Nothing of this has run on an AMD GPU; docs/rocm.md says what stands for each part.
"""

from __future__ import annotations

import importlib.util

import torch

from headrace.backends.gpu.architecture import of_vendor
from headrace.backends.gpu.device import current
from headrace.backends.gpu.target import Gpu
from headrace.backends.inductor.compile import DECOMPOSITIONS, Decompositions, plain_attention
from headrace.backends.interface import Executable
from headrace.backends.kernels.tuning import family
from headrace.errors import TargetError
from headrace.ir import Program
from headrace.ops.attention import ATTENTION

PLAIN: Decompositions = {**DECOMPOSITIONS, ATTENTION: plain_attention}
INSTALL = "https://pytorch.org/get-started/locally, where ROCm is one of the choices"


class Rocm(Gpu):
    """Runs on AMD's GPUs of CDNA 2 to 4, RDNA 3 and RDNA 4, with a ROCm build of torch and its Triton."""

    name = "rocm"
    vendor = "hip"

    # Difference 1: no attention of a library. torch's SDPA on ROCm has been the inexact side in public reports, and
    # AITER's kernels are causal only. Packed programs attend by our kernel, as on CUDA; padded ones, which CUDA gives
    # to SDPA, by plain products and a softmax.
    decompositions = PLAIN
    attention = "plain products and a softmax, as eager attention computes it"

    # Difference 2: waves, local memory and tunings are other numbers: `backends/gpu/architecture.py` and
    # `kernels/tuning.py`, by architecture. Triton checks nothing when it compiles for AMD, so `kernels/machine_code.py`
    # does. The kernels' source is one.

    # Difference 3: float32. Where a kernel asks for TF32, Triton takes XF32 on gfx942; ours say "ieee". Libraries round
    # where `float32_matmul_precision` is "high"; `backends/inductor/precision.py` pins "highest", as on CUDA.

    def require_device(self) -> None:
        """A ROCm build of torch, and a GPU of an architecture that the kernels are compiled for in tests."""
        # Difference 4: what must be here, and what to do where it is not.
        other = f'or use target="cpu". Its kernels compile on any machine: {self.elsewhere}.'
        if torch.version.hip is None:
            build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for CPUs alone"
            raise TargetError(
                f"The target rocm needs an AMD GPU and torch built for ROCm; torch {torch.__version__} is {build}. "
                f"Install one ({INSTALL}), {other}"
            )
        if not torch.cuda.is_available():
            raise TargetError(
                f"The target rocm needs an AMD GPU, and torch (for ROCm {torch.version.hip}) sees none. See whether "
                f"rocminfo lists one, and whether you may open /dev/kfd (the groups render and video), {other}"
            )
        known, found = of_vendor(self.vendor), family(current())
        if found not in known:
            raise TargetError(
                f"The target rocm runs on {', '.join(f'{one} ({one.cards})' for one in known.values())}; "
                f'{torch.cuda.get_device_name()} is {found}, for which nothing was compiled. Use target="cpu".'
            )
        if importlib.util.find_spec("triton") is None:
            raise TargetError(
                "The target rocm needs Triton, which comes with torch for ROCm and is not installed. Install torch "
                f"again ({INSTALL}), {other}"
            )

    def require_scheme(self, scheme: str, dtype: str) -> None:
        """None is run yet."""
        # Difference 5: float8. CDNA 3 multiplies another format, with one zero and half the range (e4m3fnuz), and
        # nothing here rounds to it or has shown what that costs.
        raise TargetError(
            f'The target rocm does not run quantize="{scheme}" yet: CDNA 3 multiplies float8_e4m3fnuz, and Headrace '
            "rounds to float8_e4m3fn. Leave quantize out."
        )

    def compile(self, program: Program) -> Executable:
        """Move the program to the device and compile it.

        Raises:
            TargetError: its graph calls a library's attention.
        """
        require_own_attention(program)
        return super().compile(program)


def require_own_attention(program: Program) -> None:
    """Refuse a graph in which torch's own attention is left: nothing here could vouch for its answers on ROCm."""
    left = [node.name for node in program.graph.graph.nodes if "scaled_dot_product" in str(node.target)]
    if left:
        raise TargetError(
            f"{left[0]} calls torch's scaled_dot_product_attention outside of what was typed as attention; on ROCm it "
            'has been inexact, and Headrace runs none of it there. Use target="cpu".'
        )
