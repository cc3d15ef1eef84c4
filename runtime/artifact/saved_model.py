"""Save a compiled model to a folder and load it back without tracing or compiling."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from headrace.backends import backend as find_backend
from headrace.backends import target_of
from headrace.backends.interface import Backend, Executable, WarmsUp
from headrace.errors import ArtifactError, HeadraceError, missing_library
from headrace.frontend.compat import operators
from headrace.ir import STEP_ROLES, Layout, OutputKind, Program
from headrace.ir.serialize import decode, encode
from headrace.runtime.artifact.manifest import (
    MANIFEST,
    check_files,
    path_of,
    read_manifest,
    require_own,
    write_manifest,
)
from headrace.runtime.artifact.places import held, new_folder
from headrace.runtime.artifact.present import require_same
from headrace.runtime.artifact.trust import check_trust, remember
from headrace.runtime.engine.lane import Lane, kinds_of
from headrace.runtime.model import CompiledModel
from headrace.runtime.state.model_state import ModelState, state_class
from headrace.runtime.text.tokenizer.tokenizers_only import PlainTokenizer, TokenizerFacts, exact_facts
from headrace.target import AUTO, parse_target

TOKENIZER = "tokenizer"


def save(model: CompiledModel, folder: str | Path, tokenizer: Any) -> Path:
    """Write the model's executables, the tokenizer that it reads with and the manifest.

    Raises:
        ArtifactError: the folder exists and is no saved model, so replacing it would lose something; or the tokenizer's
            files were links to what lies outside its folder.
    """
    require_own(model.side_files)
    require_same(folder, model.program.source, model.task, None)
    with new_folder(folder) as (work, place):
        lanes = {}
        for key, lane in model.engine.lanes.items():
            name = f"{key}{model.engine.backend.suffix}"
            lane.executable.save(work / name)
            lanes[str(key)] = {"file": name, "program": encode(lane.program.placeless())}
        kept = keep_tokenizer(work, tokenizer, alone=model.program.facts.text.chat is None)
        decided = facts(model, model.engine.backend) | {"lanes": lanes, "tokenizer": kept, "export": None}
        remember(work, write_manifest(work, decided))
    return place


def keep_tokenizer(work: Path, tokenizer: Any, alone: bool) -> dict[str, Any] | None:
    """Write a tokenizer, and say how it is read.

    Args:
        alone: whether its file may stand for it, so that loading needs no transformers; a chat template needs them.
    """
    if tokenizer is None:
        return None
    tokenizer.save_pretrained(work / TOKENIZER)
    found = exact_facts(tokenizer, work / TOKENIZER) if alone else None
    return {"folder": TOKENIZER, "facts": None if found is None else encode(found)}


def facts(model: CompiledModel, backend: Backend) -> dict[str, Any]:
    """What the manifest says of a model beside its files."""
    from importlib import metadata

    return {
        "libraries": {name: metadata.version(name) for name in backend.libraries},
        "target": backend.name,
        "task": model.task,
        "max_length": model.max_length,
        "token_budget": model.engine.token_budget,
        "program": encode(model.program.placeless()),
    }


def load(
    folder: str | Path, target: str = "auto", trust: bool | None = None, *, device: Any = None,
    parallel: str | None = None,
) -> CompiledModel:  # fmt: skip
    """Load what `CompiledModel.save` or `CompiledModel.export_onnx` wrote.

    Args:
        target: "auto" takes the target that the model was compiled for; another is refused.
        trust: a model saved for a target of torch is a program, which loading runs. None trusts one that this user
            saved on this machine and that nobody else can write to; True any. An ONNX model is none, and is not asked
            about.
        device: in place of a target, as `headrace.compile` takes it: where the model runs of what it was compiled for.
        parallel: how several devices share the work, as `headrace.compile` takes it.

    Raises:
        ArtifactError: the folder is damaged, partial, foreign, newer, untrusted, or for another torch or target.
    """
    with ExitStack() as opened:
        place = opened.enter_context(held(path_of(folder)))
        program, manifest = decided(place)
        backend = _backend(place, manifest, target, device, parallel)
        read_from = (str(path_of(folder).absolute()), str(backend.target), trust)
        model = _read(place, program, manifest, backend, read_from)
        # It reads some of its files later, and when it is saved again: they stay its own until it goes.
        weakref.finalize(model.engine, opened.pop_all().close)
    model.engine.begin()
    return model


def _read(
    folder: Path,
    program: Program,
    manifest: Mapping[str, Any],
    backend: Backend,
    read_from: tuple[str, str, bool | None],
) -> CompiledModel:
    _check_libraries(folder, manifest["libraries"])
    if backend.runs_code:
        check_trust(folder, manifest["digest"], read_from[2])
    check_files(folder, manifest["files"])
    with understood(folder):
        state = state_class(program)
        lanes = {key: _lane(folder, key, manifest, backend, program, state) for key in manifest["lanes"]}
        return CompiledModel(
            program, backend, kept_tokenizer(folder, manifest["tokenizer"]), task=manifest["task"],
            max_length=manifest["max_length"], token_budget=manifest["token_budget"], lanes=lanes, state=state,
            read_from=read_from,
        )  # fmt: skip


def decided(folder: Path) -> tuple[Program, dict[str, Any]]:
    """The decisions of a saved model and its manifest, without loading what runs them.

    Raises:
        ArtifactError: there is none, or it is none of this version.
    """
    manifest = read_manifest(folder)
    with understood(folder):
        program = decode(Program, manifest["program"])
    if program.decision.route is None:
        raise ArtifactError(f"{folder}/{MANIFEST} says of no state that runs the model. Save the model again.")
    return program, manifest


@contextmanager
def understood(folder: Path) -> Iterator[None]:
    """Say of a saved model what is raised by whatever reads it: the libraries raise what they like.

    Raises:
        ArtifactError: it cannot be read.
    """
    try:
        yield
    except (HeadraceError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise ArtifactError(
            f"{folder}/{MANIFEST} holds facts that this version cannot read, or that its files do not bear out: "
            f"{error!r}. Save the model again."
        ) from error


class ReadBack:
    """An executable that was read back. What it raises comes of the folder: what ran when it was saved runs again."""

    def __init__(self, inner: Executable, folder: Path) -> None:
        """Take what was read from a folder."""
        self._inner, self._folder = inner, folder
        self.calls = 0

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Run it.

        Raises:
            ArtifactError: it does not run.
        """
        self.calls += 1
        with understood(self._folder):
            return self._inner(inputs)

    def warm_up(self) -> None:
        """As of what was read, where that does anything."""
        if isinstance(self._inner, WarmsUp):
            with understood(self._folder):
                self._inner.warm_up()

    def save(self, path: Path) -> None:
        """Write it anew."""
        self._inner.save(path)


# What a lane's signature and facts say as the model's do: it is cut from that.
SHARED = ("head", "vocabulary", "rows", "token_types", "marker")


def _require_agreement(key: str, lane: Program, program: Program) -> None:
    own, whole = lane.signature, program.signature
    differs = [
        name for name in ("source", "dtype", "facts", "decision") if getattr(lane, name) != getattr(program, name)
    ]
    differs += [name for name in SHARED if getattr(own, name) != getattr(whole, name)]
    kinds = kinds_of(key)
    # An encoder's rows for its decoder are nothing that the model itself returns.
    known = own.outputs if kinds == (OutputKind.CROSS,) else whole.outputs
    widths = {output.kind: output.width for output in known}
    if [(output.kind, output.width) for output in own.outputs] != [(kind, widths.get(kind)) for kind in kinds]:
        differs.append("outputs")
    named = {*whole.input_names, *own.names(*STEP_ROLES)}
    steps = lane.form.layout is Layout.CACHED
    if not named.issuperset(own.input_names) or (own.arrays != whole.arrays and not steps):
        differs.append("inputs")
    if differs:
        raise ValueError(f"its {key} and the model differ in {', '.join(differs)}")


def _lane(
    folder: Path,
    key: str,
    manifest: Mapping[str, Any],
    backend: Backend,
    whole: Program,
    state: type[ModelState],
) -> Lane:
    lane = manifest["lanes"][key]
    program, name = decode(Program, lane["program"]), lane["file"]
    _require_agreement(key, program, whole)
    if name not in manifest["files"]:
        raise ArtifactError(f"{folder}/{MANIFEST} names {name}, which is not among its files. Save the model again.")
    if not name.endswith(backend.suffix):  # by which onnxruntime, for one, tells how to read a file
        raise ArtifactError(f"{folder}/{MANIFEST} names {name}; the target {backend.name} reads {backend.suffix}.")
    if "torch" in backend.libraries:
        operators.register(program)
    return Lane(program, ReadBack(backend.load(folder / name, program), folder), state(program))


def _backend(
    folder: Path, manifest: Mapping[str, Any], target: str, device: Any, parallel: str | None
) -> Backend:  # fmt: skip
    made = str(manifest["target"])
    if device is not None:
        target = _placed(made, target_of(device, target))
    if target != AUTO and parse_target(target).kind != made:
        raise ArtifactError(f"{folder} was compiled for {made}, not {target}. Compile it for {target}.")
    return find_backend(made if target == AUTO else target, compiles=False, parallel=parallel)


def _placed(made: str, place: str) -> str:
    """The target of that kind at the place that a target of torch's has."""
    if made == "onnx":
        return made if place == "cpu" else f"{made}:{place}"
    return made if (made, place) == ("reference", "cpu") else place


def _check_libraries(folder: Path, libraries: Any) -> None:
    """Compiled code is not portable between versions of what compiled it."""
    if not isinstance(libraries, dict):
        raise ArtifactError(f"{folder}/{MANIFEST} names no libraries. Save the model again.")
    if not libraries:
        return
    from importlib import metadata  # slow to import, where an answer is wanted soon

    for name, version in libraries.items():
        try:
            here = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise ArtifactError(f"{folder} needs {name} {version}, which is not installed.") from None
        if str(version).split("+")[0] != here.split("+")[0]:
            raise ArtifactError(
                f"{folder} was compiled with {name} {version}, and {name} {here} is installed: compiled code is not "
                f"portable between them. Install that {name}, or compile the model again."
            )


def kept_tokenizer(folder: Path, held: Mapping[str, Any] | None) -> Any:
    """The saved tokenizer: by its file alone where that was found to be exact, else by transformers."""
    if held is None:
        return None
    where = folder / held["folder"]
    if held["facts"] is not None:
        return PlainTokenizer(where, decode(TokenizerFacts, held["facts"]))
    try:
        from headrace.frontend.load.checkpoint import read_tokenizer
    except ImportError as error:
        refusal = missing_library(error, f"The tokenizer of {folder}, which has no tokenizer.json of the same answers,")
        raise refusal or error from error
    return read_tokenizer(where)
