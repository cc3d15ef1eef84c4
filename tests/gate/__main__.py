"""The gate: every kernel for every architecture, as a table. Exits 1 where one is at fault.

python -m tests.gate [--jobs 2] [--only gfx942,sm90] [--part] [--out table.txt]
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from headrace.backends.gpu.architecture import ARCHITECTURES
from tests.gate import gate, programs, rows


def main() -> int:
    """Compile, print, and say whether all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--only", default=",".join(ARCHITECTURES), help="architectures, with commas between")
    parser.add_argument("--part", action="store_true", help="our kernels once, programs for two architectures")
    parser.add_argument("--out", type=Path, help="write the table here too")
    given = parser.parse_args()
    begin = time.perf_counter()
    wanted = {name: programs.wanted(name, not given.part) for name in given.only.split(",")}
    found = gate.run(wanted, given.jobs, not given.part)
    used = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = sum(one.ru_utime + one.ru_stime for one in used)
    text = f"{rows.table(found)}\n{time.perf_counter() - begin:.0f} s, {seconds:.0f} s of one core"
    if given.part:
        text += f"\nA part: every program for {' and '.join(programs.PART)}; each kernel of ours once for all."
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    return int(any(one.faults for one in found))


if __name__ == "__main__":
    sys.exit(main())
