"""What torch knows of the processor that it runs on."""

from __future__ import annotations

import torch


def tile_dtypes() -> frozenset[torch.dtype]:
    """The dtypes whose tiles this processor multiplies by torch's oneDNN, faster than torch multiplies matrices.

    Of float32 those of AVX512, of bfloat16 those of AVX512-BF16 or AMX, of int8 those of AMX. `ATEN_CPU_CAPABILITY`
    narrows it.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return frozenset()
    found = {torch.float32: True, torch.bfloat16: multiplies_bfloat16(), torch.int8: torch.cpu._is_amx_tile_supported()}
    return frozenset(dtype for dtype, there in found.items() if there)


def multiplies_bfloat16() -> bool:
    """Whether the processor has products of bfloat16; where it has none, they are slower than those of float32."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
