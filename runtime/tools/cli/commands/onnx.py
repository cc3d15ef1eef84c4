"""The commands on exported models: what one holds, and whether it answers here as it did where it was made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import ArtifactError, InputError
from headrace.ir.serialize import decode
from headrace.runtime.artifact.manifest import check_files, read_manifest
from headrace.runtime.artifact.places import held
from headrace.runtime.tools.inspect.tables import aligned
from headrace.target import parse_target


def describe(folder: Path) -> str:
    """What a saved model is and holds, without loading it."""
    from headrace.ir import Task
    from headrace.runtime.artifact.saved_model import decided, understood
    from headrace.runtime.tools.inspect.report import explain

    with held(folder) as inside, understood(inside):
        program, manifest = decided(inside)
        task = Task(manifest["task"]) if manifest["task"] else None
        lines = [*aligned(list(_facts(manifest))), "", "Files", *aligned(list(_files(inside, manifest["files"])))]
        return explain(program, target=manifest["target"], task=task) + "\nSaved model\n" + "\n".join(lines) + "\n"


def _facts(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "headrace", str(manifest["headrace"])
    if exported := manifest["export"]:
        yield "profile", str(exported["profile"])
        yield "weights", str(exported["dtype"])
        yield "finished answers", "in the graph" if exported["finished"] else "none in the graph"
    if (held := manifest["tokenizer"]) is None:
        yield "tokenizer", "none"
    else:
        yield "tokenizer", "tokenizer.json alone" if held["facts"] is not None else "needs transformers"
    for kind, lane in manifest["lanes"].items():
        yield kind, lane["file"]


def _files(folder: Path, files: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, digest in files.items():
        size = (folder / name).stat().st_size if (folder / name).is_file() else None
        yield name, f"{size:,} bytes" if size is not None else "missing", digest[:12]


def check_export(folder: Path, target: str = "onnx") -> Iterator[tuple[bool, str]]:
    """Run an exported model's recorded cases here: for each check whether it passed, and what was found.

    Raises:
        ArtifactError: the folder is damaged, or holds no exported model.
        TargetError: onnxruntime is missing here.
    """
    with held(folder) as inside:
        yield from _checked(inside, target)


def _checked(folder: Path, target: str) -> Iterator[tuple[bool, str]]:
    from headrace.backends import backend

    manifest = read_manifest(folder)
    if not manifest["export"]:
        raise ArtifactError(f"{folder} is no exported model, so it holds no recorded answers. `headrace export` does.")
    where = parse_target(target)
    if where.kind != manifest["target"]:
        raise InputError(
            f"{folder} is an {manifest['target']} model, which target={target!r} does not run. Leave it out."
        )
    backend(target, compiles=False)
    check_files(folder, manifest["files"])
    yield True, f"files: {len(manifest['files'])}, each as it was written"
    from headrace.backends.onnx import names
    from headrace.backends.onnx.check.cases import replay
    from headrace.backends.onnx.check.crossed import replay_crossed
    from headrace.backends.onnx.check.past import replay_grown
    from headrace.backends.onnx.check.report import Report
    from headrace.backends.onnx.session import Session, find_providers
    from headrace.ir import Program

    report = decode(Report, json.loads((folder / manifest["export"]["report"]).read_text()))
    lanes = [decode(Program, lane["program"]) for lane in manifest["lanes"].values()]
    files = dict.fromkeys(lane["file"] for lane in manifest["lanes"].values())
    providers = find_providers(where.variant, where.device)
    sessions = [Session(folder / file, providers, device=where.device) for file in files]
    session = sessions[0]
    yield True, f"provider: {session.provider}"
    pasts = {name: one for lane in lanes if lane.form.caches for name, one in names.pasts(lane).items()}
    outputs = {names.OUTPUTS[output.kind]: output for lane in lanes for output in lane.signature.outputs}
    for case in report.cases:
        if case.targets:
            found = replay_crossed(case, sessions, pasts)
        else:
            found = replay_grown(case, session, pasts) if pasts else replay(case, session, outputs)
        yield report.bound.holds(found), f"{case}: {report.bound.words(found)}"
