"""The profiles: what a model file may ask of whoever runs it. One program, one trace, a table for each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.errors import InputError

# torch's own translations and fusions know the opsets up to this one.
NEWEST = 23


class Form(StrEnum):
    """How an attention is written down."""

    OPERATOR = "the Attention operator with a bool mask"
    LENGTHS = "the Attention operator with the number of keys of each sequence, where that says it all"
    PLAIN = "products and a softmax"


@dataclass(frozen=True)
class Profile:
    """One way to write a program.

    Attributes:
        opset: of ONNX.
        ir_version: of the file format; the oldest that the opset admits.
        attention: how attentions are written.
        lengths: whether `sequence_lengths` [batch] takes the place of `attention_mask` among the inputs, so that
            padding on the left cannot be said at all.
        runtime: the oldest onnxruntime that answered as the program does, by running it. Older ones refuse the opset,
            but for 1.24: it reads opset 24, and takes the keys past a sequence's length for real ones.
    """

    name: str
    opset: int
    ir_version: int
    attention: Form
    lengths: bool
    about: str
    runtime: tuple[int, int]

    @property
    def written(self) -> int:
        """The opset that torch writes. What it writes has not changed since; what has is put right afterwards."""
        return min(self.opset, NEWEST)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("std", 23, 11, Form.OPERATOR, False, "onnxruntime 1.23 and newer, Transformers.js", (1, 23)),
        Profile("fast", 24, 12, Form.LENGTHS, True, "onnxruntime 1.25 and newer, through Headrace", (1, 25)),
        Profile(
            "portable", 18, 8, Form.PLAIN, False, "older runtimes, and those without an Attention operator", (1, 20)
        ),
    )
}


def find_profile(name: str) -> Profile:
    """The profile of that name.

    Raises:
        InputError: there is none.
    """
    if not isinstance(name, str) or name not in PROFILES:
        raise InputError(f"profile is {name!r}; choose from {', '.join(PROFILES)}.")
    return PROFILES[name]
