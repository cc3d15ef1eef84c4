"""Programs made by hand: facts without a graph, and graphs of a few operators without a model."""

from __future__ import annotations

from typing import Any

from headrace.ir import (
    BATCH,
    OFFSETS,
    TARGET,
    Activation,
    AttentionSpec,
    AttentionType,
    Head,
    Input,
    Labels,
    Limits,
    MaskKind,
    Output,
    OutputKind,
    Positions,
    PositionSource,
    Program,
    Role,
    Source,
    Stage,
    Window,
)

ROLES = {
    "input_ids": Role.IDS,
    "attention_mask": Role.PADDING,
    "position_ids": Role.POSITIONS,
    "token_type_ids": Role.TYPES,
    OFFSETS: Role.OFFSETS,
}
MASKS = {
    AttentionType.DECODER: (MaskKind.CAUSAL, Window(-1, 0)),
    AttentionType.ENCODER_ONLY: (MaskKind.BIDIRECTIONAL, Window()),
    AttentionType.ENCODER: (MaskKind.BIDIRECTIONAL, Window()),
    AttentionType.ENCODER_DECODER: (MaskKind.BIDIRECTIONAL, Window()),
}


def spec(type_: AttentionType, order: int = 0, **changes: Any) -> AttentionSpec:
    """An attention of that type at that place in the call order."""
    mask, window = MASKS[type_]
    plain = {
        "node": f"attention_{order}" if order else "attention",
        "call_order": order,
        "type": type_,
        "q_heads": 4,
        "kv_heads": 4,
        "qk_head_dim": 8,
        "v_head_dim": 8,
        "scale": 0.5,
        "mask": mask,
        "window": window,
    }
    return AttentionSpec(**(plain | changes))


def specs(*types: AttentionType) -> tuple[AttentionSpec, ...]:
    """One attention a type, in call order."""
    return tuple(spec(type_, order) for order, type_ in enumerate(types))


def labels(count: int) -> Labels:
    """That many labels."""
    return Labels(tuple(f"L{i}" for i in range(count)), Activation.SOFTMAX, "made by hand")


def token_inputs(*names: str) -> tuple[Input, ...]:
    """Inputs [batch, sequence] by the names that transformers gives them; `target_ids` is a sequence of its own."""
    target = Input("target_ids", Role.TARGET_IDS, axes=(BATCH, TARGET))
    return tuple(target if name == target.name else Input(name, ROLES[name]) for name in names)


def facts(*types: AttentionType, **changes: Any) -> Program:
    """A typed program without a graph, with one attention a type."""
    plain: dict[str, Any] = {
        "exported": None,
        "source": Source("made by hand", "", (), 0),
        "stage": Stage.TYPED,
        "dtype": "float32",
        "inputs": token_inputs("input_ids", "attention_mask"),
        "outputs": (Output("hidden", OutputKind.HIDDEN, 8),),
        "head": Head.NONE,
        "vocabulary": 96,
        "token_types": 2,
        "positions": Positions(PositionSource.INPUT),
        "limits": Limits(None, "nothing bounds it"),
        "attention": specs(*types),
        "attention_calls": len(types),
    }
    return Program.of(**(plain | changes))


def program_of(module: Any, *inputs: str, dynamic: bool = True, **changes: Any) -> Program:
    """A traced program of a module whose forward takes those int64 [batch, sequence] inputs and returns one tensor."""
    import torch
    from torch.export import Dim, export

    from headrace.ops.attention import ATTENTION

    drawn = {name: torch.randint(3, 90, (2, 7), generator=torch.Generator().manual_seed(0)) for name in inputs}
    shape = {0: Dim("batch", min=1), 1: Dim("sequence", min=1)}
    shapes = dict.fromkeys(drawn, shape) if dynamic else None
    with torch.no_grad():
        exported = export(module.eval(), (), kwargs=drawn, dynamic_shapes=shapes, strict=False)
    exported = exported.run_decompositions({})
    calls = sum(node.target is ATTENTION for node in exported.graph.nodes)
    plain = {"exported": exported, "inputs": token_inputs(*inputs), "stage": Stage.TRACED, "attention_calls": calls}
    return facts(**(plain | changes))
