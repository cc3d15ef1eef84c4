"""A tiny decoder with random weights and a head that labels tokens, written as the folder that a user would bring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

HIDDEN, LAYERS, HEADS, KEY_HEADS, HEAD_DIM, INNER, VOCABULARY, LABELS = 32, 2, 4, 2, 8, 64, 96, 3
CONFIG = {
    "architectures": ["Qwen3ForTokenClassification"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": INNER,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "id2label": {"0": "O", "1": "B-NAME", "2": "I-NAME"},
}
LAYER = {
    "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": (KEY_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (KEY_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
    "self_attn.q_norm": (HEAD_DIM,),
    "self_attn.k_norm": (HEAD_DIM,),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
}


def write_decoder(folder: Path) -> Path:
    """Write config.json and model.safetensors; there is no tokenizer, since nobody trained it on any text."""
    draw = np.random.default_rng(0)

    def tensor(shape: tuple[int, ...]) -> NDArray[Any]:
        scale, shift = (0.2, 0.0) if len(shape) > 1 else (0.0, 1.0)  # norms begin at one
        return (scale * draw.standard_normal(shape) + shift).astype(np.float32)

    shapes = {f"model.layers.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in LAYER.items()}
    shapes |= {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    shapes |= {"score.weight": (LABELS, HIDDEN), "score.bias": (LABELS,)}
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    save_file({name: tensor(shape) for name, shape in shapes.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder
