"""The CUDA target: packed programs on NVIDIA GPUs."""

from __future__ import annotations

import importlib.util

import torch

from headrace.backends.gpu.target import Gpu
from headrace.errors import TargetError

OLDEST = (8, 0)
# The first whose matrix units multiply float8, and the dtype that such products come in on all of them.
FLOAT8_FROM, FLOAT8_IN = (8, 9), "bfloat16"


class Cuda(Gpu):
    """Runs on NVIDIA GPUs from the A100's generation on, with a CUDA build of torch and Triton."""

    name = "cuda"
    vendor = "cuda"

    def require_device(self) -> None:
        """A GPU must be there that bfloat16 and Triton run on."""
        other = 'or use target="cpu".'
        if torch.version.cuda is None:
            raise TargetError(
                f"The target cuda needs torch built for CUDA; torch {torch.__version__} is not. Install one "
                f"(https://pytorch.org/get-started), {other}"
            )
        if not torch.cuda.is_available():
            raise TargetError(
                f"The target cuda needs an NVIDIA GPU, and torch sees none. See whether nvidia-smi lists one, {other}"
            )
        found = torch.cuda.get_device_capability()
        if found < OLDEST:
            raise TargetError(
                f"The target cuda needs compute capability {OLDEST[0]}.{OLDEST[1]} or above; "
                f'{torch.cuda.get_device_name()} has {found[0]}.{found[1]}. Use target="cpu".'
            )
        if importlib.util.find_spec("triton") is None:
            raise TargetError(f"The target cuda needs Triton, which is not installed. pip install triton, {other}")

    def require_scheme(self, scheme: str, dtype: str) -> None:
        """Float8 takes the matrix units of Ada or Hopper and later, and a program in bfloat16."""
        if dtype != FLOAT8_IN:
            raise TargetError(
                f'The target cuda runs quantize="{scheme}" within {FLOAT8_IN}, not {dtype}. Add '
                f'dtype="{FLOAT8_IN}", or leave quantize out.'
            )
        found = torch.cuda.get_device_capability()
        if found < FLOAT8_FROM:
            raise TargetError(
                f'quantize="{scheme}" needs compute capability {FLOAT8_FROM[0]}.{FLOAT8_FROM[1]} or above; '
                f"{torch.cuda.get_device_name()} has {found[0]}.{found[1]}. Leave quantize out."
            )
