"""The cross-compilation gate: kernels for GPUs that are not here, by compilers alone, and what it must notice.

By default a part of it; `make gate`, or pytest with --gate, is the whole.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import graphs
from headrace.backends.gpu.architecture import ARCHITECTURES
from headrace.errors import TargetError
from headrace.ir import AttentionType, Layout, Task
from headrace.ops.packed import ATTENTION_VARLEN

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton: pip install triton", allow_module_level=True)

from headrace.backends.kernels.compile import aot, cross_compile, machine_code
from headrace.backends.kernels.linear_few.rows import FAMILIES
from headrace.backends.kernels.tuning import PRODUCTS, Blocks
from headrace.lowering.pipeline import prepare
from tests.backends.kernels.test_attention import CASES
from tests.gate import gate, ours, programs, rows, seeded

# One architecture, an encoder's layer, and every kernel of ours once.
PART = {"gfx942": ("bert",)}
KERNELS = {"gfx942": 20, "sm90": 25}


def require_sound(found: list[rows.Row], wanted: dict[str, tuple[str, ...]], whole: bool = True) -> None:
    """No faults, and nothing that should be there is not: a gate that compiles nothing passes nothing."""
    text = rows.table(found)
    print(text)
    assert not any(one.faults for one in found), text
    for name, of in wanted.items():
        architecture = ARCHITECTURES[name]
        here = [one for one in found if one.architecture == name]
        own = [one for one in here if one.of == "ours"]
        products = 4 if name in PRODUCTS else 0
        rows_ = 7 if name in FAMILIES else 0
        others = 20 + products + rows_ + ours.RECURRENT_KERNELS
        assert len(own) == (
            len(ours.ATTENTIONS) + 3 * len(ours.paged_cases(architecture)) + others if whole else KERNELS[name]
        )
        for program in of:
            mine = [one for one in here if one.of == program]
            emitted = [one for one in mine if one.kernel.startswith("triton_")]
            assert len(emitted) >= 3, (name, program, [one.kernel for one in mine])
            attends = [one for one in mine if one.kernel == "attend_tiles"]
            assert bool(attends) is (program != "t5 with its decoder")
            assert all(one.matrix for one in attends)
        assert {one.wave for one in here} == {architecture.wave}
        assert max(one.local for one in here) <= architecture.local


def test_a_part_of_it() -> None:
    require_sound(gate.run(PART, jobs=1, whole=False), PART, whole=False)


def test_a_part_has_every_kernel_once() -> None:
    for name, count in KERNELS.items():
        architecture = ARCHITECTURES[name]
        every = {launch.name for launch, _, _ in ours.listed(architecture)}
        once = [launch.name for launch, _, _ in ours.listed(architecture, whole=False)]
        assert len(once) == len(every) == count
        assert set(once) == every


@pytest.mark.gate
def test_the_whole_of_it() -> None:
    wanted = {name: programs.wanted(name) for name in ARCHITECTURES}
    require_sound(gate.run(wanted, jobs=2), wanted)


def test_local_memory_that_is_not_there() -> None:
    """Triton compiles it for AMD without a word."""
    architecture = ARCHITECTURES["gfx942"]
    launch = ours.attention(CASES["bidirectional"], ours.BF16, architecture, blocks=Blocks(16, 128, 4, 5))
    code = cross_compile.cross_compile(launch, architecture)
    (fault,) = [f for f in machine_code.faults(code, multiplies="bfloat16", spills=None) if "local memory" in f]
    assert fault == f"takes {code.local:,} bytes of local memory, of which gfx942 has 65,536"


@pytest.mark.parametrize(("name", "case"), [("gfx1100", "bidirectional"), ("gfx942", "256"), ("sm80", "bidirectional")])
def test_registers_that_spill(name: str, case: str) -> None:
    architecture = ARCHITECTURES[name]
    launch = ours.attention(CASES[case], ours.BF16, architecture, blocks=Blocks(128, 32, 1, 1))
    code = cross_compile.cross_compile(launch, architecture)
    assert f"spills {code.spills} registers" in machine_code.faults(code, multiplies="bfloat16")
    assert not any("spills" in fault for fault in machine_code.faults(code, multiplies="bfloat16", spills=None))


@pytest.mark.parametrize("name", ["gfx942", "sm80", "sm90"])
def test_a_product_that_no_longer_says_its_precision(name: str, tmp_path: Path) -> None:
    """Where an architecture rounds float32 by default, or is told to."""
    amd = name.startswith("gfx")
    module = seeded.mutated(tmp_path, f"precision_{name}", '"ieee"', '"tf32"' if amd else "None")
    architecture = ARCHITECTURES[name]
    launch = replace(ours.attention(CASES["bidirectional"], ours.FP32, architecture), kernel=module.attend_tiles)
    code = cross_compile.cross_compile(launch, architecture)
    assert any("rounds float32" in fault for fault in machine_code.faults(code, multiplies="float32")), code


def test_matrix_instructions_that_are_gone() -> None:
    architecture = ARCHITECTURES["gfx942"]
    (made,) = [launch for name, launch in ours.others() if name == "list_tiles"]
    faults = machine_code.faults(cross_compile.cross_compile(made, architecture), multiplies="bfloat16")
    assert faults == ["multiplies bfloat16 without a matrix instruction (v_mfma...)"]


def test_a_wave_of_another_size() -> None:
    architecture = ARCHITECTURES["gfx1100"]
    (made,) = [launch for name, launch in ours.others() if name == "list_tiles"]
    code = replace(cross_compile.cross_compile(made, architecture), architecture=replace(architecture, wave=64))
    assert machine_code.faults(code, multiplies=None) == ["runs waves of 32, where gfx1100 is meant to run 64"]


@pytest.mark.parametrize(
    ("kind", "window", "said"),
    [
        ("causal", [-1, -1], r"hides the query at 0 the key at 1, which .* \(ENCODER_ONLY, bidirectional .*\) shows"),
        ("bidirectional", [4, 4], "hides the query at 0 the key at 5"),
    ],
)
def test_a_mask_that_is_not_the_attentions(kind: str, window: list[int], said: str, analysed: Any) -> None:
    """A lowering that loses the kind or the window of an ENCODER_ONLY attention: nothing is compiled for it."""
    program = prepare(analysed("bert"), Task.EMBED, Layout.PACKED)
    assert {spec.type for spec in program.nodes.attention} == {AttentionType.ENCODER_ONLY}

    def lose(graph: Any) -> None:
        node = next(node for node in graph.nodes if node.target is ATTENTION_VARLEN)
        node.args = (*node.args[:7], kind, window, *node.args[9:])

    assert aot.kernels(program, ARCHITECTURES["gfx1100"])
    with pytest.raises(TargetError, match=rf"Kernels for gfx1100 would not run as they should: attend_tiles_0 {said}"):
        aot.kernels(program.with_(exported=graphs.rewrite(program.graph, lose)), ARCHITECTURES["gfx1100"])


def test_a_wider_mask_is_noticed_too(analysed: Any) -> None:
    """A causal attention that is shown what comes after."""
    program = prepare(analysed("qwen3"), Task.EMBED, Layout.PACKED)
    constants = {"LEFT": -1, "RIGHT": -1, "CHUNK": 0}
    (fault,) = machine_code.mask_faults(constants, program.nodes.attention[0])
    assert fault.startswith("shows the query at 0 the key at 1")
    assert machine_code.mask_faults(constants | {"RIGHT": 0}, program.nodes.attention[0]) == []
