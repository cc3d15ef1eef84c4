"""What was measured as Markdown and as bars."""

from __future__ import annotations

from typing import Any

import numpy as np

from embedding.timing import ONE, Row
from embedding.workload import flops


def report(name: str, config: Any, rows: list[Row], lengths: list[int], peak: float, causal: bool) -> None:
    """The table of one shape."""
    work = flops(config, lengths, causal) / sum(lengths)
    print(f"\n### {name}: {sum(lengths)} tokens in {len(lengths)} requests\n")
    print("| | ids in, ktok/s | x batch 32 | share of peak | text in, ktok/s | first run, s | load, s | "
          + " | ".join(f"{n} tokens p50 / p99, ms" for n in ONE) + " |")  # fmt: skip
    print("|---|" + "---:|" * (6 + len(ONE)))
    for row in rows:

        def shown(value: float | None, digits: int = 0, by: float = 1) -> str:
            return "" if value is None else f"{value / by:,.{digits}f}"

        waits = [f"{p50:.2f} / {p99:.2f}" for p50, p99 in row.latencies] or [""] * len(ONE)
        share = f"{row.rate / rows[0].rate:.1f} | {row.rate * work / peak:.0%}" if row.rate else " | "
        print(f"| {row.name} | {shown(row.rate, 0, 1e3)} | {share} | "
              f"{shown(row.text_rate, 0, 1e3)} | {shown(row.first)} | {shown(row.warm, 1)} | {' | '.join(waits)} |",
              flush=True)  # fmt: skip


def plotted(tables: dict[str, list[Row]], file: str) -> None:
    """Bars of ids-in rates."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(tables), figsize=(4 * len(tables), 3.4), layout="constrained")
    for axis, (name, rows) in zip(np.atleast_1d(axes), tables.items(), strict=True):
        timed = [row for row in reversed(rows) if row.rate]
        bars = axis.barh([row.name for row in timed], [row.rate / 1e3 for row in timed])
        axis.bar_label(bars, fmt="{:,.0f}")
        axis.set_title(f"{name}, thousand real tokens/s")
        axis.margins(x=0.25)
    figure.savefig(file)
