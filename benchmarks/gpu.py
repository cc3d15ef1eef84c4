"""Embedding on one NVIDIA GPU beside what people use, in one run: python benchmarks/gpu.py [shape ...] [--plot FILE]

Random weights of real shapes in bfloat16, 4096 requests of 8 to 512 tokens (median 94, mean 123). Rates count real
tokens: ids in, pooled vectors out on the host. Text in: Python's own documentation, cut to
about those lengths and tokenised inside.
The peers' batches lie on the device, padded, longest first, before their clock starts; ours and vLLM's begin on the
host. vLLM takes part where HEADRACE_BENCH_VLLM names a Python that has it, or a folder of packages.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from embedding import vllm_peer
from embedding.ours import ours, profiled
from embedding.peers import peers, sentence_transformers
from embedding.tables import plotted, report
from embedding.timing import Row
from embedding.workload import DTYPE, SHAPES, draw, matmul_rate, prose


def main() -> None:
    """Every shape asked for."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--tokenizer", help="a folder whose tokenizer the text-in rates use; else they are left out")
    parser.add_argument("--only-ours", action="store_true", help="leave the peers out")
    parser.add_argument("--no-compiled-peer", action="store_true", help="leave torch.compile out, which takes a minute")
    parser.add_argument("--fp8", action="store_true", help="also Headrace with large layers in 8 bits")
    parser.add_argument("--profile", action="store_true", help="also list the kernels of one pass")
    parser.add_argument("--plot", help="write bars to this file, by matplotlib")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    tokenizer = transformers.AutoTokenizer.from_pretrained(asked.tokenizer) if asked.tokenizer else None
    lengths, peak, tables = draw(), matmul_rate(), dict[str, list[Row]]()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; a product reaches {peak / 1e12:.0f} TFLOP/s")
    for name in asked.shapes:
        shape, generator = SHAPES[name], np.random.default_rng(0)
        torch.manual_seed(0)
        config = getattr(transformers, shape.config)(**shape.sizes)
        model = transformers.AutoModel.from_config(config, dtype=DTYPE).eval()
        requests = [generator.integers(5, 30000, n) for n in lengths]
        rows = [] if asked.only_ours else list(peers(model, shape, requests, not asked.no_compiled_peer))
        if tokenizer is not None and not asked.only_ours:
            rows += sentence_transformers(model, shape, tokenizer, prose(lengths))
        if not asked.only_ours:
            rows += vllm_peer.rows(config, shape, lengths)
        made = []
        for quantize in (None, "fp8")[: 1 + asked.fp8]:
            row, served = ours(model, shape, requests, tokenizer, prose(lengths), quantize)
            rows.append(row)
            made.append(served)
        tables[name] = rows
        report(name, config, rows, lengths, peak, shape.pooling == "last")
        if asked.profile:
            for served in made:
                profiled(served, requests)
        del model, served, made
        torch.cuda.empty_cache()
    if asked.plot:
        plotted(tables, asked.plot)


if __name__ == "__main__":
    main()
