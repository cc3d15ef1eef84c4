"""One eager run of the model before it is traced: what it calls, what it returns, what its head is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from headrace import debug
from headrace.errors import TraceError, non_finite
from headrace.frontend.capture.attention import Capture, Readers, capture, implementation
from headrace.frontend.eager.borrowed import borrowed
from headrace.frontend.eager.model import BATCH, LENGTH, DryRun, EagerModel
from headrace.frontend.eager.raw import raw_parts
from headrace.frontend.eager.signature import (
    DECODED,
    CallSignature,
    call,
    encoder_rows,
    first_tensor,
    hidden_rows,
    rows_of,
    span_logits,
)
from headrace.frontend.eager.steady import require_steady
from headrace.frontend.eager.vocabulary import end_ids
from headrace.frontend.facts.model_outputs import before_attention, own_vector, unserved
from headrace.frontend.load.multimodal import failure
from headrace.ir import Head, RawPart

# Relative to the largest value of the rows.
LOOKS_AHEAD = 1e-4


def without_target(model: EagerModel) -> EagerModel:
    """Give the decoder no target of its own where the head answers of the text: its forward makes one from the text.

    Such heads (BART's and T5's for sequences) read the row of the text's last end token, which they fail without.
    """
    if not model.signature.decodes:
        return model
    names = tuple(name for name in model.signature.inputs if name not in DECODED)
    for marker in (None, *end_ids(model.config)):
        alone = replace(model, signature=replace(model.signature, inputs=names, marker=marker))
        try:
            output = alone.run(alone.plain)
        except Exception as error:  # a model that must be given a target says so in its own way
            debug.say(debug.CODE, f"without a target: {error}")
            continue
        logits = getattr(output, "logits", None)
        if span_logits(output) is not None:
            return alone
        if logits is not None and (logits.dim() == 2 or not _has_vocabulary_head(model.module)):
            return alone
    return model


def look(model: EagerModel) -> EagerModel:
    """Run the model once on random tokens, through the captured interfaces, and look into that run.

    Raises:
        TraceError: the model's own forward fails on a plain batch, or returns no rows.
        NonFiniteError: it overflows there already.
    """
    module, inputs = model.module, model.plain
    try:
        # Additive masks suit every model's own code; whether any of it reads them shows on the way.
        with (
            capture(module, additive=True) as captured,
            torch.no_grad(),
            borrowed(module) as held,
            _returns(module) as returned,
            Readers(captured) as readers,
        ):
            output = model.call(inputs)
            changed = held.changes()
    except Exception as error:
        if (choosing := _choosing(model)) is not None:
            return look(choosing)
        what = ", ".join(model.signature.inputs) if model.signature.arrays else f"{BATCH} x {LENGTH} tokens"
        raise TraceError(failure(module, model.config, model.signature, what, error)) from error
    if changed:
        require_steady(model, output, changed)
    model.remember(inputs, output)
    return replace(model, looked=_read_run(model, output, returned, captured, readers.count > 0))


def _choosing(model: EagerModel) -> EagerModel | None:
    """The model given each text as a choice, if that is how it takes texts: it has a logit for each of a text's."""
    if model.signature.chooses or model.signature.arrays or model.signature.decodes:
        return None
    one = replace(model, signature=replace(model.signature, chooses=True))
    # Some take all but positions apart by their choices, and then go without.
    return next((made for made in (one, one.without("position_ids")) if _compares(made)), None)


def _compares(model: EagerModel) -> bool:
    inputs = model.signature.inputs
    two = {name: torch.stack((model.placed[name],) * 2, dim=1) for name in inputs if name in model.placed}
    try:
        with torch.no_grad():
            found = [model.call(model.placed), call(model.module, replace(model.signature, chooses=False), two)]
    except Exception as error:  # whatever the model raises on texts that it does not take as choices
        debug.say(debug.CODE, f"given choices: {error}")
        return False
    shapes = [tuple(logits.shape) for output in found if (logits := getattr(output, "logits", None)) is not None]
    return shapes == [(BATCH, 1), (BATCH, 2)]


def _read_run(
    model: EagerModel, output: Any, returned: list[tuple[nn.Module, Any]], captured: Capture, reads_masks: bool
) -> DryRun:
    backbone, pair, rows = _rows(model.module, model.signature, returned)
    _require_rows(rows)
    inner = [logits for _, out in returned if (logits := getattr(out, "logits", None)) is not None]
    head, width, note = read_head(model, output, rows, inner, before_attention(returned, captured.calls))
    own, maker = own_vector(output, rows, returned) if head is Head.NONE else ("", None)
    raw = head is Head.OTHER and pair is None
    if captured.calls and not reads_masks:
        causal = all(made.kind.causal for made in captured.calls)
    else:
        causal = pair is None and not model.signature.arrays and _looks_back(model, backbone)
    return DryRun(
        tuple(captured.calls), causal, reads_masks, backbone, rows.shape[-1], head, width, note,
        len(captured.recurrent), pair, rows.shape[1], own, maker, _raw(model, backbone, output, rows) if raw else (),
    )  # fmt: skip


def _raw(model: EagerModel, backbone: nn.Module, output: Any, rows: Tensor) -> tuple[RawPart, ...]:
    """How the head's tensors are served raw, by this run and one of another length."""
    inputs = model.sample(BATCH, LENGTH + 2)
    with capture(model.module, additive=True), torch.no_grad(), rows_of(backbone, hidden_rows) as longer:
        other = model.call(inputs)
    return raw_parts((output, rows), (other, longer[-1]))


def _require_rows(rows: Tensor) -> None:
    if rows.dim() != 3:
        raise TraceError(
            f"The model's hidden rows have the shape {list(rows.shape)}; [batch, sequence, width] is served."
        )
    if not torch.isfinite(rows).all():
        raise non_finite("The model's own forward on plain tokens", str(rows.dtype).removeprefix("torch."))


def _looks_back(model: EagerModel, backbone: nn.Module) -> bool:
    """Whether rows depend on the tokens before them and on none after; what a regrouped sum changes is far below.

    By the model's own code: the interfaces' operators would behave as they were taken to.
    """
    inputs = model.plain

    def changed_by(place: int) -> Tensor:
        ids = inputs["input_ids"].clone()
        ids[:, place] = (ids[:, place] + 1) % model.vocabulary
        model.call(inputs | {"input_ids": ids})
        moved = (rows[-1].double() - rows[0].double()).abs().amax((0, 2))
        return moved > LOOKS_AHEAD * rows[0].double().abs().max()

    with implementation(model.module, "eager"), torch.no_grad(), rows_of(backbone, hidden_rows) as rows:
        model.call(inputs)
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


def rows_returned(model: EagerModel, inputs: dict[str, Tensor]) -> Tensor:
    """The hidden rows [B, S, H] that the model makes of the inputs."""
    with _returns(model.module) as returned:
        model.call(inputs)
    return _rows(model.module, model.signature, returned)[2]


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
    model: EagerModel, output: Any, rows: Tensor, inner: list[Any], passing: list[Tensor]
) -> tuple[Head, int, str]:
    """Tell the head by the shape of what the model returns: [B, C], [B, S, C] or [B, S, vocabulary].

    Args:
        inner: the logits that modules within returned.
        passing: tensors that are stages on the way to the rows.
    """
    logits = getattr(output, "logits", None)
    if logits is None and (spans := span_logits(output)) is not None and spans.shape[:2] == rows.shape[:2]:
        return Head.SPAN, 2, ""
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
    return _by_shape(model, logits, rows)


def _by_shape(model: EagerModel, logits: Tensor, rows: Tensor) -> tuple[Head, int, str]:
    shape, width = tuple(logits.shape[:-1]), int(logits.shape[-1])
    module, vocabulary = model.module, model.vocabulary
    labels = getattr(model.config, "num_labels", None)
    if logits.shape == rows.shape[:2] and width != labels:
        return Head.OTHER, 0, "the model returns one number for every token"
    if shape == rows.shape[:1]:
        return Head.CHOICE if model.signature.chooses else Head.SEQUENCE, width, ""
    if model.signature.decodes and shape == model.plain[DECODED[0]].shape and width >= vocabulary:
        return Head.SEQ2SEQ_LM, width, ""
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
