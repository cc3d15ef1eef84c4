"""One call's prompts to the devices, whole, and what each goes on with back as it comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.runtime.devices.messages import Done, End, Said, Write
from headrace.runtime.devices.pool import Pool
from headrace.runtime.devices.shares import dealt
from headrace.runtime.tasks.generate import Part

# What an answer is taken to have in tokens, where prompts are dealt out before there is one.
USUAL = 128


def written(pool: Pool, prompts: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Part]:
    """Parts of the answers to prompts, each token ids or an array. Who stops reading ends what was begun."""
    lengths = np.fromiter((len(one) + USUAL for one in prompts), np.int64, len(prompts))
    with pool.call() as (number, queue):
        shares = {device: own for device, own in enumerate(dealt(lengths, pool.loads)) if len(own)}
        for device, own in shares.items():
            pool.load(device, int(lengths[own].sum()))
        left = set(shares)
        try:
            for device, own in shares.items():
                given = [prompts[place] for place in own.tolist()]
                pool.send(pool.processes[device], Write(number, given, options))
            while left:
                told = queue.get()
                if (message := pool.heard(told)) is None:
                    continue
                match message.value:
                    case Said(part=part):
                        yield replace(part, prompt=int(shares[told.device][part.prompt]))
                    case Done():
                        left.remove(told.device)
        finally:
            for device, own in shares.items():
                pool.load(device, -int(lengths[own].sum()))
                if device in left:
                    pool.send(pool.processes[device], End(number, aborted=True))
