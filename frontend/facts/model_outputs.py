"""What a model returns: the outputs that its head has, a headless one's vector of its own, and stages on the way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from headrace import graphs
from headrace.errors import TraceError
from headrace.frontend.capture.attention import Call
from headrace.frontend.load.sentence_transformers.sentence_modules import SentenceModules
from headrace.ir import SEQUENCE, TARGET, Head, Output, OutputKind

# What a head returns, beside the hidden rows that its choice of rows is found from.
HEAD_OUTPUTS = {
    Head.NONE: (OutputKind.HIDDEN,),
    Head.SEQUENCE: (OutputKind.SEQUENCE_LOGITS, OutputKind.HIDDEN),
    Head.CHOICE: (OutputKind.SEQUENCE_LOGITS, OutputKind.HIDDEN),
    Head.TOKEN: (OutputKind.TOKEN_LOGITS,),
    Head.SPAN: (OutputKind.SPAN_LOGITS,),
    Head.MASKED_LM: (OutputKind.VOCABULARY_LOGITS,),
    Head.CAUSAL_LM: (OutputKind.VOCABULARY_LOGITS, OutputKind.HIDDEN),
    Head.OTHER: (OutputKind.HIDDEN,),
}
# The same of encoder-decoders. Hidden rows are the encoder's, and a head chooses from the decoder's.
PAIR_OUTPUTS = HEAD_OUTPUTS | {
    Head.NONE: (OutputKind.DECODER_HIDDEN, OutputKind.HIDDEN),
    Head.SEQUENCE: (OutputKind.SEQUENCE_LOGITS, OutputKind.DECODER_HIDDEN),
    Head.SEQ2SEQ_LM: (OutputKind.VOCABULARY_LOGITS, OutputKind.HIDDEN),
    Head.OTHER: (OutputKind.DECODER_HIDDEN, OutputKind.HIDDEN),
}
DECODER_OUTPUTS = frozenset({OutputKind.DECODER_HIDDEN, OutputKind.VOCABULARY_LOGITS})
# What headless models return. A pooler is part of sequence heads, which have an output of their own.
PLAIN = frozenset({"last_hidden_state", "pooler_output", "encoder_last_hidden_state"})
# How the fields are called in which models return a projection into a space that they share with another model.
VECTOR = "_embeds"


def own_vector(output: Any, rows: Tensor, returned: list[tuple[nn.Module, Any]]) -> tuple[str, nn.Module | None]:
    """A headless model's own vector a sequence: a projection that it was made for, else its pooler's."""
    named = dict(output.items()) if hasattr(output, "items") else {}
    names = [name for name, value in named.items() if isinstance(value, Tensor) and _is_vector(value, rows)]
    for name in sorted(names, key=lambda name: name in PLAIN):
        maker = next((m for m, out in reversed(returned) if out is named[name]), None)
        return name, maker
    return "", None


def _is_vector(value: Tensor, rows: Tensor) -> bool:
    return value.dim() == 2 and value.shape[0] == rows.shape[0] and value.is_floating_point()


def unserved(output: Any, rows: Tensor, passing: list[Tensor]) -> str:
    """The tensors that a headless model returns beside hidden rows, which may be what it was made for.

    One vector a sequence under a name that says so is served, as CLIP's projections are; a stage on the way to the
    rows is left out.
    """
    named = output.items() if hasattr(output, "items") else ()
    others = [(name, value) for name, value in named if isinstance(value, Tensor) and name not in PLAIN]
    kept = [name for name, value in others if not any(value is one for one in passing)]
    vectors = [name for name, value in others if name.endswith(VECTOR) and _is_vector(value, rows)]
    return "" if kept == vectors and len(kept) == 1 else ", ".join(kept)


def before_attention(returned: list[tuple[nn.Module, Any]], calls: list[Call]) -> list[Tensor]:
    """The tensors that modules returned before any attention ran: stages on the way, not what the model is for."""
    attentions = {made.module for made in calls}
    tensors: list[Tensor] = []
    for inner, output in returned:
        if inner in attentions:
            return tensors
        tensors += [value for value in _values(output) if isinstance(value, Tensor)]
    return []


def _values(output: Any) -> Iterable[Any]:
    if hasattr(output, "values") and not isinstance(output, Tensor):
        return output.values()  # type: ignore[no-any-return]
    return output if isinstance(output, (tuple, list)) else (output,)


def output_kinds(
    head: Head, paired: bool, sentence: SentenceModules | None, pooled: bool, raw: bool = False
) -> tuple[OutputKind, ...]:
    """What the served forward returns, in order.

    Args:
        paired: whether there is an encoder and a decoder.
        sentence: the modules after the model, None without any.
        pooled: whether a vector is made of each text.
        raw: whether the head's own tensors are served as they are.
    """
    kinds = (OutputKind.RAW,) * raw + (PAIR_OUTPUTS if paired else HEAD_OUTPUTS)[head]
    if sentence is not None and sentence.makes_rows:
        kinds = (*kinds, OutputKind.TOKEN_EMBEDDING)
    if sentence is not None and sentence.scores:
        kinds = (OutputKind.SEQUENCE_LOGITS, *kinds)
    if sentence is not None and sentence.sparse:
        kinds = (OutputKind.SPARSE_EMBEDDING, *kinds)
    if sentence is not None:
        kinds = (*kinds, *sentence.beside)
    return (*kinds, OutputKind.EMBEDDING) if pooled else kinds


def describe_outputs(exported: ExportedProgram, kinds: tuple[OutputKind, ...], decodes: bool) -> tuple[Output, ...]:
    """The outputs of the graph, with their widths.

    Raises:
        TraceError: a width is of no fixed size.
    """
    outputs = []
    for kind, node in zip(kinds, graphs.outputs_of(exported), strict=True):
        width = node.meta["val"].shape[-1]
        if isinstance(width, torch.SymInt):
            raise TraceError(f"The last dimension of {kind} follows the length of the text; a fixed width is served.")
        along = TARGET if decodes and kind in DECODER_OUTPUTS else SEQUENCE
        outputs.append(Output(kind.value, kind, int(width), along))
    return tuple(outputs)
