"""What torch knows of the processor that it runs on."""

from __future__ import annotations

import torch


def tile_dtypes() -> frozenset[torch.dtype]:
    """The dtypes whose tiles this processor multiplies by torch's oneDNN, faster than torch multiplies matrices.

    Of float32 those of AVX512, of bfloat16 those of AVX512-BF16 or AMX. `ATEN_CPU_CAPABILITY` narrows it.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return frozenset()
    return frozenset({torch.float32, torch.bfloat16} if multiplies_bfloat16() else {torch.float32})


def multiplies_bfloat16() -> bool:
    """Whether the processor has products of bfloat16; where it has none, they are slower than those of float32."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
