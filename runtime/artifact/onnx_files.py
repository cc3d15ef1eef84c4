"""The model files of an exported folder, what they answer and how well: one, or an encoder's and its decoder's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace.ir import CROSS, Layout, OutputKind, Program
from headrace.ir.passes import run_passes
from headrace.ir.serialize import encode
from headrace.runtime.engine.lane import key_of

if TYPE_CHECKING:
    from headrace.backends.onnx.check.report import Report
    from headrace.backends.onnx.profiles import Profile

ONNX = "onnx"


@dataclass(frozen=True)
class Files:
    """What is written where.

    Attributes:
        work: the folder.
        scratch: beside it, for files that do not stay.
        program: the whole model's.
        kept: what the one file runs, or the decoder's.
        last: of a model that generates, whether logits are of the last token alone.
        limit: bytes of weights from which they get a file of their own; None leaves it to the target.
    """

    work: Path
    scratch: Path
    program: Program
    kept: Program
    profile: Profile
    dtype: str
    last: bool
    limit: int | None
    facts: Mapping[str, Any]

    @property
    def crosses(self) -> bool:
        """Whether there are an encoder's file and a decoder's."""
        return CROSS in self.kept.form.groups

    def write(self, finished: bool) -> dict[str, Any]:
        """Write the files.

        Args:
            finished: whether a graph also returns finished answers.

        Returns:
            The outputs that they answer, each with its file and program.
        """
        (self.work / ONNX).mkdir()
        return self._write_two() if self.crosses else self._write_one(finished)

    def verified(self) -> Report:
        """How the files answer beside the program."""
        from headrace.backends.onnx import names
        from headrace.backends.onnx.check.verify import verify
        from headrace.backends.onnx.check.verify_crossed import verify_crossed

        if self.crosses:
            encoder, decoder = (self.work / self._name(name) for name in (names.ENCODER, names.DECODER))
            return verify_crossed(encoder, decoder, self.program, self.kept, self.profile)
        plain = None if self.dtype == "float32" else self._plain
        return verify(self.work / self.main, self.kept, self.profile, self.dtype, plain)

    @property
    def main(self) -> str:
        """The file of a model that has one, within the folder."""
        from headrace.backends.onnx import names

        return self._name(names.MODEL)

    @property
    def _plain(self) -> Path:
        """The model in float32, of which another dtype's is made."""
        return self.scratch / "float32.onnx"

    def _name(self, file: str) -> str:
        from headrace.backends.onnx.export.weights import SUFFIXES

        return f"{ONNX}/{file}{SUFFIXES[self.dtype]}.onnx"

    @property
    def _external_from(self) -> int:
        from headrace.backends.onnx.target import EXTERNAL_FROM

        return EXTERNAL_FROM if self.limit is None else self.limit

    def _write_one(self, finished: bool) -> dict[str, Any]:
        from headrace.backends.onnx.export.graph import build
        from headrace.backends.onnx.export.weights import convert, write

        path = self.work / self.main
        plain = path if self.dtype == "float32" else self._plain
        write(build(self.kept, self.profile, finished, self.facts, self.last), plain, self._external_from)
        if self.dtype != "float32":
            convert(plain, path, self.dtype, self._external_from, generates=self.kept.form.layout is Layout.CACHED)
        kinds = [output.kind for output in self.kept.signature.outputs]
        lanes = [(kind,) for kind in kinds] + ([tuple(kinds)] if len(kinds) > 1 else [])
        return {key_of(kinds): _lane(self.main, _only(self.kept, kinds)) for kinds in lanes}

    def _write_two(self) -> dict[str, Any]:
        from headrace.backends.onnx import names
        from headrace.backends.onnx.export.crossing import cross_once, return_rows
        from headrace.backends.onnx.export.graph import build
        from headrace.backends.onnx.export.weights import write
        from headrace.lowering.forms.encoder import SplitEncoder

        if self.dtype != "float32":
            raise InputError(f"An encoder with its decoder is exported in float32, not in {self.dtype}.")
        program = run_passes(self.program, (SplitEncoder(),))
        encoder, decoder = (build(one, self.profile, facts=self.facts, last=self.last) for one in (program, self.kept))
        return_rows(encoder)
        cross_once(decoder, encoder, self.kept)
        lanes = {}
        for kind, file, model, one in (
            (OutputKind.CROSS, names.ENCODER, encoder, program),
            (OutputKind.VOCABULARY_LOGITS, names.DECODER, decoder, self.kept),
        ):
            write(model, self.work / self._name(file), self._external_from)
            lanes[key_of((kind,))] = _lane(self._name(file), one.with_(exported=None))
        return lanes


def _lane(file: str, program: Program) -> dict[str, Any]:
    return {"file": file, "program": encode(program)}


def _only(program: Program, kinds: tuple[OutputKind, ...]) -> Program:
    return program.with_(
        exported=None, outputs=tuple(output for output in program.signature.outputs if output.kind in kinds)
    )
