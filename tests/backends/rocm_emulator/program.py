"""A whole program as the ROCm target compiles it, every kernel of it in the emulator: run in a process of its own.

`python -m tests.backends.rocm_emulator.program FOLDER NAME OUT MOST`: Inductor's own code launches what it emitted,
and products, which it leaves to a library, are torch's on the CPU. FOLDER holds the program and its inputs (`write`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
# What the code says of a device, in words that this machine has.
HERE = {
    "empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda": "empty_strided_cuda = empty_strided_cpu",
    "device(type='cuda', index=0)": "device('cpu')",
    "device='cuda:0'": "device='cpu'",
    "get_raw_stream(0)": "0",
}


@dataclass(frozen=True)
class Executed:
    """One kernel of a program.

    Attributes:
        configurations: how many of those that Inductor would time on the device were executed.
        retired: instructions of the first one, each counted once for every wave.
        apart: the largest difference that one configuration made to the first, of what that made at most.
    """

    kernel: str
    configurations: int
    launches: int
    retired: int
    apart: float


def write(folder: Path, name: str, program: Any, inputs: dict[str, Any]) -> None:
    """A program and what it is called with, as files."""
    import torch

    from headrace.ir.serialize import encode

    torch.export.save(program.graph, folder / f"{name}.pt2")
    (folder / f"{name}.json").write_text(json.dumps(encode(program)))
    torch.save(inputs, folder / f"{name}.inputs.pt")


def execute(folder: Path, name: str, most: int = 1) -> tuple[list[Any], list[Executed], list[str]]:
    """The outputs of a program, its kernels, and what was left to torch's own products, by name.

    Args:
        most: configurations of each kernel, of those that Inductor would time on the device.

    Raises:
        RuntimeError: the process failed; its last words.
    """
    import torch

    out = folder / f"{name}.out"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.backends.rocm_emulator.program", str(folder), name, str(out), str(most)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-3000:]}")
    told = json.loads(out.with_suffix(".json").read_text())
    return torch.load(out.with_suffix(".pt")), [Executed(**one) for one in told["kernels"]], told["left"]


def main(folder: str, name: str, out: str, most: str) -> None:
    """Compile the program for gfx942 and run it."""
    from tests.gate import emitted, fake_device

    fake_device.install("gfx942")
    import torch

    from tests.gate import programs

    real = emitted.lowered(programs.read(Path(folder), name))
    made = emitted.emitted(programs.read(Path(folder), name), int(most))
    held = dict(real.named_parameters()) | dict(real.named_buffers())
    inputs = torch.load(Path(folder) / f"{name}.inputs.pt")
    given = [held[each].detach().clone() for each in made.weights] + [inputs[each] for each in made.inputs]
    kernels = {(each, source): Launched(each, tuner) for each, source, tuner in made.kernels}
    with torch.no_grad():
        outputs = _called(made.code, kernels, given)
    torch.save(outputs, Path(out).with_suffix(".pt"))
    left = sorted(set(re.findall(r"(?:extern_kernels|torch\.ops)\.[\w.]+(?=\()", made.code)))
    told = {"kernels": [asdict(one.told()) for one in kernels.values()], "left": left}
    Path(out).with_suffix(".json").write_text(json.dumps(told))


def _called(code: str, kernels: dict[tuple[str, str], Launched], given: list[Any]) -> list[Any]:
    """Inductor's code, its kernels in the emulator and everything else on the CPU."""
    import torch
    from torch._inductor import async_compile

    for said, here in HERE.items():
        code = code.replace(said, here)
    async_compile.AsyncCompile.triton = lambda self, name, source, device_str="cuda": kernels[name, source]  # type: ignore[method-assign, assignment]
    torch.cuda._DeviceGuard = lambda index: nullcontext()  # type: ignore[assignment, misc, return-value]
    names: dict[str, Any] = {"__name__": "emitted", "__file__": "emitted"}
    exec(compile(code, "<emitted>", "exec"), names)
    return list(names["call"](given))


class Launched:
    """Stands for Inductor's record of a kernel: each of its configurations is executed, on the same memory."""

    def __init__(self, name: str, tuner: Any) -> None:
        """Of what was compiled."""
        self.name, self.launches, self.retired, self.apart = name, 0, 0, 0.0
        self._ways = [_launcher(result) for result in tuner.compile_results]

    def told(self) -> Executed:
        """What was executed."""
        return Executed(self.name, len(self._ways), self.launches, self.retired, self.apart)

    def run(self, *arguments: Any, stream: int = 0, **named: Any) -> None:
        """One launch; what the first configuration makes stays."""
        tensors = _storages(arguments)
        before = [data.clone() for data in tensors]
        self.launches += 1
        made: list[Any] = []
        for way in reversed(self._ways):
            for data, old in zip(tensors, before, strict=True):
                data.copy_(old)
            retired = way(*arguments, stream=stream, **named)
            made.append([value.clone() for value in arguments if hasattr(value, "untyped_storage")])
        self.retired += retired
        self.apart = max([self.apart, *(_difference(one, made[-1]) for one in made[:-1])])


def _storages(arguments: Any) -> list[Any]:
    """The memory behind the tensors, each once, as bytes."""
    import torch

    found = {
        value.untyped_storage().data_ptr(): value.untyped_storage()
        for value in arguments
        if hasattr(value, "untyped_storage")
    }
    return [torch.empty(0, dtype=torch.uint8).set_(storage) for storage in found.values()]


def _difference(one: list[Any], other: list[Any]) -> float:
    """The largest, relative to the largest value."""
    import torch

    worst = 0.0
    for mine, its in zip(one, other, strict=True):
        if mine.numel() and not torch.equal(mine, its):
            scale = max(1e-30, float(its.double().abs().nan_to_num(0).max()))
            worst = max(worst, float((mine.double() - its.double()).abs().nan_to_num(0).max()) / scale)
    return worst


def _launcher(result: Any) -> Any:
    """Inductor's own launcher of one configuration, which computes the grid and orders the arguments."""
    from torch._inductor.runtime.triton_heuristics import get_constexprs

    from tests.backends.rocm_emulator import launch as emulator

    compiled = result.kernel
    source = compiled.src
    names = list(source.fn.arg_names)
    kernel = emulator.kernel(
        bytes(compiled.asm["hsaco"]), compiled.metadata.name, compiled.metadata.shared, compiled.metadata.num_warps
    )

    def runner(x: int, y: int, z: int, *values: Any) -> None:
        given = [(source.signature[name], value) for name, value in zip(names, values, strict=True)]
        told.append(emulator.launch(kernel, (x, y, z), [one for one in given if one[0] != "constexpr"]).waves)

    told: list[int] = []
    call_args, def_args, _ = result._get_arg_lists(names, get_constexprs(source.fn))
    grid = ["grid_0", "grid_1", "grid_2"]
    launcher = result._gen_launcher_code({"runner": runner}, def_args, [*grid, *map(str, call_args)])

    def launch(*arguments: Any, **named: Any) -> int:
        launcher(*arguments, **named)
        return told.pop()

    return launch


if __name__ == "__main__":
    main(*sys.argv[1:])
