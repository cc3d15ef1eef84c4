"""The user's model as one thing that can be asked: how it is called, and what it returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from headrace.frontend.capture.attention import Call, capture
from headrace.frontend.eager.signature import CallSignature, call, positions, sample, signature
from headrace.frontend.eager.vocabulary import special_ids, vocabulary_size
from headrace.ir import Head, RawPart

BATCH, LENGTH = 2, 7
# The inputs of a run, by name and bytes.
Given = tuple[tuple[str, torch.Size, bytes], ...]


@dataclass(frozen=True)
class DryRun:
    """What one eager run showed.

    Attributes:
        calls: the attentions that went through transformers' interface, in order.
        causal: no row that pooling takes changes with a later token; measured where no interface says it.
        reads_masks: code past the interface reads masks that were made for it.
        recurrent: how many of its recurrent functions it called.
        backbone: the outermost module that returned hidden rows; in an encoder-decoder, the decoder's.
        pair: the innermost module that ran an encoder and a decoder, None where there is no decoder beside it.
        hidden: width of the rows that are served: the encoder's where there is one.
        head: what the model ends in; `note` says why where it is OTHER.
        width: last dimension of the head's logits, 0 without a head.
        rows: hidden rows of each sequence in that run.
        own: the field in which a headless model returns one vector a sequence, "" without one.
        own_maker: the module that returned that vector, None where it is no module's whole output.
        raw: the tensors of a head that no task is of, where they are served as they are.
    """

    calls: tuple[Call, ...]
    causal: bool
    reads_masks: bool
    backbone: nn.Module
    hidden: int
    head: Head
    width: int
    note: str = ""
    recurrent: int = 0
    pair: nn.Module | None = None
    rows: int = LENGTH
    own: str = ""
    own_maker: nn.Module | None = None
    raw: tuple[RawPart, ...] = ()


@dataclass(frozen=True)
class EagerModel:
    """A borrowed module, and what is known so far of calling it. A fact that is found makes the next one of these.

    Attributes:
        signature: which of Headrace's inputs the module is given, and the marker that a text must hold.
        offset: position of the first token.
        looked: what its first run showed; None before it.
        samples: inputs that were drawn, which all facts share.
        returned: what runs returned, which all facts share.
    """

    module: nn.Module
    config: Any
    signature: CallSignature
    offset: int = 0
    looked: DryRun | None = None
    samples: dict[Any, dict[str, Tensor]] = field(default_factory=dict, repr=False)
    returned: dict[Given, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, module: nn.Module, config: Any) -> EagerModel:
        """The model as its forward's arguments say that it is called."""
        return cls(module, config, signature(module))

    @property
    def seen(self) -> DryRun:
        """What its first run showed."""
        assert self.looked is not None
        return self.looked

    @cached_property
    def vocabulary(self) -> int:
        """Token ids lie below it; 0 where the model takes none."""
        tokens = self.signature.decodes or not self.signature.reads_arrays
        return vocabulary_size(self.module) if tokens else 0

    @cached_property
    def avoid(self) -> frozenset[int]:
        """Ids that its code may look for in a text, so that none that is drawn holds them."""
        return special_ids(self.config)

    @property
    def plain(self) -> dict[str, Tensor]:
        """Random unpadded inputs without positions, which the model then makes itself. Every first look is at these."""
        key = (self.signature.marker, self.signature.arrays)
        if key not in self.samples:
            self.samples[key] = self.sample(BATCH, LENGTH)
        return self.samples[key]

    @property
    def placed(self) -> dict[str, Tensor]:
        """The same with positions."""
        return self.plain | {"position_ids": positions(BATCH, LENGTH, self.offset)}

    def sample(self, batch: int, length: int, seed: int = 0, target: int | None = None) -> dict[str, Tensor]:
        """Random unpadded inputs of another size; `target` is the length of a decoder's."""
        marker, arrays = self.signature.marker, self.signature.arrays
        return sample(batch, length, self.vocabulary, self.avoid, seed, marker=marker, target=target, arrays=arrays)

    def without(self, name: str) -> EagerModel:
        """The model given one input less."""
        kept = tuple(one for one in self.signature.inputs if one != name)
        return replace(self, signature=replace(self.signature, inputs=kept))

    def call(self, inputs: dict[str, Tensor]) -> Any:
        """Run the module as whatever surrounds the call has it run."""
        return call(self.module, self.signature, inputs)

    def run(self, inputs: dict[str, Tensor]) -> Any:
        """What the module returns, each time as the user gave it; the same inputs are run once."""
        key = self.key(inputs)
        if key not in self.returned:
            with capture(self.module, additive=True), torch.no_grad():
                self.returned[key] = self.call(inputs)
        return self.returned[key]

    def remember(self, inputs: Mapping[str, Tensor], output: Any) -> None:
        """Keep what a run returned that was looked into besides."""
        self.returned[self.key(inputs)] = output

    def key(self, inputs: Mapping[str, Tensor]) -> Given:
        """What the module is given of these inputs: runs with the same key are the same run."""
        given = ((name, inputs[name]) for name in self.signature.inputs if name in inputs)
        return tuple((name, value.shape, value.numpy().tobytes()) for name, value in given)
