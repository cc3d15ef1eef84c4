"""Rows beside those of every text architecture: variants that a flag makes, and the image and audio models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from tests.tiny import CONFIGS


@dataclass(frozen=True)
class Named:
    """A configuration under a label of its own, and the auto class that builds it."""

    head: str
    config: str
    arguments: dict[str, Any]

    def build(self) -> nn.Module:
        """A model with random weights."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.arguments)
        built: nn.Module = getattr(transformers, self.head).from_config(config).eval()
        return built


# What a flag of the configuration makes of an architecture; two of them contradict the model and are refused.
VARIANTS = (
    "bert-decoder", "modernbert-mean", "qwen2-bidirectional", "qwen2-mixed-window", "qwen3-bidirectional",
    "llama-bidirectional", "llama-ignored-flag", "mistral-long-window", "mistral-bidirectional",
    "gemma-contradiction", "gemma3-bidirectional",
)  # fmt: skip
LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
IMAGE = LAYERS | {"image_size": 32, "patch_size": 8}
SPEECH = LAYERS | {
    "vocab_size": 96, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3,
}  # fmt: skip
WHISPER = {
    "vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8,
    "max_source_positions": 20, "max_target_positions": 32, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "decoder_start_token_id": 2, "begin_suppress_tokens": None, "suppress_tokens": None,
}  # fmt: skip
IMAGES, SOUNDS = "AutoModelForImageClassification", "AutoModelForAudioClassification"
CLIP_TEXT = LAYERS | {"vocab_size": 96, "max_position_embeddings": 64, "pad_token_id": 1, "eos_token_id": 2}

NAMED: dict[str, Named] = {
    **{name: Named("AutoModel", CONFIGS[name][0], CONFIGS[name][1]) for name in VARIANTS},
    "vit": Named("AutoModel", "ViTConfig", IMAGE),
    "vit (classifier)": Named(IMAGES, "ViTConfig", IMAGE),
    "deit": Named("AutoModel", "DeiTConfig", IMAGE),
    "dinov2": Named("AutoModel", "Dinov2Config", IMAGE),
    "dinov2 (classifier)": Named(IMAGES, "Dinov2Config", IMAGE),
    "siglip (vision tower)": Named("AutoModel", "SiglipVisionConfig", IMAGE),
    "siglip (text tower)": Named("AutoModel", "SiglipTextConfig", CLIP_TEXT),
    "clip (vision tower)": Named("AutoModel", "CLIPVisionConfig", IMAGE),
    "clip (text tower)": Named("AutoModel", "CLIPTextConfig", CLIP_TEXT),
    "wav2vec2": Named("AutoModel", "Wav2Vec2Config", SPEECH),
    "wav2vec2 (classifier)": Named(SOUNDS, "Wav2Vec2Config", SPEECH),
    "hubert": Named("AutoModel", "HubertConfig", SPEECH),
    "hubert (classifier)": Named(SOUNDS, "HubertConfig", SPEECH),
    "whisper": Named("AutoModel", "WhisperConfig", WHISPER),
    "whisper (classifier)": Named(SOUNDS, "WhisperConfig", WHISPER),
}
