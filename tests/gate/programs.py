"""The programs whose every kernel the gate compiles: one layer of each kind of model, at a real model's sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from headrace.ir import Layout, Program, Task
from headrace.ir.serialize import decode, encode

ENCODER = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 1}
# Two layers of ModernBERT, since one has a window and the other none. T5 for classification runs its decoder too.
MODELS: dict[str, tuple[str, str, Task, dict[str, Any]]] = {
    "bert": ("bert", "AutoModel", Task.EMBED, ENCODER),
    "modernbert": (
        "modernbert", "AutoModel", Task.EMBED,
        ENCODER | {"num_hidden_layers": 2, "global_attn_every_n_layers": 2, "intermediate_size": 1152},
    ),
    "qwen3": (
        "qwen3", "AutoModel", Task.EMBED,
        {
            "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 3072, "num_hidden_layers": 1,
        },
    ),
    "bamba": (
        "bamba", "AutoModel", Task.EMBED,
        {
            "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
            "intermediate_size": 3072, "num_hidden_layers": 2, "attn_layer_indices": [1], "mamba_n_heads": 32,
            "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_expand": 2,
        },
    ),
    "qwen3-next": (
        "qwen3-next", "AutoModel", Task.EMBED,
        {
            "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
            "intermediate_size": 3072, "num_hidden_layers": 2, "num_experts": 0, "linear_num_key_heads": 8,
            "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        },
    ),
    "t5": ("t5", "AutoModel", Task.EMBED, {"d_model": 512, "d_kv": 64, "num_heads": 8, "d_ff": 1024, "num_layers": 1}),
    "t5 with its decoder": (
        "t5", "AutoModelForSequenceClassification", Task.CLASSIFY,
        {"d_model": 512, "d_kv": 64, "num_heads": 8, "d_ff": 1024, "num_layers": 1},
    ),
}  # fmt: skip

# Its decoder has kernels of no other program (padded attention by plain products); one architecture of each kind.
WITH_DECODER = ("gfx942", "gfx1100", "sm90")


# Of a part of the gate: one architecture of each vendor, where every program and all of our kernels are compiled.
PART = ("gfx942", "sm90")


def wanted(architecture: str, whole: bool = True) -> tuple[str, ...]:
    """The programs whose kernels the gate compiles for an architecture, the whole of it or a part."""
    if not whole and architecture not in PART:
        return ()
    return tuple(name for name in MODELS if name != "t5 with its decoder" or architecture in WITH_DECODER)


def program(name: str) -> Program:
    """The program of one model in bfloat16, as a GPU target would be given it."""
    from headrace.frontend.trace import trace
    from headrace.lowering.pipeline import analyse, prepare
    from tests.tiny import build, checkpoint

    model, head, task, sizes = MODELS[name]
    traced = trace(checkpoint(build(model, head, **sizes).to(torch.bfloat16)))
    return prepare(analyse(traced.program, traced.behaviour), task, Layout.PACKED)


def write(folder: Path, names: tuple[str, ...]) -> None:
    """The programs as files: a process that believes in a GPU can compile, and trace nothing."""
    for name in names:
        made = program(name)
        torch.export.save(made.graph, folder / f"{name}.pt2")
        (folder / f"{name}.json").write_text(json.dumps(encode(made)))


def read(folder: Path, name: str) -> Program:
    """What `write` wrote."""
    from headrace.ops import attention, packed, recurrent, stateful  # noqa: F401 - the operators, by name

    facts: Program = decode(Program, json.loads((folder / f"{name}.json").read_text()))
    return facts.with_(exported=torch.export.load(folder / f"{name}.pt2"))
