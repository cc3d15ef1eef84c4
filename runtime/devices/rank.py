"""A device's part in running one model together with others."""

from __future__ import annotations

import os

import torch
from torch import distributed

from headrace.lowering.parallel.split import SplitHeads
from headrace.target import Target

# What sums over devices of each kind; the host's otherwise.
SUMS = {"cuda": "nccl", "rocm": "nccl"}


def join(target: Target, rank: int, ranks: int, meeting: str) -> SplitHeads:
    """Meet the processes of the other devices; returns what cuts a program to this one's part."""
    kind = SUMS.get(target.kind, "gloo")
    # Sums within a switch take rights that containers lack, and fail where they are missing.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    device = torch.device("cuda", target.device or 0) if kind == "nccl" else None
    if device is not None:
        torch.cuda.set_device(device)
    distributed.init_process_group(kind, init_method=meeting, rank=rank, world_size=ranks, device_id=device)
    group = distributed.group.WORLD
    assert group is not None
    return SplitHeads(rank, ranks, group.group_name)
