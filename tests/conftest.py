"""What every test shares: golden files, marks for missing hardware, and tiny models, built and analysed once."""

from __future__ import annotations

import difflib
import os
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import workers

# Before torch and the hub's client are imported, here and in the processes that tests start.
# One thread a process: on a busy machine the others of a team spin, and pytest-xdist runs a process a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# Options of `compiled` that the trace depends on, as of `headrace.trace`.
TRACING = ("prefill", "tokenizer", "pooling", "task")
GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the tests see")
    parser.addoption("--gate", action="store_true", help="also compile every kernel for every GPU: minutes")
    parser.addoption("--slow", action="store_true", help="also run tests that take minutes or fetch large weights")


def pytest_configure(config: pytest.Config) -> None:
    # What lies around the kernels of a compiled model calls them and computes nothing, and is most of what the C++
    # compiler works at. --slow leaves it at torch's own level.
    if not config.getoption("--slow"):
        os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = workers.longest_first(items)
    lacking = {
        "gate": lambda: None if config.getoption("--gate") else "--gate: takes minutes",
        "slow": lambda: None if config.getoption("--slow") else "--slow: takes minutes",
        "gpu": lambda: None if _cuda() or _hip() else "needs a GPU that torch.cuda sees",
        "nvidia": lambda: None if _cuda() else "needs an NVIDIA GPU",
        "rocm": lambda: None if _hip() else "needs an AMD GPU and a ROCm build of torch",
    }
    for mark, reason in lacking.items():
        marked = [item for item in items if item.get_closest_marker(mark)]
        if marked and (why := reason()) is not None:
            for item in marked:
                own = item.get_closest_marker(mark).kwargs.get("reason")
                item.add_marker(pytest.mark.skip(reason=f"{why.partition(':')[0]}: {own}" if own else why))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was skipped, and why: a line a reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("skipped", sep="-")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} {reason}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By file, as `--dist loadfile` does, but for files that share what is dear, and the longest first."""
    return workers.scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available() and torch.version.hip is None


def _hip() -> bool:
    import torch

    return torch.cuda.is_available() and torch.version.hip is not None


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests save is noted in a register of their own, also by the processes that they start."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session", autouse=True)
def _own_code_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What one worker compiles the others read, and so does the next session of this checkout.

    An entry is named by all that its code depends on, our own code among it. --slow reads none from before.
    """
    made = tmp_path_factory.getbasetemp()
    session = made.parent if os.environ.get("PYTEST_XDIST_WORKER") else made
    kept = None if request.config.getoption("--slow") else getattr(request.config, "cache", None)
    os.environ["HEADRACE_CODE_CACHE"] = str(session / "code" if kept is None else kept.mkdir("code"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Also where torch was imported before the environment said so."""
    import sys

    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` holds `text` against tests/golden/<name>.txt, which --update-golden rewrites."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        if not path.is_file():
            pytest.fail(f"{path} is missing; write it with --update-golden:\n{text}")
        expected = path.read_text()
        if text != expected:
            lines = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), str(path), "what the test saw", lineterm=""
            )
            pytest.fail("\n".join(lines) + "\nIf the change is meant, rerun with --update-golden.", pytrace=False)

    return check


class Cache:
    """Results by the arguments that made them, for a whole session."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._made: dict[str, Any] = {}

    def __call__(self, name: str, head: str = "AutoModel", **overrides: Any) -> Any:
        key = repr((name, head, sorted(overrides.items())))
        if key not in self._made:
            self._made[key] = self._make(name, head, **overrides)
        return self._made[key]


@pytest.fixture(scope="session")
def tiny() -> Cache:
    """`tiny("bert", "AutoModelForMaskedLM", **config)` is an eager model; shared, so a test that changes it copies."""
    from tests.tiny import build

    return Cache(build)


@pytest.fixture(scope="session")
def traced(tiny: Cache) -> Cache:
    """`traced(name, head, **config)` is what `trace` makes of the tiny model."""
    from headrace.frontend.trace import trace
    from tests.tiny import checkpoint

    return Cache(lambda name, head, **overrides: trace(checkpoint(tiny(name, head, **overrides))))


@pytest.fixture(scope="session")
def analysed(traced: Cache) -> Cache:
    """`analysed(name, head, **config)` is the `Program` after trace and analysis."""
    from headrace.lowering.pipeline import analyse

    def make(name: str, head: str, **overrides: Any) -> Any:
        made = traced(name, head, **overrides)
        return analyse(made.program, made.behaviour)

    return Cache(make)


class Compiled:
    """Compiles on first use and keeps the model for the session; what several targets compile is traced once."""

    def __init__(self, tiny: Any) -> None:
        self._tiny, self._made, self._traced = tiny, dict[str, Any](), dict[str, Any]()

    def __call__(
        self, name: str, head: str, target: str, *, config: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        import headrace

        key = repr((name, head, target, config, sorted(options.items())))
        if key not in self._made:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", headrace.HeadraceWarning)
                before = {name: value for name, value in options.items() if name in TRACING}
                after = {name: value for name, value in options.items() if name == "task" or name not in TRACING}
                traced = self._trace(name, head, config or {}, before)
                self._made[key] = traced.lower(target).compile(**after)
        return self._made[key]

    def _trace(self, name: str, head: str, config: dict[str, Any], options: dict[str, Any]) -> Any:
        import headrace

        key = repr((name, head, sorted(config.items()), sorted(options.items())))
        if key not in self._traced:
            self._traced[key] = headrace.trace(self._tiny(name, head, **config), **options)
        return self._traced[key]


@pytest.fixture(scope="session")
def compiled(tiny: Any) -> Compiled:
    """`compiled(name, head, target, **options)` is a compiled model; shared, so a test that changes it compiles."""
    return Compiled(tiny)
