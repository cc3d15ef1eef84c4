"""What compiles torch's code in less time: how its runtime reads names, and what is asked of the compiler."""

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from torch._inductor import cpp_builder

from headrace.compat.torch_builds import REGEX, _accepted, brief_builds

# Of torch's runtime.
PATTERN = "(cpu|cuda|xpu|mps)(:([0-9]+))?"
NAMES = ("cpu", "cuda", "cuda:1", "xpu:12", "cpu:", "acpu", "cpu ", "", "cuda:1x", "mps:0")
PROGRAM = r"""#include <regex>
#include <cstdio>
int main(int count, char** names) {
  std::regex pattern(names[1]);
  for (int i = 2; i < count; i++) {
    std::smatch found;
    bool matched = std::regex_match(std::string(names[i]), found, pattern);
    if (!matched) { std::puts("-"); continue; }
    std::printf("%s %s\n", found[1].str().c_str(), found[3].matched ? found[3].str().c_str() : "none");
  }
}
"""


def test_names_of_devices_are_read_as_by_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "regex").write_text(REGEX)
    (tmp_path / "main.cpp").write_text(PROGRAM)
    compiler = [cpp_builder.get_cpp_compiler(), "-std=c++20", f"-I{tmp_path / 'headers'}", "main.cpp", "-o", "main"]
    subprocess.run(compiler, cwd=tmp_path, check=True)
    said = subprocess.run(["./main", PATTERN, *NAMES], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    matches = [re.fullmatch(PATTERN, name) for name in NAMES]
    assert said.splitlines() == [f"{found[1]} {found[3] or 'none'}" if found else "-" for found in matches]


def test_flags_that_the_compiler_knows() -> None:
    compiler = cpp_builder.get_cpp_compiler()
    assert _accepted(compiler, "-O1")
    assert not _accepted(compiler, "-O1 -mno-such-thing")


def test_a_file_that_cannot_be_compiled_fails_its_library(tmp_path: Path) -> None:
    run = cpp_builder._run_compile_cmd
    with brief_builds():
        cpp_builder._run_compile_cmd(f"c++ -c {tmp_path}/none.cpp -o {tmp_path}/a.kernel.o", str(tmp_path))
        with pytest.raises(RuntimeError, match=r"C\+\+ compile error"):
            cpp_builder._run_compile_cmd(f"c++ {tmp_path}/a.kernel.o -o {tmp_path}/a.so", str(tmp_path))
    assert cpp_builder._run_compile_cmd is run


OURS = 'extern "C" int ours() { return 7; }'


def test_our_file_is_compiled_once_and_linked_each_time(tmp_path: Path) -> None:
    """By a command that is the same each time, though it is compiled in a folder of its own."""
    kept: dict[str, bytes] = {}
    made = 0

    def keep(command: str, make: Callable[[], bytes]) -> bytes:
        nonlocal made
        if command not in kept:
            kept[command], made = make(), made + 1
        return kept[command]

    for place in (tmp_path / "first", tmp_path / "second"):
        place.mkdir()
        (place / "a.cpp").write_text('extern "C" int ours(); extern "C" int theirs() { return ours(); }')
        with brief_builds(OURS, keep):
            cpp_builder._run_compile_cmd(f"c++ -fPIC -c {place}/a.cpp -o {place}/a.kernel.o", str(place))
            cpp_builder._run_compile_cmd(f"c++ -shared {place}/a.kernel.o -o {place}/a.so", str(place))
        assert ctypes.CDLL(str(place / "a.so")).theirs() == 7
    assert made == len(kept) == 1


def test_our_file_that_cannot_be_compiled_fails_its_library_and_is_not_kept(tmp_path: Path) -> None:
    kept: list[bytes] = []

    def keep(_: str, make: Callable[[], bytes]) -> bytes:
        kept.append(make())
        return kept[0]

    with brief_builds("int ours( {", keep), pytest.raises(RuntimeError, match=r"C\+\+ compile error"):
        cpp_builder._run_compile_cmd(f"c++ -shared -o {tmp_path}/a.so", str(tmp_path))
    assert not kept
