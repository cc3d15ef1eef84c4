"""The module that is traced: a model with its inputs named and its outputs named by what they hold."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import TraceError
from headrace.frontend.sentence import Pool
from headrace.ir import OutputKind

# The per-token inputs that Headrace feeds, in graph order. All are int64 [batch, sequence].
FED = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
# Arguments that would make a model keep state or return more than is served.
SWITCHES = {"use_cache": False, "return_dict": True}


@dataclass(frozen=True)
class Signature:
    """What a module's forward accepts of what Headrace can feed it; positional where it names no input."""

    inputs: tuple[str, ...]
    switches: tuple[str, ...]
    positional: bool = False


def signature(module: nn.Module) -> Signature:
    """Read the inputs off `forward`; a wrapper with `**kwargs` is read through to the module inside.

    Raises:
        TraceError: nothing in the module takes token ids, or it takes a decoder's besides.
    """
    forwards = [inspect.signature(inner.forward).parameters for inner in module.modules()]
    outer, takers = forwards[0], [names for names in forwards if "input_ids" in names]
    if not takers:
        raise TraceError("No forward in the module takes input_ids: Headrace serves models that read token ids.")
    if "decoder_input_ids" in outer or (outer is not takers[0] and "decoder_input_ids" in takers[0]):
        raise TraceError(
            "The model is an encoder-decoder (its forward takes decoder_input_ids), which this version does not serve. "
            "Give its encoder alone, e.g. T5EncoderModel, or a model that reads one sequence of token ids."
        )
    # What an open-ended forward does not name it passes on: the first to name the most says what is accepted.
    parameters = max(takers, key=lambda names: sum(name in names for name in FED))
    inputs = tuple(name for name in FED if name in parameters)
    switches = tuple(name for name in SWITCHES if name in parameters)
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in outer.values())
    if "input_ids" in outer and not open_ended:
        kept = tuple(name for name in inputs if name in outer)
        return Signature(kept, tuple(name for name in switches if name in outer))
    return Signature(inputs, switches) if open_ended else Signature(inputs[:1], (), positional=True)


def call(module: nn.Module, signature: Signature, inputs: dict[str, Tensor]) -> Any:
    """Run the module on the inputs that it accepts."""
    if signature.positional:
        return module(inputs["input_ids"])
    given = {name: inputs[name] for name in signature.inputs if name in inputs}
    return module(**given, **{name: SWITCHES[name] for name in signature.switches})


def first_tensor(output: Any) -> Tensor | None:
    """The tensor that a module's output is, or begins with."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if hasattr(output, "values") else output if isinstance(output, (tuple, list)) else ()
    return next((value for value in values if isinstance(value, Tensor)), None)


@contextmanager
def rows_of(backbone: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the hidden rows [B, S, H] that the backbone returns while the block runs."""
    rows: list[Tensor] = []
    handle = backbone.register_forward_hook(lambda _m, _args, output: rows.append(hidden_rows(output)))
    try:
        yield rows
    finally:
        handle.remove()


def hidden_rows(output: Any) -> Tensor:
    """`last_hidden_state` of a model's output, or the tensor that it is."""
    rows = getattr(output, "last_hidden_state", None)
    return rows if rows is not None else first_tensor(output)  # type: ignore[return-value]


class Served(nn.Module):
    """One forward that returns each output under the name of its kind."""

    def __init__(
        self,
        model: nn.Module,
        signature: Signature,
        backbone: nn.Module,
        kinds: tuple[OutputKind, ...],
        pool: Pool | None,
        tail: nn.Module | None,
    ) -> None:
        """`kinds` are the outputs wanted; `pool` and `tail` make an embedding, `tail` alone token embeddings."""
        super().__init__()
        self.model, self.pool, self.tail = model, pool, tail
        self.signature, self.kinds = signature, kinds
        # Held in a tuple: as a submodule it would stand twice among the parameters.
        self._backbone = (backbone,)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Run the model once and take from it each wanted output, in the order of `kinds`."""
        fed = zip(FED, (input_ids, attention_mask, position_ids, token_type_ids), strict=True)
        inputs = {name: value for name, value in fed if value is not None}
        with rows_of(self._backbone[0]) as seen:
            output = call(self.model, self.signature, inputs)
        rows = seen[-1]
        return tuple(self._take(kind, output, rows, attention_mask) for kind in self.kinds)

    def _take(self, kind: OutputKind, output: Any, rows: Tensor, padding: Tensor) -> Tensor:
        if kind is OutputKind.HIDDEN:
            return rows
        if kind is OutputKind.EMBEDDING:
            assert self.pool is not None
            vectors: Tensor = self.pool(rows, padding)
            # Modules without a Pooling before them work on tokens, not on a text's vector.
            if self.tail is not None and OutputKind.TOKEN_EMBEDDING not in self.kinds:
                vectors = self.tail(vectors)
            return vectors
        if kind is OutputKind.TOKEN_EMBEDDING:
            return self.tail(rows.float()) if self.tail is not None else rows
        logits = getattr(output, "logits", None)
        taken = logits if logits is not None else first_tensor(output)
        assert taken is not None
        return taken


def sample(batch: int, length: int, vocabulary: int, avoid: frozenset[int], seed: int = 0) -> dict[str, Tensor]:
    """Random unpadded inputs [batch, length] that hold none of the ids to avoid (padding, end of text)."""
    generator = torch.Generator().manual_seed(seed)
    usable = torch.tensor([i for i in range(vocabulary) if i not in avoid] or [0])
    ids = usable[torch.randint(len(usable), (batch, length), generator=generator)]
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
    }


def positions(batch: int, length: int, offset: int) -> Tensor:
    """Position ids [batch, length] of unpadded sequences."""
    return (torch.arange(length) + offset).expand(batch, length).contiguous()
