"""How torch's compiler calls the compiler of C++, under names of ours: each file at once, and none in vain."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch._inductor import cpp_builder, cpu_vec_isa
from torch._inductor.exc import CppCompileError

# What surrounds the kernels, and the kernels, by the ends of the names of their files.
WRAPPER, KERNELS = ".wrapper.o", ".kernel.o"
# torch's runtime reads "cpu" or "cuda:1" by a regular expression. std::regex costs more to compile than most models,
# and the system has had expressions of this kind for longer. Included are what <regex> includes.
REGEX = r"""#pragma once
#include <regex.h>
#include <algorithm>
#include <bitset>
#include <cstring>
#include <functional>
#include <iterator>
#include <locale>
#include <map>
#include <memory>
#include <sstream>
#include <stack>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
namespace headrace {
struct Part {
  bool matched = false;
  std::string text;
  std::string str() const { return text; }
};
struct Match {
  std::vector<Part> parts;
  const Part& operator[](size_t place) const { return parts.at(place); }
};
struct Pattern {
  regex_t held;
  explicit Pattern(const char* text) {
    if (::regcomp(&held, text, REG_EXTENDED) != 0) throw std::invalid_argument(text);
  }
  Pattern(const Pattern&) = delete;
  ~Pattern() { ::regfree(&held); }
};
inline bool matches(const std::string& text, Match& found, const Pattern& pattern) {
  std::vector<regmatch_t> places(pattern.held.re_nsub + 1);
  if (::regexec(&pattern.held, text.c_str(), places.size(), places.data(), 0) != 0 || places[0].rm_so != 0 ||
      places[0].rm_eo != static_cast<regoff_t>(text.size()))
    return false;
  for (const auto& at : places)
    found.parts.push_back(at.rm_so < 0 ? Part{} : Part{true, text.substr(at.rm_so, at.rm_eo - at.rm_so)});
  return true;
}
}  // namespace headrace
namespace std {
using regex = headrace::Pattern;
using smatch = headrace::Match;
inline bool regex_match(const string& text, smatch& found, const regex& pattern) {
  return headrace::matches(text, found, pattern);
}
}  // namespace std
"""


# What keeps a file that was compiled: it takes the command by which it is, and what compiles it where none is kept.
Keep = Callable[[str, Callable[[], bytes]], bytes]


@contextmanager
def brief_builds(source: str = "", keep: Keep = lambda _, make: make()) -> Iterator[None]:
    """Let torch compile the files of one library at once, without debug information and without what is not needed.

    C++ of ours is a file of that library. It is the same of many models, so `keep` may have it from before, and else it
    is compiled while torch still works out its own.

    What is compiled is the same code. A processor's instruction sets are told by the processor, as torch does, and
    whether the compiler knows them by its flags, in place of a library that is built and loaded for each.
    """
    with ExitStack() as opened:
        headers = opened.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))
        Path(headers, "regex").write_text(REGEX)
        builds = _Builds(headers, opened.enter_context(ThreadPoolExecutor(3)), cpp_builder._run_compile_cmd)
        opened.enter_context(patch.object(cpp_builder, "_run_compile_cmd", builds))
        opened.enter_context(patch.object(cpu_vec_isa.VecISA, "check_build", _known))
        if source:
            builds.begin(source, keep)
        yield


class _Builds:
    """Runs the compiler's commands: files are compiled meanwhile, and a library waits for its files."""

    def __init__(self, headers: str, pool: ThreadPoolExecutor, run: Callable[[str, str], None]) -> None:
        self._headers, self._pool, self._run = headers, pool, run
        self._running: list[Future[None]] = []
        self._objects: list[str] = []

    def begin(self, source: str, keep: Keep) -> None:
        """Compile a file that torch knows nothing of, as it compiles kernels."""
        file = Path(self._headers, "headrace.cpp")
        file.write_text(source)
        chosen = cpp_builder.CppTorchDeviceOptions(
            vec_isa=cpu_vec_isa.pick_vec_isa(), device_type="cpu", aot_mode=True, compile_only=True
        )
        built = cpp_builder.CppBuilder("headrace", [str(file)], chosen, self._headers)
        made = Path(built.get_target_file_path())
        self._objects.append(str(made))
        command = shlex.join([*shlex.split(built.get_command_line()), "-g0"])
        self._running.append(self._pool.submit(self._compile_ours, command, made, keep))

    def _compile_ours(self, command: str, made: Path, keep: Keep) -> None:
        def compiled() -> bytes:
            self._run(command, self._headers)
            return made.read_bytes()

        # The folder is another each time.
        made.write_bytes(keep(command.replace(self._headers, ""), compiled))

    def __call__(self, command: str, cwd: str) -> None:
        words = shlex.split(command)
        made = words[words.index("-o") + 1]
        if made.endswith((WRAPPER, KERNELS)):
            # Not where torch would run it: that folder goes when it believes the file to be compiled.
            compile_ = self._compile_wrapper if made.endswith(WRAPPER) else self._run
            self._running.append(self._pool.submit(compile_, command, str(Path(made).parent)))
            return
        waited, self._running = self._running, []
        for running in waited:
            running.result()
        # Where it links them, before the libraries, which are searched for what files before them need.
        linked = next((place for place, word in enumerate(words) if word.endswith((WRAPPER, KERNELS))), None)
        if linked is not None:
            words[linked:linked] = self._objects
        self._run(shlex.join(words), cwd)

    def _compile_wrapper(self, command: str, cwd: str) -> None:
        first, *others = shlex.split(command)
        try:
            self._run(shlex.join([first, f"-I{self._headers}", *others, "-g0"]), cwd)
        except CppCompileError:  # of a runtime that asks more of its expressions
            self._run(command, cwd)


def _known(isa: Any, code: str) -> bool:
    """Whether the compiler knows the flags of an instruction set that the processor has."""
    return _accepted(cpp_builder.get_cpp_compiler(), isa.build_arch_flags())


@cache
def _accepted(compiler: str, flags: str) -> bool:
    command = [*shlex.split(compiler), *shlex.split(flags), "-fsyntax-only", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
