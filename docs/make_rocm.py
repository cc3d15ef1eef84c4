"""Execute the ROCm target's kernels in the emulator, and write what came of it into docs/rocm.md and docs/rocm.json.

python -m docs.make_rocm                     (make rocm) everything: minutes of two cores
python -m docs.make_rocm attend_tiles bert   only what is named so, beside what docs/rocm.json has of the rest
python -m docs.make_rocm --table             the page alone
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, FOUND = ROOT / "docs" / "rocm.md", ROOT / "docs" / "rocm.json"
BEGIN, END = "<!-- executed: written by docs/make_rocm.py -->", "<!-- end of executed -->"
# What no launch of the target on gfx942 comes down to today: products and what follows them are a library's there.
UNASKED = ("activate_rows", "multiply_activate", "round_rows")


def main() -> None:
    """Execute, keep each result as it comes, and write the page."""
    names = [name for name in sys.argv[1:] if name != "--table"]
    if "--table" not in sys.argv:
        for name, row in executed(names):
            keep(name, row)
            print(name, row, flush=True)
    PAGE.write_text(document(PAGE.read_text()))
    print(f"wrote {PAGE}")


def keep(name: str, row: dict[str, Any]) -> None:
    """Put a result beside those that are there; whoever reads meanwhile sees the file before or after."""
    found = json.loads(FOUND.read_text()) if FOUND.is_file() else {}
    made = FOUND.with_suffix(".new")
    made.write_text(json.dumps(dict(sorted({**found, name: row}.items())), indent=1) + "\n")
    made.replace(FOUND)


def executed(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A row a form of a kernel, and a row a model."""
    from tests.backends.rocm_emulator import cases, models
    from tests.backends.rocm_emulator.isa import decode

    for case in cases.every():
        if not names or case.kernel in names or str(case) in names:
            outcome = case.run()
            row = {"emulator": decode.version(), "retired": outcome.journal.retired, "largest": outcome.largest}
            yield str(case), {"kernel": case.kernel, "form": case.form, **row, "passes": outcome.passes}
    for model in models.MODELS:
        if not names or model.name in names or str(model) in names:
            with tempfile.TemporaryDirectory() as folder:
                whole = models.executed(model, Path(folder))
            row = {"emulator": decode.version(), "layout": whole.layout, "largest": whole.largest, "own": whole.own}
            row |= {"scale": whole.scale, "left": whole.left, "passes": whole.passes}
            kernels = [[one.kernel, one.configurations, one.launches, one.retired, one.apart] for one in whole.kernels]
            yield f"model {model}", {"model": str(model), **row, "kernels": kernels}


def document(page: str) -> str:
    """The page with the tables of docs/rocm.json."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables(json.loads(FOUND.read_text()))}\n\n{END}{rest.partition(END)[2]}"


def tables(found: dict[str, Any]) -> str:
    """What was executed of what is emitted, our kernels by their forms, and the models kernel by kernel."""
    ours = [row for row in found.values() if "kernel" in row]
    models = [row for row in found.values() if "model" in row]
    emitted = [kernel for row in models for kernel in row["kernels"]]
    ran = [kernel for kernel in emitted if kernel[2] and kernel[3]]
    emulators = ", ".join(sorted({row["emulator"] for row in found.values()}))
    passed = sum(row["passes"] for row in ours), sum(row["passes"] for row in models)
    lines = [
        f"Decoder and pseudocode: {emulators}; the machine: `tests/backends/rocm_emulator` of this checkout.",
        "",
        f"**{len(ran)} of {len(emitted)}** kernels that {len(models)} models come down to were executed, and "
        f"{passed[1]} of the {len(models)} models are as near float64 as they must be; of our kernels by themselves "
        f"{passed[0]} of {len(ours)} forms.",
        "",
        *_by_kernel(ours),
        "",
        *_by_model(models),
    ]
    return "\n".join(lines)


def _by_kernel(ours: list[dict[str, Any]]) -> Iterator[str]:
    yield "| our kernel | forms | instructions retired | largest difference: float32 | bfloat16 | float16 |"
    yield "|---|---|---|---|---|---|"
    for name in dict.fromkeys(kernel for row in ours for kernel in row["retired"]):
        rows = [row for row in ours if name in row["retired"]]
        retired = sum(row["retired"][name] for row in rows)
        own = [row for row in rows if row["kernel"] == name] or rows
        worst = [_worst(own, dtype) for dtype in ("float32", "bfloat16", "float16")]
        said = f"`{name}`{' (not emitted)' if name in UNASKED else ''}"
        yield f"| {said} | {len(rows)} | {retired:,} | {' | '.join(worst)} |"


def _worst(rows: list[dict[str, Any]], dtype: str) -> str:
    values = [row["largest"] for row in rows if row["form"].endswith(f", {dtype}")]
    return f"{max(values):.1e}" if values else "-"


def _by_model(models: list[dict[str, Any]]) -> Iterator[str]:
    yield "| model | layout | kernel | configurations | launches | instructions retired |"
    yield "|---|---|---|---|---|---|"
    for row in models:
        for name, configurations, launches, retired, _ in row["kernels"]:
            told = (row["model"], row["layout"], f"`{_short(name)}`", configurations, launches, f"{retired:,}")
            yield f"| {' | '.join(map(str, told))} |"
    yield ""
    yield "| model | largest difference from float64 | of its graph by itself | largest output | left to torch |"
    yield "|---|---|---|---|---|"
    for row in models:
        left = ", ".join(f"`{one}`" for one in row["left"]) or "-"
        yield f"| {row['model']} | {row['largest']:.1e} | {row['own']:.1e} | {row['scale']:.2f} | {left} |"


def _short(name: str) -> str:
    """Inductor's names list every operator: their beginning and the number tell them apart."""
    return name if len(name) <= 60 else f"{name[:50]}...{name[-5:]}"


if __name__ == "__main__":
    main()
