"""What compiled code needs of torch's private corners when it runs: nothing here imports what traces or compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# What operators are defined in that are no `custom_op`.
LIBRARY = torch.library.Library("headrace", "FRAGMENT")  # type: ignore[no-untyped-call]
# Runs code that was compiled ahead of time for the CPU, from its library.
CodeRunner = torch._C._aoti.AOTIModelContainerRunnerCpu


def define(schema: str, run: Callable[..., Tensor], like: Callable[..., Tensor]) -> Any:
    """Define an operator of ours, `name(...) -> Tensor`, on any device.

    Not by `custom_op`: a step of decoding calls some of them in every layer, and its checks take longer than the work.

    Args:
        like: what the result looks like, from operands without values.

    Returns:
        The operator.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"headrace::{name}", like, lib=LIBRARY)
    return getattr(torch.ops.headrace, name).default
