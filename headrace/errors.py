"""Every error that Headrace raises on purpose, one class a stage.

A message says what was met, where, what is accepted and what to do. `raise` is for a user's mistake,
`assert` for ours.
"""

import sys
import warnings


class HeadraceError(Exception):
    """The root: catching it catches everything that Headrace refuses."""


class HeadraceWarning(UserWarning):
    """Something was decided for the user that they may want otherwise; said once."""


def warn(message: str) -> None:
    """Warn of such a decision at the caller's line: the first on the way out that is not Headrace's own.

    Python 3.11 cannot skip a package's frames, and a count of them is wrong for some caller.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _own(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    seen = frame.f_globals
    warnings.warn_explicit(
        message, HeadraceWarning, frame.f_code.co_filename, frame.f_lineno,
        module=seen.get("__name__"), registry=seen.setdefault("__warningregistry__", {}),
    )  # fmt: skip


def _own(module: str) -> bool:
    return module.partition(".")[0] == "headrace"


class LoadError(HeadraceError):
    """A model folder, hub id or module cannot be turned into weights, a config and a tokenizer."""


class TraceError(HeadraceError):
    """The model's code cannot be traced into a program with a dynamic batch and sequence."""


class AttentionTypeError(HeadraceError):
    """An attention cannot be typed, contradicts a claim of the config, or behaves unlike its type."""


class VerifyError(HeadraceError):
    """A program breaks a rule of its stage: names the pass, the node and the rule."""


class TaskNotEnabledError(HeadraceError):
    """The selected task is not among those that the model offers and its route enables."""


class TargetError(HeadraceError):
    """The target cannot run here, or cannot run this program."""


class InputError(HeadraceError):
    """A request is not of the form that the task takes."""


class InputTooLongError(InputError):
    """A request has more tokens than the model or the token budget admits."""


class NonFiniteError(HeadraceError):
    """An answer holds a NaN or an infinity."""


class OutOfMemoryError(HeadraceError):
    """A step needs more memory than the device has left."""


class ArtifactError(HeadraceError):
    """A saved model is damaged, partial, foreign or newer than this version."""


class ParityError(HeadraceError):
    """Two runs that must agree do not."""


# Optional libraries and the extra that brings them.
EXTRAS = {
    "torch": "torch",
    "transformers": "torch",
    "onnxruntime": "onnx",
    "onnx": "export",
    "onnxscript": "export",
    "onnx_ir": "export",
    "llguidance": "guided",
    "scipy": "sparse",
    "pyarrow": "arrow",
    **dict.fromkeys(("starlette", "uvicorn", "pydantic", "orjson", "prometheus_client"), "serve"),
    "ray": "ray",
    "PIL": "vision",
    "soxr": "audio",
    "nltk": "words",
}


def missing_library(error: ImportError, what: str) -> TargetError | None:
    """The error for something that needs an optional library which is not installed; None where it is none of those."""
    library = (error.name or "").split(".")[0]
    if library not in EXTRAS:
        return None
    return TargetError(f'{what} needs {library}, which is not installed: pip install "headrace[{EXTRAS[library]}]"')


# What has more room than the dtype that overflowed.
ROOMIER = {"float16": "bfloat16", "bfloat16": "float32"}


def non_finite(what: str, dtype: str) -> NonFiniteError:
    """The error for values that are a NaN or an infinity: names the dtype, and one with more room."""
    roomier = ROOMIER.get(dtype)
    cure = f'compile with dtype="{roomier}"' if roomier else "no dtype has more room, look for broken weights"
    return NonFiniteError(f"{what} holds NaN or infinite values; the model ran in {dtype}. Values overflow: {cure}.")
