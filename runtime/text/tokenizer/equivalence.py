"""Texts that show whether two readers give the same tokens, and the comparison of them on those texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# What readers that differ are likely to differ on: cases, accents composed and not, scripts, white space, numbers,
# code, special tokens of any family, and nothing at all.
PROBES = [
    "water",
    "",
    "Hello, my name is Sarah Jones and I live in Paris.",
    "  Two   spaces,\ta tab\nand a line end ",
    "Z\u00fcrich Zu\u0308rich na\u00efve caf\u00e9 東京 — “quoted” text… 🙂 İstanbul ŒUVRE ﬁne",
    "don't CamelCase snake_case 1234 5678 3.14 http://x.y/z?a=b#c",
    "[CLS] a [SEP] b [MASK] c <s> d </s> <mask> <|endoftext|> <unk>",
    "C1=CC=CC=C1.OB(O)c1ccccc1>>CC(=O)NCc1ccccc1",
    "مرحبا بالعالم हिन्दी ไทย 한국어",
    "is n't it , ' a ' 's . so ! do n't ?",
]

# Reads texts given as one column, or pairs as two, and gives what is compared.
Read = Callable[[list[list[str]]], Any]


def alike(one: Read, other: Read) -> bool:
    """Whether both read the probes alike, alone and in pairs; one that cannot read them is like no other."""
    try:
        return all(one(columns) == other(columns) for columns in ([PROBES], [PROBES, PROBES[::-1]]))
    except (TypeError, ValueError, NotImplementedError):
        return False
