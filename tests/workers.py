"""How the files of tests are spread over pytest-xdist's workers: who shares one, and who comes first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Files whose tests use the same models, each of which takes long to compile, to record or to trace: one worker makes
# them once. A name that ends with a slash is a folder.
SHARED = (
    # What `analysed` and `traced` of conftest.py make: about 130 programs.
    (
        "tests/lowering/",
        "tests/headrace/ir/",
        "tests/headrace/verify/",
        "tests/headrace/test_graphs.py",
        "tests/frontend/test_trace.py",
        "tests/frontend/test_encoder_decoder.py",
        "tests/frontend/facts/test_head.py",
        "tests/frontend/facts/test_positions.py",
        "tests/runtime/engine/test_decoding.py",
        "tests/runtime/engine/test_packed_batch.py",
        "tests/runtime/tools/test_inspect.py",
        "tests/backends/gpu/",
        "tests/backends/onnx/test_past.py",
        "tests/backends/onnx/test_session.py",
        "tests/backends/onnx/test_translate.py",
    ),
    ("tests/conformance/test_tasks.py", "tests/runtime/artifact/test_saved_model.py"),
    tuple(f"tests/runtime/tools/test_{name}.py" for name in ("cli", "cli_mistakes", "kernels_only")),
    tuple(f"tests/runtime/serve/test_{name}.py" for name in ("robust", "routes", "fuzz", "clients")),
)
# Those that take long, about in that order: no worker should begin one when the other is about to end.
FIRST = (
    "tests/lowering/",
    "tests/conformance/test_tasks.py",
    "tests/conformance/test_real_weights.py",
    "tests/runtime/tools/test_cli.py",
    "tests/gate/test_gate.py",
    "tests/runtime/test_cases.py",
    "tests/backends/kernels/test_attention.py",
    "tests/coverage/test_coverage.py",
    "tests/parity/test_defects.py",
    "tests/frontend/load/sentence_transformers/test_pipelines.py",
    "tests/parity/test_bundles.py",
    "tests/runtime/test_refusals.py",
    "tests/frontend/eager/test_borrowed.py",
    "tests/backends/inductor/test_recurrent.py",
)


def scheduler(config: Any, log: Any) -> Any:
    """By file, as `--dist loadfile` does, but for those that share a worker, and in the order of the collection.

    xdist's own order goes by the number of tests, which says little about how long they take.
    """
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    made = LoadFileScheduling(config, log)
    made._split_scope = lambda nodeid: scope_of(file_of(nodeid))
    return made


def scope_of(file: str) -> str:
    """What one worker runs together: the first of the files that share it, or the file alone."""
    return next((names[0] for names in SHARED if any(_names(name, file) for name in names)), file)


def longest_first(items: Iterable[Any]) -> list[Any]:
    """The tests of the files that take long before those of the others, which stay as they are."""
    places = {scope_of(name): place for place, name in reversed(list(enumerate(FIRST)))}
    return sorted(items, key=lambda item: places.get(scope_of(file_of(item.nodeid)), len(FIRST)))


def _names(name: str, file: str) -> bool:
    return file.startswith(name) if name.endswith("/") else file == name


def file_of(nodeid: str) -> str:
    """The path of the file, below the root of the repository."""
    return nodeid.partition("::")[0]
