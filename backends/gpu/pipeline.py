"""The graph passes of the GPU targets after those of the kernels (`backends/kernels/pipeline.py`), in order."""

from __future__ import annotations

from headrace.backends.gpu.passes.fast_gelu import FastGelu
from headrace.backends.gpu.passes.materialize import MaterializeWaves
from headrace.backends.gpu.passes.scaled_products import ScaleProducts
from headrace.backends.kernels.quantized_activation.match import FuseQuantizedActivation
from headrace.graphs.passes import GraphPass


def compiler_passes() -> tuple[GraphPass, ...]:
    """What our kernels leave for Inductor, spelt so that it makes few and short kernels of it."""
    return (FuseQuantizedActivation(), ScaleProducts(), FastGelu(), MaterializeWaves())
