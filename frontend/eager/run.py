"""One eager run of the model before it is traced: what it calls, what it returns, what its head is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headrace import debug
from headrace.errors import TraceError, non_finite
from headrace.frontend.capture.attention import Call, Readers, capture, implementation
from headrace.frontend.eager.borrowed import borrowed
from headrace.frontend.eager.signature import (
    DECODED,
    CallSignature,
    call,
    encoder_rows,
    first_tensor,
    hidden_rows,
    rows_of,
    sample,
)
from headrace.frontend.eager.steady import require_steady
from headrace.frontend.facts.model_outputs import before_attention, own_vector, unserved
from headrace.frontend.load.multimodal import failure
from headrace.ir import Head

BATCH, LENGTH = 2, 7
# Relative to the largest value of the rows.
LOOKS_AHEAD = 1e-4


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
        vocabulary: rows of the input embedding.
        head: what the model ends in; `note` says why where it is OTHER.
        width: last dimension of the head's logits, 0 without a head.
        rows: hidden rows of each sequence in that run.
        own: the field in which a headless model returns one vector a sequence, "" without one.
        own_maker: the module that returned that vector, None where it is no module's whole output.
    """

    calls: tuple[Call, ...]
    causal: bool
    reads_masks: bool
    backbone: nn.Module
    hidden: int
    vocabulary: int
    head: Head
    width: int
    note: str = ""
    recurrent: int = 0
    pair: nn.Module | None = None
    rows: int = LENGTH
    own: str = ""
    own_maker: nn.Module | None = None


def without_target(module: nn.Module, config: Any, signature: CallSignature) -> CallSignature:
    """Give the decoder no target of its own where the head answers of the text: its forward makes one from the text.

    Such heads (BART's and T5's for sequences) read the row of the text's last end token, which they fail without.
    """
    if not signature.decodes:
        return signature
    names = tuple(name for name in signature.inputs if name not in DECODED)
    avoid = special_ids(config)
    for marker in (None, *_ends(config)):
        alone = replace(signature, inputs=names, marker=marker)
        inputs = sample(BATCH, LENGTH, vocabulary_size(module), avoid, marker=marker)
        try:
            with capture(module, additive=True), torch.no_grad():
                logits = getattr(call(module, alone, inputs), "logits", None)
        except Exception as error:  # a model that must be given a target says so in its own way
            debug.say(debug.CODE, f"without a target: {error}")
            continue
        if logits is not None and (logits.dim() == 2 or not _has_vocabulary_head(module)):
            return alone
    return signature


def dry_run(module: nn.Module, config: Any, signature: CallSignature) -> DryRun:
    """Run the model once on random tokens, through the captured interfaces.

    Raises:
        TraceError: the model's own forward fails on a plain batch, or returns no rows.
        NonFiniteError: it overflows there already.
    """
    vocabulary = 0 if signature.arrays and not signature.decodes else vocabulary_size(module)
    avoid = special_ids(config)
    inputs = sample(BATCH, LENGTH, vocabulary, avoid, marker=signature.marker, arrays=signature.arrays)
    try:
        # Additive masks suit every model's own code; whether any of it reads them shows on the way.
        with (
            capture(module, additive=True) as captured,
            torch.no_grad(),
            borrowed(module) as held,
            _returns(module) as returned,
            Readers(captured) as readers,
        ):
            output = call(module, signature, inputs)
            changed = held.changes()
    except Exception as error:
        what = ", ".join(signature.inputs) if signature.arrays else f"{BATCH} x {LENGTH} tokens"
        raise TraceError(failure(module, config, signature, what, error)) from error
    if changed:
        require_steady(module, signature, inputs, output, changed)
    backbone, pair, rows = _rows(module, signature, returned)
    if rows.dim() != 3:
        raise TraceError(
            f"The model's hidden rows have the shape {list(rows.shape)}; [batch, sequence, width] is served."
        )
    if not torch.isfinite(rows).all():
        raise non_finite("The model's own forward on plain tokens", str(rows.dtype).removeprefix("torch."))
    inner = [logits for _, out in returned if (logits := getattr(out, "logits", None)) is not None]
    passing = before_attention(returned, captured.calls)
    calls, recurrent = tuple(captured.calls), len(captured.recurrent)
    decoded = tuple(inputs[DECODED[0]].shape) if signature.decodes else None
    head, width, note = read_head(output, rows, vocabulary, config, module, inner, passing, decoded)
    own, maker = own_vector(output, rows, returned) if head is Head.NONE else ("", None)
    count = rows.shape[1]
    if calls and not readers.count:
        causal = all(made.kind.causal for made in calls)
    else:
        causal = pair is None and not signature.arrays and _looks_back(module, signature, backbone, inputs, vocabulary)
    reads = readers.count > 0
    found = DryRun(calls, causal, reads, backbone, rows.shape[-1], vocabulary, head, width, note, recurrent, pair)
    return replace(found, rows=count, own=own, own_maker=maker)


def _looks_back(
    module: nn.Module, signature: CallSignature, backbone: nn.Module, inputs: dict[str, Tensor], vocabulary: int
) -> bool:
    """Whether rows depend on the tokens before them and on none after; what a regrouped sum changes is far below."""

    def changed_by(place: int) -> Tensor:
        others = inputs | {"input_ids": inputs["input_ids"].clone()}
        others["input_ids"][:, place] = (others["input_ids"][:, place] + 1) % vocabulary
        call(module, signature, others)
        moved = (rows[-1].double() - rows[0].double()).abs().amax((0, 2))
        return moved > LOOKS_AHEAD * rows[0].double().abs().max()

    with implementation(module, "eager"), torch.no_grad(), rows_of(backbone, hidden_rows) as rows:
        call(module, signature, inputs)
        return not changed_by(-1)[:-1].any() and bool(changed_by(0)[1:].any())


def _rows(
    module: nn.Module, signature: CallSignature, returned: list[tuple[nn.Module, Any]]
) -> tuple[nn.Module, nn.Module | None, Tensor]:
    """The backbone, the module that ran encoder and decoder if one did, and the hidden rows that are served."""
    for pair, output in returned:
        if (rows := encoder_rows(output)) is not None:
            # What wraps the two returns the same rows as they do; the backbone is looked for within.
            within = [(m, out) for m, out in returned if any(m is one for one in pair.modules())]
            return _backbone(pair, within), pair, rows
    if signature.decodes:
        raise TraceError(
            "The model takes decoder_input_ids, but no module in it returns the encoder's rows as "
            "encoder_last_hidden_state, so the encoder cannot be told from the decoder."
        )
    backbone = _backbone(module, returned)
    return backbone, None, next(hidden_rows(out) for m, out in reversed(returned) if m is backbone)


def rows_returned(module: nn.Module, signature: CallSignature, inputs: dict[str, Tensor]) -> Tensor:
    """The hidden rows [B, S, H] that the model makes of the inputs."""
    with _returns(module) as returned:
        call(module, signature, inputs)
    return _rows(module, signature, returned)[2]


@contextmanager
def _returns(module: nn.Module) -> Iterator[list[tuple[nn.Module, Any]]]:
    """What every module in the model returns while the block runs, in the order in which they return."""
    returned: list[tuple[nn.Module, Any]] = []
    hooks = [m.register_forward_hook(lambda m, _args, out: returned.append((m, out))) for m in module.modules()]
    try:
        yield returned
    finally:
        for hook in hooks:
            hook.remove()


def _backbone(module: nn.Module, returned: list[tuple[nn.Module, object]]) -> nn.Module:
    """Modules return from the inside out, so the last one with hidden rows is the outermost."""
    for candidate, output in reversed(returned):
        found: object = getattr(output, "last_hidden_state", None)
        if isinstance(found, Tensor) and found.dim() == 3:
            return candidate
    whole: object = returned[-1][1]
    if isinstance(whole, Tensor) and whole.dim() == 3:
        return module
    raise TraceError(
        f"No module in the model returns hidden rows [batch, sequence, width], and the whole returns a "
        f"{whole.__class__.__name__}; nothing can be served. A tensor of rows is accepted, or an output as those of "
        "transformers, with last_hidden_state or logits."
    )


def read_head(
    output: Any,
    rows: Tensor,
    vocabulary: int,
    config: Any,
    module: nn.Module,
    inner: list[Any],
    passing: list[Tensor],
    decoded: tuple[int, ...] | None = None,
) -> tuple[Head, int, str]:
    """Tell the head by the shape of what the model returns: [B, C], [B, S, C] or [B, S, vocabulary].

    Args:
        decoded: [B, T] of the decoder's inputs, where it takes a target.
    """
    logits = getattr(output, "logits", None)
    if logits is None:
        tensor = first_tensor(output)
        headless = getattr(output, "last_hidden_state", None) is not None
        if headless and (more := unserved(output, rows, passing)):
            return Head.OTHER, 0, f"the model returns {more} beside its hidden rows, which would be lost"
        if headless or tensor is None or tensor is rows:
            return Head.NONE, 0, ""
        if not isinstance(output, (Tensor, tuple, list)) or tensor.dim() not in (2, 3):
            names = ", ".join(output.keys()) if hasattr(output, "keys") else output.__class__.__name__
            return Head.OTHER, 0, f"the model returns {names}; served are logits and hidden rows"
        if tensor.shape[-1] == rows.shape[-1] and not any(tensor is one for one in inner):
            what = f"a bare tensor of shape {list(tensor.shape)}, as wide as the hidden rows"
            return Head.OTHER, 0, f"the module returns {what}: logits or vectors? Return .logits or .last_hidden_state"
        logits = tensor
    return _by_shape(logits, rows, vocabulary, config, module, decoded)


def _by_shape(
    logits: Tensor, rows: Tensor, vocabulary: int, config: Any, module: nn.Module, decoded: tuple[int, ...] | None
) -> tuple[Head, int, str]:
    shape, width = tuple(logits.shape[:-1]), int(logits.shape[-1])
    if shape == rows.shape[:1]:
        return Head.SEQUENCE, width, ""
    if decoded is not None and shape == decoded and width >= vocabulary:
        return Head.SEQ2SEQ_LM, width, ""
    labels = getattr(config, "num_labels", None)
    if misfit := _misfit(logits, rows, vocabulary, labels, module):
        return Head.OTHER, width, misfit
    if not vocabulary or width < vocabulary or (width == labels and not _has_vocabulary_head(module)):
        return Head.TOKEN, width, ""
    return (Head.CAUSAL_LM if _generates(module) else Head.MASKED_LM), width, ""


def _misfit(logits: Tensor, rows: Tensor, vocabulary: int, labels: int | None, module: nn.Module) -> str:
    """Why logits are those of no head that is served; "" where they may be."""
    if logits.shape[:-1] != rows.shape[:2]:
        return f"logits of shape {list(logits.shape)} for {list(rows.shape[:2])} tokens"
    if not vocabulary and (logits.shape[-1] != labels or _has_vocabulary_head(module)):
        what = "logits over a vocabulary for every row, as a speech recogniser's (CTC)"
        return f"the model returns {what}; give it without that head to embed"
    return ""


def _has_vocabulary_head(module: nn.Module) -> bool:
    getters = (getattr(m, "get_output_embeddings", None) for m in module.modules())
    return any(getter is not None and getter() is not None for getter in getters)


def _generates(module: nn.Module) -> bool:
    return any(can() for m in module.modules() if (can := getattr(m, "can_generate", None)) is not None)


def vocabulary_size(module: nn.Module) -> int:
    """Rows of the input embedding: the token ids that the model can take.

    Raises:
        TraceError: the model has no input embedding.
    """
    for inner in module.modules():
        try:
            embedding = inner.get_input_embeddings()  # type: ignore[operator]
        except (AttributeError, NotImplementedError, TypeError):
            continue
        if embedding is not None and hasattr(embedding, "weight"):
            return int(embedding.weight.shape[0])
    tables = [m for m in module.modules() if isinstance(m, nn.Embedding)]
    if not tables:
        raise TraceError("The model has no embedding of token ids; Headrace serves models that read token ids.")
    return int(tables[0].num_embeddings)


def special_ids(config: Any) -> frozenset[int]:
    """Padding and end-of-text ids, which some heads look for in the text."""
    return frozenset(_ids(config, "pad_token_id", "eos_token_id", "bos_token_id"))


def _ends(config: Any) -> tuple[int, ...]:
    """The ids that may end a text."""
    return _ids(config, "eos_token_id")


def _ids(config: Any, *names: str) -> tuple[int, ...]:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    found = (getattr(text, name, None) for name in names)
    return tuple(i for value in found for i in (value if isinstance(value, list) else [value]) if i is not None)
