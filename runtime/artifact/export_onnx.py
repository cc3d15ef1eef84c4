"""Export a model to a folder that onnxruntime, Transformers.js and their like take as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.errors import ArtifactError, InputError, TaskNotEnabledError, TraceError
from headrace.ir import TASK_RULES, Needs, OutputKind, Program, Task
from headrace.ir.serialize import encode
from headrace.runtime.artifact.genai import genai_config
from headrace.runtime.artifact.manifest import require_own, write_manifest
from headrace.runtime.artifact.onnx_files import Files
from headrace.runtime.artifact.places import new_folder
from headrace.runtime.artifact.present import require_same
from headrace.runtime.text.bounds import find_bound
from headrace.runtime.text.tokenizer.own import own_copy
from headrace.runtime.text.tokenizer.tokenizers_only import exact_facts
from headrace.runtime.text.validate import require_choice
from headrace.tasks import answering, refusal, select
from headrace.utils.compiler_lock import in_turn
from headrace.utils.gc_freeze import sparing_the_old

REPORT, TOKENIZER_CONFIG, GENAI_CONFIG = "verification.json", "tokenizer_config.json", "genai_config.json"
LOGITS = ("all", "last")
# Outputs that cost little beside another: an embedding is pooled from the rows, of which one layer makes the others.
BESIDE = {
    OutputKind.EMBEDDING: (
        OutputKind.HIDDEN,
        OutputKind.TOKEN_EMBEDDING,
        OutputKind.LEXICAL_WEIGHTS,
        OutputKind.MULTI_EMBEDDING,
    )
}
# Keys of configurations under which libraries write where a model lay on the machine that loaded it.
PLACES = frozenset({"_name_or_path", "name_or_path", "tokenizer_file", "vocab_file", "merges_file"})


@in_turn
def export_onnx(  # noqa: PLR0913 - what a caller may choose
    program: Program,
    folder: str | Path,
    *,
    tokenizer: Any,
    side_files: Mapping[str, str | None],
    task: str | None = None,
    profile: str = "std",
    dtype: str = "float32",
    finished: bool = True,
    logits: str = "all",
    max_length: int | None = None,
    token_budget: int | None = None,
    force: bool = False,
    external_from: int | None = None,
) -> Path:
    """Write an analysed program as an ONNX model with all that belongs to it.

    Args:
        program: with its graph, in float32.
        tokenizer: a tokenizer of transformers, or None.
        side_files: texts that the folder holds too, by path: config.json, and a sentence-transformers folder's. None
            for what was a link to elsewhere, a tokenizer's file too.
        task: whose outputs the model has; None takes the default task.
        profile: std, fast or portable; see headrace/backends/onnx/profiles.py.
        dtype: of the weights: float32, float16, int8 or int4.
        finished: whether the graph also returns `sentence_embedding` or `probabilities`.
        logits: of a model that generates, "all" tokens' or the "last" token's of each sequence alone.
        force: keep an int8 model whose answers fail the gate.
        external_from: bytes of weights from which they get a file of their own.

    Raises:
        VerifyError: the model does not answer as the program does; nothing is written.
        ArtifactError: the folder is something else, an export of another model, task, profile or dtype included; or the
            model's own folder links to files outside it.
        InputError, TargetError, TaskNotEnabledError: it cannot be exported so.
    """
    from headrace.backends.onnx.profiles import find_profile

    chosen = find_profile(profile)
    _require_options(dtype, finished, logits, force, external_from)
    require_own(side_files)
    if not program.signature.arrays:  # a limit that loading would refuse
        find_bound(tokenizer, program, max_length, token_budget)
    _require_program(program, dtype)
    _require_seen(program)
    program = program.placeless()
    wanted = _task(program, task)
    require_same(folder, program.source, wanted.value, {"profile": profile, "dtype": dtype})
    kept = _kept(program, wanted)
    with sparing_the_old(), new_folder(folder) as (work, place):
        held = _write_side_files(work, own_copy(tokenizer), side_files, alone=program.facts.text.chat is None)
        made_by = {"headrace": __version__, "task": wanted.value, "tokenizer": held}
        files = Files(work, work.parent, program, kept, chosen, dtype, logits == "last", external_from, made_by)
        lanes = files.write(finished)
        if wanted is Task.GENERATE and (config := genai_config(program, kept, files.main, side_files)) is not None:
            _write_json(work / GENAI_CONFIG, config)
        report = files.verified()
        if not force:
            report.require(f"The export of {program.source.name} as {profile} in {dtype}")
        _write_json(work / REPORT, encode(report))
        content = {
            "libraries": {},
            "target": "onnx",
            "task": wanted.value,
            "max_length": max_length,
            "token_budget": token_budget,
            "program": encode(program.with_(exported=None)),
            "lanes": lanes,
            "tokenizer": held,
            "export": {"profile": profile, "dtype": dtype, "finished": finished, "report": REPORT},
        }
        write_manifest(work, content)
    return place


def _require_options(dtype: Any, finished: Any, logits: Any, force: Any, external_from: Any) -> None:
    from headrace.backends.onnx.export.weights import SUFFIXES

    if not isinstance(dtype, str) or dtype not in SUFFIXES:
        raise InputError(f"dtype is {dtype!r}; an ONNX model is exported in {', '.join(SUFFIXES)}.")
    _require_size(external_from)
    require_choice("finished", finished)
    require_choice("force", force)
    if logits not in LOGITS:
        raise InputError(f"logits is {logits!r}; choose from {', '.join(LOGITS)}.")


def _require_program(program: Program, dtype: str) -> None:
    if program.exported is None:
        raise ArtifactError("A saved model holds no graph to export. Export from the model that it was made of.")
    if program.dtype != "float32":
        raise InputError(
            f"The program is in {program.dtype}; an export begins from float32 and takes dtype={dtype!r} from there."
        )
    if program.evidence.routed_experts and dtype != "float32":
        raise InputError(
            "The model routes tokens to experts, whose products lie in a loop where no converter of weights gets them "
            f"right: an export in {dtype} would stay in float32 there, or answer wrongly. Export it in float32."
        )


def _require_seen(program: Program) -> None:
    """Refuse queries that are filled up with tokens that none attends to: an exported graph counts places by the mask.

    Raises:
        ArtifactError: the model's are.
    """
    asked = program.facts.interaction
    if asked is not None and asked.expansion is not None and not asked.expansion.attends:
        raise ArtifactError(
            "The model fills queries up with tokens that no other attends to (query_expansion without attend), and an "
            "ONNX model finds the places of tokens by the attention mask. Save it with save() in place of exporting it."
        )


def require_open(options: Mapping[str, Any], settled: tuple[str, ...], where: str) -> None:
    """Refuse options that were settled before, `where` the model was made.

    Raises:
        InputError: one of them is given anew.
    """
    if given := [name for name in settled if name in options]:
        raise InputError(
            f"export_onnx takes no {given[0]} here: the model was made with its own, which is exported. Pass "
            f"{given[0]} to {where}."
        )


def _require_size(external_from: int | None) -> None:
    whole = isinstance(external_from, int) and not isinstance(external_from, bool)
    if external_from is not None and not (whole and external_from >= 0):
        raise InputError(f"external_from is {external_from!r}; bytes of weights are accepted, an int of 0 and above.")


def _task(program: Program, wish: str | None) -> Task:
    """The task to export for."""
    chosen, _ = select(program, wish)
    if chosen is None:
        raise TaskNotEnabledError(refusal(program, wish or Task.EMBED))
    return chosen


def _kept(program: Program, task: Task) -> Program:
    from headrace.ir.passes import run_passes
    from headrace.lowering.forms.select import SelectTask

    if TASK_RULES[task].needs is Needs.DECODING:
        return _cached(program, task)
    kind = answering(program, task).kind
    return run_passes(program, (SelectTask(task, BESIDE.get(kind, ())),))


def _cached(program: Program, task: Task) -> Program:
    """The program that keeps what its texts leave.

    Raises:
        ArtifactError: something in it looks along the tokens in a way that no cache keeps.
    """
    from headrace.lowering.pipeline import prepare

    try:
        return prepare(program, task)
    except TraceError as error:
        raise ArtifactError(
            f"{task} of this model cannot be exported, since nothing keeps what came before a token: {error} Export "
            "another task: pass task=."
        ) from error


def _write_side_files(
    work: Path, tokenizer: Any, side_files: Mapping[str, str | None], alone: bool
) -> dict[str, Any] | None:
    """config.json and the tokenizer's files, without the places that they came from.

    Args:
        alone: whether tokenizer.json may stand for the tokenizer; a chat template is rendered by transformers.
    """
    if tokenizer is not None:
        tokenizer.save_pretrained(work)
    own = work / TOKENIZER_CONFIG
    written = {TOKENIZER_CONFIG: own.read_text(encoding="utf-8")} if own.is_file() else {}
    for name, text in {**side_files, **written}.items():
        assert text is not None, name
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        _write_json(work / name, without_places(name, text))
    if tokenizer is None:
        return None
    facts = exact_facts(tokenizer, work) if alone else None
    return {"folder": ".", "facts": None if facts is None else encode(facts)}


def without_places(name: str, text: str | bytes) -> Any:
    """What a model's side file says, but for where the model lay.

    Raises:
        ArtifactError: it is no JSON.
    """
    try:
        return _without_places(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{name} of the model's folder is no JSON: {error}. It would be written beside the model: mend it or move "
            "it away, and load the model again; nothing was written."
        ) from error


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_places(item) for key, item in value.items() if key not in PLACES}
    return [_without_places(item) for item in value] if isinstance(value, list) else value


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
