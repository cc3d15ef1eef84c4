"""The CUDA target: packed programs on NVIDIA GPUs."""

from __future__ import annotations

import importlib.util

import torch

from headrace.backends.gpu import Gpu
from headrace.errors import TargetError

OLDEST = (8, 0)


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
