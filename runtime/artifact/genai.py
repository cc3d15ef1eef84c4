"""genai_config.json: how onnxruntime-genai runs a folder, from the facts of its program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.ir import CROSS, CacheKind, OutputKind, Program, Role

# Where nothing bounds a text, and what a text has at most where its caller says nothing.
CONTEXT, LONGEST = 1 << 20, 4096
# The kind of model that genai asks nothing more of than the names of its inputs and outputs.
KIND = "decoder"


def genai_config(program: Program, cached: Program, file: str, side_files: Mapping[str, str | None]) -> Any:
    """The configuration, None for a model that onnxruntime-genai has no place for.

    It keeps keys and values of one size alone, the same in every layer, and its encoders are not ours.

    Args:
        program: the whole model's.
        cached: what the file runs.
        file: within the folder.
        side_files: of which the configurations name the tokens that begin and that pad a text.
    """
    sizes = {one.sizes for one in cached.form.caches}
    if CROSS in cached.form.groups:
        return None
    if len(sizes) != 1 or any(one.kind is not CacheKind.PAGED for one in cached.form.caches):
        return None
    decoding = program.facts.decoding
    assert decoding is not None, "the program of a language model"
    tokens, ends = _tokens(side_files), list(decoding.ends)
    context = (program.facts.limits.length if program.facts.limits else None) or CONTEXT
    return {
        "model": {
            "type": KIND,
            "bos_token_id": tokens.get("bos_token_id", ends[0] if ends else 0),
            "eos_token_id": ends or [0],
            "pad_token_id": tokens.get("pad_token_id", ends[0] if ends else 0),
            "context_length": context,
            "vocab_size": cached.signature.outputs[0].width,
            "decoder": _decoder(program, cached, file),
        },
        "search": {
            "max_length": min(decoding.max_length or LONGEST, context),
            "do_sample": decoding.temperature > 0,
            "temperature": decoding.temperature or 1.0,
            "top_k": decoding.top_k or 50,
            "top_p": decoding.top_p,
            "repetition_penalty": decoding.repetition_penalty,
            "past_present_share_buffer": False,
        },
    }


def _decoder(program: Program, cached: Program, file: str) -> dict[str, Any]:
    first, hidden = cached.nodes.attention[0], program.signature.output(OutputKind.HIDDEN)
    heads, width = cached.form.caches[0].sizes
    return {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": file,
        "head_size": width,
        "hidden_size": hidden.width if hidden else first.q_heads * width,
        "num_attention_heads": first.q_heads,
        "num_key_value_heads": heads,
        "num_hidden_layers": len(cached.form.caches) // 2,
        "inputs": _inputs(cached),
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }


def _inputs(cached: Program) -> dict[str, str]:
    from headrace.backends.onnx import names

    # Its own keys for these are the names.
    taken = [names.IDS, names.PADDING, *([names.POSITIONS] if cached.signature.has(Role.POSITIONS) else [])]
    return dict(zip(taken, taken, strict=True)) | {
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    }


def _tokens(side_files: Mapping[str, str | None]) -> dict[str, int]:
    """The special tokens that the folder's configurations name; generation's own count more."""
    found: dict[str, int] = {}
    for name in ("config.json", "generation_config.json"):
        held = json.loads(side_files.get(name) or "{}")
        named = {key: held.get(key) for key in ("bos_token_id", "pad_token_id")}
        found |= {key: value for key, value in named.items() if isinstance(value, int)}
    return found
