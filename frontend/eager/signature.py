"""The module that is traced: a model with its inputs named and its outputs named by what they hold."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import TraceError
from headrace.frontend.eager.raw import raw_rows
from headrace.frontend.load.sentence_transformers.modules.chain import (
    IDS,
    LAYERS,
    LEXICAL,
    LOGITS,
    MULTI,
    PADDING,
    ROWS,
    SCORES,
    VECTOR,
    Chain,
    Features,
)
from headrace.ir import Input, OutputKind, RawPart, Role
from headrace.sample import draw

# The decoder's inputs in an encoder-decoder: int64 [batch, target].
DECODED = ("decoder_input_ids", "decoder_attention_mask")
# The per-token inputs that Headrace feeds, in graph order. All but the decoder's are int64 [batch, sequence].
FED = ("input_ids", "attention_mask", "position_ids", "token_type_ids", *DECODED)
# What a model may read in place of token ids: floating-point arrays, whose axes `frontend.arrays` finds out.
ARRAYS = ("pixel_values", "input_values", "input_features")
# What each holds. Past the frontend an input is known by its role, never by transformers' name of it.
TOKENS = (Role.IDS, Role.PADDING, Role.POSITIONS, Role.TYPES, Role.TARGET_IDS, Role.TARGET_PADDING)
ROLES = dict(zip(FED, TOKENS, strict=True)) | dict.fromkeys(ARRAYS, Role.ARRAY)
# Arguments that would make a model keep state or return more than is served.
SWITCHES = {"use_cache": False, "use_mems": False, "return_dict": True}
# What a chain of sentence-transformers' modules makes, by its name there.
MADE = {
    OutputKind.EMBEDDING: VECTOR,
    OutputKind.SPARSE_EMBEDDING: VECTOR,
    OutputKind.TOKEN_EMBEDDING: ROWS,
    OutputKind.LEXICAL_WEIGHTS: LEXICAL,
    OutputKind.MULTI_EMBEDDING: MULTI,
    OutputKind.SEQUENCE_LOGITS: SCORES,
}


@dataclass(frozen=True)
class CallSignature:
    """What a module's forward accepts of what Headrace can feed it; positional where it names no input.

    `marker` is a token that a text must hold for the module to answer, None where it need not.
    `arrays` describes the inputs of a model that reads arrays; its `inputs` are their names.
    `chooses`: each text is given as the only choice that there is, [batch, 1, sequence], of one that compares several.
    """

    inputs: tuple[str, ...]
    switches: tuple[str, ...]
    positional: bool = False
    marker: int | None = None
    arrays: tuple[Input, ...] = ()
    chooses: bool = False

    @property
    def decodes(self) -> bool:
        """Whether the decoder of an encoder-decoder takes a target of its own."""
        return DECODED[0] in self.inputs

    @property
    def reads_arrays(self) -> bool:
        """Whether the model reads arrays and no token ids."""
        return self.inputs[0] in ARRAYS


def signature(module: nn.Module) -> CallSignature:
    """Read the inputs off `forward`; a wrapper with `**kwargs` is read through to the module inside.

    Raises:
        TraceError: nothing in the module takes token ids or arrays.
    """
    try:
        forwards = [inspect.signature(inner.forward).parameters for inner in module.modules()]
    except (TypeError, ValueError) as error:  # of torch.jit, or of an extension
        raise TraceError(
            f"A forward in the model is no Python code whose arguments can be read ({error}), as torch.jit makes them. "
            "Give the module that it was made of."
        ) from error
    outer, takers = forwards[0], [names for names in forwards if "input_ids" in names]
    reads = next((names for names in forwards if not {"input_ids", *ARRAYS}.isdisjoint(names)), None)
    if not takers or (reads is not None and "input_ids" not in reads):
        # The outermost to name what it reads decides: token ids further in can be a decoder's.
        return _array_signature(forwards)
    # What an open-ended forward does not name it passes on: the first to name the most says what is accepted.
    parameters = max(takers, key=lambda names: sum(name in names for name in FED))
    inputs = tuple(name for name in FED if name in parameters)
    switches = tuple(name for name in SWITCHES if name in parameters)
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in outer.values())
    if "input_ids" in outer and not open_ended:
        kept = tuple(name for name in inputs if name in outer)
        return CallSignature(kept, tuple(name for name in switches if name in outer))
    return CallSignature(inputs, switches) if open_ended else CallSignature(inputs[:1], (), positional=True)


def _array_signature(forwards: Sequence[Mapping[str, inspect.Parameter]]) -> CallSignature:
    found = next(((name, names) for names in forwards for name in ARRAYS if name in names), None)
    if found is None:
        raise TraceError(
            f"No forward in the module takes input_ids or {', '.join(ARRAYS)}: Headrace serves models that read token "
            "ids, images or audio under those names."
        )
    (name, inner), outer = found, forwards[0]
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in outer.values())
    if name not in outer and not open_ended:
        return CallSignature((name,), (), positional=True)
    decoded = tuple(one for one in DECODED if one in inner)
    return CallSignature((name, *decoded), tuple(switch for switch in SWITCHES if switch in inner))


def call(module: nn.Module, signature: CallSignature, inputs: dict[str, Tensor]) -> Any:
    """Run the module on the inputs that it accepts; float32 arrays are cast to the module's own dtype."""
    given = {name: _cast(inputs[name], module) for name in signature.inputs if name in inputs}
    if signature.chooses:
        given = {name: value.unsqueeze(1) for name, value in given.items()}
    if signature.positional:
        return module(given[signature.inputs[0]])
    return module(**given, **{name: SWITCHES[name] for name in signature.switches})


def _cast(values: Tensor, module: nn.Module) -> Tensor:
    if not values.is_floating_point():
        return values
    return values.to(next((p.dtype for p in module.parameters() if p.is_floating_point()), values.dtype))


def first_tensor(output: Any) -> Tensor | None:
    """The tensor that a module's output is, or begins with; it may be a pair of a pair, as with I-BERT's scales."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple) and output and isinstance(output[0], tuple):
        return first_tensor(output[0])
    values = output.values() if hasattr(output, "values") else output if isinstance(output, (tuple, list)) else ()
    return next((value for value in values if isinstance(value, Tensor)), None)


def head_rows(output: Any) -> Tensor | None:
    """The logits of a model's output, or the tensor that it is or begins with."""
    logits: Tensor | None = getattr(output, "logits", None)
    if logits is None:
        logits = span_logits(output)
    return logits if logits is not None else first_tensor(output)


def span_logits(output: Any) -> Tensor | None:
    """How well a span begins and ends with each token, [B, S, 2], in the output of a head that finds spans."""
    start, end = (getattr(output, name, None) for name in ("start_logits", "end_logits"))
    if not isinstance(start, Tensor) or not isinstance(end, Tensor) or start.shape != end.shape or start.dim() != 2:
        return None
    return torch.stack((start, end), dim=-1)


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
        signature: CallSignature,
        backbone: nn.Module,
        pair: nn.Module | None,
        kinds: tuple[OutputKind, ...],
        chain: Chain,
        own: str = "",
        raw: tuple[RawPart, ...] = (),
    ) -> None:
        """Keep the modules, which stay the caller's.

        Args:
            backbone: returns the hidden rows, in an encoder-decoder the decoder's.
            pair: runs encoder and decoder; None without a decoder.
            kinds: the outputs wanted.
            chain: makes of hidden rows what the model itself does not return.
            own: the field in which the model returns an embedding of its own, which is taken in place of a pooled one.
            raw: the fields of a head that are returned as they are.
        """
        super().__init__()
        self.model, self.chain = model, chain
        self.signature, self.kinds, self.own, self.raw = signature, kinds, own, raw
        # Held in a tuple: as a submodule it would stand twice among the parameters.
        self._backbone, self._pair = (backbone,), (pair,)
        # A head of the model's own makes the logits that no chain does.
        self._chained = chain.writes(SCORES) or not {*MADE}.difference({OutputKind.SEQUENCE_LOGITS}).isdisjoint(kinds)
        self.makes_target = pair is not None and not signature.decodes

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
        input_values: Tensor | None = None,
        input_features: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Run the model once and take from it each wanted output, in the order of `kinds`."""
        tokens = (input_ids, attention_mask, position_ids, token_type_ids, decoder_input_ids, decoder_attention_mask)
        given = zip((*FED, *ARRAYS), (*tokens, pixel_values, input_values, input_features), strict=True)
        inputs = {name: value for name, value in given if value is not None}
        backbone, pair = self._backbone[0], self._pair[0]
        read_layers = _layers if self.chain.reads(LAYERS) else _no_rows
        with (
            rows_of(backbone) as seen,
            rows_of(pair or backbone, encoder_rows) as encoded,
            rows_of(backbone, read_layers) as layers,
        ):
            output = call(self.model, self.signature, inputs)
        rows = {OutputKind.DECODER_HIDDEN: seen[-1]}
        main = seen[-1] if pair is None else encoded[-1]
        # Arrays are never padded, so that every row of theirs is real.
        padding = main.new_ones(main.shape[:2], dtype=torch.int64) if attention_mask is None else attention_mask
        given_rows = {PADDING: padding} | ({} if input_ids is None else {IDS: input_ids})
        made = self._made(output, main, given_rows, layers[-1]) if self._chained else {}
        return tuple(self._take(kind, output, rows.get(kind, main), made) for kind in self.kinds)

    def _made(self, output: Any, rows: Tensor, given: Features, layers: Tensor | None) -> Features:
        """What the chain makes of the rows, and of the model's own vector where that is taken."""
        features = given | {ROWS: rows.float()} | ({} if layers is None else {LAYERS: layers})
        if self.chain.reads(LOGITS) and (logits := head_rows(output)) is not None:
            features[LOGITS] = logits
        made: Features = self.chain(features | ({VECTOR: getattr(output, self.own).float()} if self.own else {}))
        return made

    def _take(self, kind: OutputKind, output: Any, rows: Tensor, made: Features) -> Tensor:
        if (name := MADE.get(kind)) in made:
            return made[name]
        if kind in (OutputKind.HIDDEN, OutputKind.DECODER_HIDDEN):
            return rows
        if kind is OutputKind.RAW:
            return raw_rows(output, rows, self.raw)
        taken = head_rows(output)
        assert taken is not None
        return taken


def _no_rows(output: Any) -> Tensor:
    return None  # type: ignore[return-value]


def _layers(output: Any) -> Tensor:
    """The rows [L, B, S, H] of every layer in a backbone's output; None where it returns none."""
    layers: Any = getattr(output, "hidden_states", None)
    return None if layers is None else torch.stack(layers).float()  # type: ignore[return-value]


def sample(
    batch: int,
    length: int,
    vocabulary: int,
    avoid: frozenset[int],
    seed: int = 0,
    *,
    marker: int | None = None,
    target: int | None = None,
    arrays: tuple[Input, ...] = (),
) -> dict[str, Tensor]:
    """Random unpadded inputs [batch, length] that hold none of the ids to avoid (padding, end of text).

    Args:
        marker: a token that stands in each text besides: the last but one, and of four and more the second too, so
            that its rows are neither the first nor the last.
        target: length of the decoder's inputs; None makes them shorter than the text, so that the two can be told
            apart.
        arrays: what the model reads in place of the text's tokens, of so many rows where their size is free.
    """
    generator = torch.Generator().manual_seed(seed)
    usable = _usable(vocabulary, avoid)

    def drawn(count: int) -> Tensor:
        return usable[torch.randint(len(usable), (batch, count), generator=generator)]

    drawn_arrays = {given.name: draw(given, batch, length, seed) for given in arrays}
    ids = drawn(length)
    if marker is not None:
        ids[:, [max(0, length - 2), *[1] * (length > 3)]] = marker
    decoded = drawn(target or max(1, length - 2))
    target_inputs = {"decoder_input_ids": decoded, "decoder_attention_mask": torch.ones_like(decoded)}
    if arrays:
        return drawn_arrays | target_inputs
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    return text | target_inputs


def _usable(vocabulary: int, avoid: frozenset[int]) -> Tensor:
    ids = torch.arange(vocabulary)
    kept = ids[~torch.isin(ids, torch.tensor(sorted(avoid), dtype=torch.int64))]
    return kept if len(kept) else torch.zeros(1, dtype=torch.int64)


def positions(batch: int, length: int, offset: int) -> Tensor:
    """Position ids [batch, length] of unpadded sequences."""
    return (torch.arange(length) + offset).expand(batch, length).contiguous()
