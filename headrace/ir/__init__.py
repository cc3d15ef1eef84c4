"""The IR: a `Program` is an exported graph and the facts that the passes established about it.

The graph is a `torch.export.ExportedProgram`; the semantics live in the arguments of the operators in
`headrace.ops`. Everything here imports without torch, since manifests are read where there is none.
"""

from __future__ import annotations

from headrace.ir.attention import (
    EVERYTHING,
    AttentionSpec,
    AttentionType,
    BiasKind,
    MaskKind,
    RecurrentSpec,
    Verdict,
    Window,
)
from headrace.ir.cache import CROSS, Cache, CacheGroup, CacheKind
from headrace.ir.decision import Decision, PaddingRule, Prefill, Route, State, TaskDecision
from headrace.ir.evidence import Claim, Evidence
from headrace.ir.facts import (
    Activation,
    ChatRules,
    Facts,
    Filling,
    Labels,
    Limits,
    Pooling,
    Positions,
    PositionSource,
    Quantized,
    Similarity,
    Source,
    TextRules,
)
from headrace.ir.program import Form, Layout, Nodes, Program, Stage
from headrace.ir.signature import (
    BATCH,
    OFFSETS,
    PER_TOKEN_OUTPUTS,
    SEQUENCE,
    TARGET,
    Axis,
    Head,
    Input,
    Output,
    OutputKind,
    PoolKind,
    Role,
    Signature,
    Tap,
)
from headrace.ir.task import TASK_RULES, Needs, Task, TaskRules

__all__ = [
    "BATCH",
    "CROSS",
    "EVERYTHING",
    "OFFSETS",
    "PER_TOKEN_OUTPUTS",
    "SEQUENCE",
    "TARGET",
    "TASK_RULES",
    "Activation",
    "AttentionSpec",
    "AttentionType",
    "Axis",
    "BiasKind",
    "Cache",
    "CacheGroup",
    "CacheKind",
    "ChatRules",
    "Claim",
    "Decision",
    "Evidence",
    "Facts",
    "Filling",
    "Form",
    "Head",
    "Input",
    "Labels",
    "Layout",
    "Limits",
    "MaskKind",
    "Needs",
    "Nodes",
    "Output",
    "OutputKind",
    "PaddingRule",
    "PoolKind",
    "Pooling",
    "PositionSource",
    "Positions",
    "Prefill",
    "Program",
    "Quantized",
    "RecurrentSpec",
    "Role",
    "Route",
    "Signature",
    "Similarity",
    "Source",
    "Stage",
    "State",
    "Tap",
    "Task",
    "TaskDecision",
    "TaskRules",
    "TextRules",
    "Verdict",
    "Window",
]
