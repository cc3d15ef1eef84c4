"""Write docs/ir.md: the operators of the IR, each with its schema, its meaning and an example that is run.

python docs/make_ir.py     (make docs)
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from headrace.compat.torch import OpOverload
from headrace.ir import MaskKind, Window
from headrace.ops import stateful
from headrace.ops.attention import materialise_mask
from headrace.ops.stateful import STATEFUL, VARLEN

PAGE = Path(__file__).with_name("ir.md")
MODULES = ("attention", "packed", "recurrent", "linear_recurrence", "lstm", "quantized", "cached", "stateful")
B, L, H, D, N, T = 2, 5, 2, 4, 3, 7
INTRODUCTION = """# The operators of the IR

Written by `docs/make_ir.py` (`make docs`) from `headrace/ops/`; do not edit.

A program's graph is a `torch.export.ExportedProgram` of aten's operators and of these, which stand for what the passes
and the backends reason about: each attention, mask, pooling and recurrence is one node, whose meaning lies in its
arguments alone. Each is defined in plain torch (that definition is what the target `reference` runs), has a fake
implementation for tracing, and survives `run_decompositions`, saving and loading. A backend puts its own implementation
in its place.

Sizes: B sequences in a batch, L or T tokens (T of all sequences one after another), H heads (q: of queries, kv: of keys
and values), D channels, S keys, N the size of a state. `-1` in a window is without bound."""
KINDS = (
    ("causal", MaskKind.CAUSAL, Window(-1, 0)),
    ("causal, window (2, 0)", MaskKind.CAUSAL, Window(2, 0)),
    ("chunked by 3", MaskKind.CHUNKED, Window(2, 0)),
    ("bidirectional", MaskKind.BIDIRECTIONAL, Window()),
    ("bidirectional, window (1, 1)", MaskKind.BIDIRECTIONAL, Window(1, 1)),
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(document())
    print(f"wrote {PAGE}")


def document() -> str:
    """The page."""
    return "\n\n".join([INTRODUCTION, *masks(), *(part for name in MODULES for part in room(name))]) + "\n"


def masks() -> Iterator[str]:
    """What the kinds and windows of masks show, of six tokens: a row a query, a column a key."""
    yield "## Masks\n\nWhich keys (columns) a query (row) sees, of a sequence of six tokens:"
    for name, kind, window in KINDS:
        seen = materialise_mask(None, 1, 6, 6, 0, 0, kind, window, torch.device("cpu"))[0, 0]
        picture = "\n".join(" ".join("■" if cell else "·" for cell in row) for row in seen.tolist())
        yield f"{name}\n\n```\n{picture}\n```"


def room(name: str) -> Iterator[str]:
    """The operators of one module."""
    module = importlib.import_module(f"headrace.ops.{name}")
    yield f"## {name}\n\n{paragraphs(module)}"
    for called, definition in operators(module):
        yield from operator(called, definition)


def operators(module: ModuleType) -> list[tuple[Any, Any]]:
    """The operators that a module defines, in its order, each with its definition; a table's follow its others."""
    held = vars(module)
    custom = [(one, one._init_fn) for one in held.values() if isinstance(one, torch.library.CustomOpDef)]
    plain = [(one, held[one._opname]) for one in held.values() if isinstance(one, OpOverload) and one._opname in held]
    table = [(one, kind.run) for one, kind in (*VARLEN.items(), *STATEFUL.items())] if module is stateful else []
    return [(one, run) for one, run in (*custom, *plain, *table) if table or inspect.getmodule(run) is module]


def operator(called: Any, definition: Any) -> Iterator[str]:
    """One operator: schema, meaning, example."""
    name, schema = getattr(called, "_name", ""), called._schema
    yield f"### `headrace::{name.removeprefix('headrace::')}{str(schema)[str(schema).index('(') :]}`"
    yield paragraphs(definition)
    if name not in EXAMPLES:
        return
    given = EXAMPLES[name]()
    result = called(*given)
    names = list(inspect.signature(definition).parameters)
    shown = ", ".join(f"{key}={said(value)}" for key, value in zip(names, given, strict=True))
    yield f"Example: `{name}({shown})` is `{said(result)}`."


def paragraphs(thing: Any) -> str:
    """A docstring as Markdown: sections in bold, arguments as a list."""
    text = inspect.cleandoc(thing.__doc__ or "")
    text = re.sub(r"^(Args|Returns):\n", r"**\1**\n\n", text, flags=re.MULTILINE)
    return re.sub(r"^    (?! )", "- ", text, flags=re.MULTILINE)


def said(value: Any) -> str:
    """A tensor by dtype and shape, anything else as Python has it."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(str(value)) if isinstance(value, (str, torch.device)) else repr(value)


def drawn(*shape: int) -> Tensor:
    """Numbers between 0 and 1, always the same."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def offsets() -> Tensor:
    """Two sequences, of 3 and 4 tokens."""
    return torch.tensor([0, 3, T], dtype=torch.int32)


# Arguments, in the order of the schema.
EXAMPLES: dict[str, Any] = {
    "mask": lambda: (torch.ones(B, L), B, L, L, 0, 0, "causal", [-1, 0], torch.device("cpu")),
    "attention": lambda: (
        drawn(B, 2 * H, L, D), drawn(B, H, L, D), drawn(B, H, L, D), None, None, None, 0.5, "causal", [-1, 0], 0.0,
    ),
    "pool": lambda: (drawn(B, L, D), torch.ones(B, L), "mean"),
    "attention_varlen": lambda: (
        drawn(T, 2 * H, D), drawn(T, H, D), drawn(T, H, D), offsets(), None, None, 0.5, "bidirectional", [-1, -1], 0.0,
        "none", 4,
    ),
    "pool_varlen": lambda: (drawn(1, T, D), offsets(), "last"),
    "causal_conv1d": lambda: (drawn(B, D, L), drawn(D, 3), None),
    "selective_scan": lambda: (
        drawn(B, D, L), drawn(B, D, L), -drawn(D, N), drawn(B, N, L), drawn(B, N, L), None, None, None, True,
    ),
    "chunk_scan": lambda: (
        drawn(B, L, H, D), drawn(B, L, H), -drawn(H), drawn(B, L, 1, N), drawn(B, L, 1, N), None, None, True, None,
        None,
    ),
    "gated_delta_rule": lambda: (
        drawn(B, L, H, D), drawn(B, L, H, D), drawn(B, L, H, N), -drawn(B, L, H), drawn(B, L, H), True,
    ),
    "token_shift": lambda: (drawn(B, L, D),),
    "linear_recurrence": lambda: (drawn(B, L, D), drawn(B, L, D)),
    "wkv": lambda: (drawn(D), drawn(D), drawn(B, L, D), drawn(B, L, D)),
    "mlstm": lambda: (
        drawn(B, H, L, D), drawn(B, H, L, D), drawn(B, H, L, D), drawn(B, H, L), drawn(B, H, L), 1e-6,
    ),
    "lstm": lambda: (
        drawn(B, L, D), torch.ones(B, L), drawn(2, 4 * N, D), drawn(2, 4 * N, N), drawn(2, 4 * N),
    ),
    "linear_fp8": lambda: (drawn(B, 4), torch.ones(3, 4).to(torch.float8_e4m3fn), drawn(3), None),
    "linear_int8": lambda: (drawn(B, 4), torch.ones(3, 4).to(torch.int8), drawn(3), None),
}  # fmt: skip

if __name__ == "__main__":
    main()
