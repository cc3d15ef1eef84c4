"""The module that is traced: a model with its inputs named and its outputs named by what they hold."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import TraceError
from headrace.frontend.sentence import Pool
from headrace.ir import OutputKind

# The decoder's inputs in an encoder-decoder: int64 [batch, target].
DECODED = ("decoder_input_ids", "decoder_attention_mask")
# The per-token inputs that Headrace feeds, in graph order. All but the decoder's are int64 [batch, sequence].
FED = ("input_ids", "attention_mask", "position_ids", "token_type_ids", *DECODED)
# Arguments that would make a model keep state or return more than is served.
SWITCHES = {"use_cache": False, "return_dict": True}


@dataclass(frozen=True)
class Signature:
    """What a module's forward accepts of what Headrace can feed it; positional where it names no input.

    `ending` is the token that a text must end in for the module to answer, None where any may.
    """

    inputs: tuple[str, ...]
    switches: tuple[str, ...]
    positional: bool = False
    ending: int | None = None

    @property
    def decodes(self) -> bool:
        """Whether the decoder of an encoder-decoder takes a target of its own."""
        return DECODED[0] in self.inputs


def signature(module: nn.Module) -> Signature:
    """Read the inputs off `forward`; a wrapper with `**kwargs` is read through to the module inside.

    Raises:
        TraceError: nothing in the module takes token ids.
    """
    forwards = [inspect.signature(inner.forward).parameters for inner in module.modules()]
    outer, takers = forwards[0], [names for names in forwards if "input_ids" in names]
    if not takers:
        raise TraceError("No forward in the module takes input_ids: Headrace serves models that read token ids.")
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
def rows_of(backbone: nn.Module, read: Callable[[Any], Tensor] | None = None) -> Iterator[list[Tensor]]:
    """Collect the hidden rows [B, S, H] that the backbone returns while the block runs.

    Args:
        read: what takes them from the backbone's output, `hidden_rows` if None.
    """
    rows: list[Tensor] = []
    handle = backbone.register_forward_hook(lambda _m, _args, output: rows.append((read or hidden_rows)(output)))
    try:
        yield rows
    finally:
        handle.remove()


def hidden_rows(output: Any) -> Tensor:
    """`last_hidden_state` of a model's output, or the tensor that it is: in an encoder-decoder, the decoder's rows."""
    rows = getattr(output, "last_hidden_state", None)
    return rows if rows is not None else first_tensor(output)  # type: ignore[return-value]


def encoder_rows(output: Any) -> Tensor:
    """The encoder's rows [B, S, H] in the output of a module that runs encoder and decoder; None in any other's."""
    return getattr(output, "encoder_last_hidden_state", None)  # type: ignore[return-value]


class Served(nn.Module):
    """One forward that returns each output under the name of its kind."""

    def __init__(
        self,
        model: nn.Module,
        signature: Signature,
        backbone: nn.Module,
        pair: nn.Module | None,
        kinds: tuple[OutputKind, ...],
        pool: Pool | None,
        tail: nn.Module | None,
    ) -> None:
        """Keep the modules, which stay the caller's.

        Args:
            backbone: returns the hidden rows, in an encoder-decoder the decoder's.
            pair: runs encoder and decoder; None without a decoder.
            kinds: the outputs wanted; `pool` and `tail` make an embedding, `tail` alone token embeddings.
        """
        super().__init__()
        self.model, self.pool, self.tail = model, pool, tail
        self.signature, self.kinds = signature, kinds
        # Held in a tuple: as a submodule it would stand twice among the parameters.
        self._backbone, self._pair = (backbone,), (pair,)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Run the model once and take from it each wanted output, in the order of `kinds`."""
        given = (input_ids, attention_mask, position_ids, token_type_ids, decoder_input_ids, decoder_attention_mask)
        inputs = {name: value for name, value in zip(FED, given, strict=True) if value is not None}
        backbone, pair = self._backbone[0], self._pair[0]
        with rows_of(backbone) as seen, rows_of(pair or backbone, encoder_rows) as encoded:
            output = call(self.model, self.signature, inputs)
        rows = {OutputKind.DECODER_HIDDEN: seen[-1]}
        main = seen[-1] if pair is None else encoded[-1]
        return tuple(self._take(kind, output, rows.get(kind, main), attention_mask) for kind in self.kinds)

    def _take(self, kind: OutputKind, output: Any, rows: Tensor, padding: Tensor) -> Tensor:
        if kind in (OutputKind.HIDDEN, OutputKind.DECODER_HIDDEN):
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


def sample(
    batch: int,
    length: int,
    vocabulary: int,
    avoid: frozenset[int],
    seed: int = 0,
    *,
    ending: int | None = None,
    target: int | None = None,
) -> dict[str, Tensor]:
    """Random unpadded inputs [batch, length] that hold none of the ids to avoid (padding, end of text).

    Args:
        ending: the last token of each text instead.
        target: length of the decoder's inputs; None makes them shorter than the text, so that the two can be told
            apart.
    """
    generator = torch.Generator().manual_seed(seed)
    usable = torch.tensor([i for i in range(vocabulary) if i not in avoid] or [0])

    def drawn(count: int) -> Tensor:
        return usable[torch.randint(len(usable), (batch, count), generator=generator)]

    ids = drawn(length)
    if ending is not None:
        ids[:, -1] = ending
    decoded = drawn(target or max(1, length - 2))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
        "decoder_input_ids": decoded,
        "decoder_attention_mask": torch.ones_like(decoded),
    }


def positions(batch: int, length: int, offset: int) -> Tensor:
    """Position ids [batch, length] of unpadded sequences."""
    return (torch.arange(length) + offset).expand(batch, length).contiguous()
