"""The GPU architectures that our kernels are made for, as data: what a program of a kernel may take on each."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True)
class Architecture:
    """One architecture, by the name that compilers know it by.

    How many stages a loop has and how large its blocks are is tuning, by architecture too: `kernels/tuning.py`.

    Attributes:
        vendor: whose compiler makes code for it, as Triton names them.
        wave: threads that run in step: a warp of NVIDIA's, a wavefront of AMD's.
        local: bytes of local memory (shared memory, LDS) that one program may take. Triton checks it on NVIDIA when a
            kernel is loaded, and nobody checks it when one is compiled for AMD.
        matrix: what the names of its matrix instructions begin with.
        float32: whether those multiply float32 as IEEE has it; elsewhere that runs on the vector units.
        cards: some that have it.
    """

    name: str
    vendor: str
    wave: int
    local: int
    matrix: tuple[str, ...]
    float32: bool
    cards: str

    def __str__(self) -> str:
        """Its name."""
        return self.name


def _nvidia(name: str, local: int, matrix: tuple[str, ...], cards: str) -> Architecture:
    return Architecture(name, "cuda", 32, local, matrix, False, cards)


def _amd(name: str, wave: int, local: int, matrix: str, cards: str) -> Architecture:
    return Architecture(name, "hip", wave, local, (matrix,), matrix == "v_mfma", cards)


# LDS and wave sizes: AMD's instruction set manuals of CDNA 2 to 4 and RDNA 3 and 4. Shared memory: NVIDIA's CUDA C++
# programming guide, "maximum amount of shared memory per thread block". CDNA runs waves of 64, and RDNA of 32 since
# Triton asks for them.
ARCHITECTURES = {
    made.name: made
    for made in (
        _amd("gfx90a", 64, 64 * KIB, "v_mfma", "MI210, MI250"),
        _amd("gfx942", 64, 64 * KIB, "v_mfma", "MI300A, MI300X, MI325X"),
        _amd("gfx950", 64, 160 * KIB, "v_mfma", "MI350X, MI355X"),
        _amd("gfx1100", 32, 64 * KIB, "v_wmma", "RX 7900, PRO W7900"),
        _amd("gfx1201", 32, 64 * KIB, "v_wmma", "RX 9070"),
        _nvidia("sm80", 163 * KIB, ("mma.sync",), "A100"),
        _nvidia("sm90", 227 * KIB, ("wgmma.mma_async", "mma.sync"), "H100, H200"),
        _nvidia("sm100", 227 * KIB, ("tcgen05.mma", "mma.sync"), "B200"),
    )
}


def of_vendor(vendor: str) -> dict[str, Architecture]:
    """The architectures of one vendor, by name."""
    return {name: one for name, one in ARCHITECTURES.items() if one.vendor == vendor}
