"""What the rows of the coverage page are asked: texts (with targets, for encoder-decoders), alone and padded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.ir import PER_TOKEN_OUTPUTS, TARGET, Output, Program
from headrace.sample import draw
from tests.tiny import fed

FIRST_ID = 3  # past the special ids
SIZE_OF_ARRAYS = 9  # rows, where they are free
SHORT_TARGET, VOCABULARY = 5, 90


@dataclass(frozen=True)
class Request:
    """Token ids of a text, and of the target that an encoder-decoder's decoder reads beside it; or arrays, by name."""

    text: Tensor
    target: Tensor
    arrays: dict[str, Tensor]


def request(program: Program, length: int, seed: int) -> Request:
    """A random text of that length, and a target two tokens shorter; or arrays of one size that make so many rows."""
    generator = torch.Generator().manual_seed(100 * length + seed)
    if program.signature.arrays:
        drawn = {given.name: draw(given, 1, SIZE_OF_ARRAYS, seed) for given in program.signature.arrays}
        target = torch.randint(
            FIRST_ID, program.signature.vocabulary or VOCABULARY, (SHORT_TARGET,), generator=generator
        )
        return Request(torch.empty(0), target, drawn)
    text = torch.randint(FIRST_ID, program.signature.vocabulary, (length,), generator=generator)
    if program.signature.marker is not None:
        text[-1] = program.signature.marker
    longest = (program.facts.target_limits.length if program.facts.target_limits else None) or length
    target = torch.randint(
        FIRST_ID, program.signature.vocabulary, (min(max(1, length - 2), longest),), generator=generator
    )
    return Request(text, target, {})


def alone(program: Program, asked: Request) -> dict[str, Tensor]:
    """One request, unpadded."""
    return batch(program, [asked], left=False)


def batch(program: Program, asked: list[Request], left: bool) -> dict[str, Tensor]:
    """The requests in one batch, texts padded on either side, targets always on the right, arrays as they are."""
    decoded, decoded_mask = _padded([one.target for one in asked], left=False)
    if program.signature.arrays:
        named = {"decoder_input_ids": decoded, "decoder_attention_mask": decoded_mask}
        named |= {
            given.name: torch.cat([one.arrays[given.name] for one in asked]) for given in program.signature.arrays
        }
        return {name: named[name] for name in program.signature.input_names}
    ids, mask = _padded([one.text for one in asked], left)
    inputs: dict[str, Tensor] = fed(program, ids, mask, decoded, decoded_mask)
    return inputs


def _padded(rows: list[Tensor], left: bool) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    ids, mask = torch.ones((len(rows), width), dtype=torch.long), torch.zeros((len(rows), width), dtype=torch.long)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(len(row))
        ids[number, place], mask[number, place] = row, 1
    return ids, mask


def answer(output: Output, value: Tensor, row: int, asked: Request, left: bool) -> Tensor:
    """One request's part of an output of the batch, [1, ...], without the rows of its padding."""
    if output.kind not in PER_TOKEN_OUTPUTS or asked.arrays:
        return value[row : row + 1]
    if output.along == TARGET:
        return value[row : row + 1, : len(asked.target)]
    count = len(asked.text)
    return value[row : row + 1, -count:] if left else value[row : row + 1, :count]
