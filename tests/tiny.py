"""Tiny random models of real architectures: what the tests run instead of real weights.

Each is built from a transformers configuration with a fixed seed. Matrices are drawn wide (0.15, not 0.02) and biases
and norms are moved off their neutral values, so that a dropped bias, a wrong mask or a wrong scale shows.
"""

from __future__ import annotations

from typing import Any

VOCABULARY = 96
PAD, BOS, EOS = 1, 0, 2


def encoder(**changes: Any) -> dict[str, Any]:
    """Arguments that most configurations share."""
    shared = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    return shared | changes


def decoder(**changes: Any) -> dict[str, Any]:
    """The same with grouped queries: 4 query heads over 2 key heads."""
    return encoder(num_key_value_heads=2, head_dim=8) | changes


LAYERS = {"layer_types": ["sliding_attention", "full_attention"]}
MODERN = {"global_attn_every_n_layers": 2, "num_hidden_layers": 3, "cls_token_id": BOS, "sep_token_id": EOS}
GEMMA3 = decoder(sliding_window=4, query_pre_attn_scalar=8, **LAYERS)
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
PATCHES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 24,
    "patch_size": 8,
}
# 40 samples make the first row, 20 more the next.
WAVES = encoder(
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    conv_dim=(16, 16, 16),
    conv_kernel=(10, 3, 3),
    conv_stride=(5, 2, 2),
    num_feat_extract_layers=3,
    classifier_proj_size=16,
)
SPECIAL = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
DISENTANGLED = {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
FALCON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}

MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
    "mamba_expand": 2,
}
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
T5 |= {"relative_attention_num_buckets": 8, "decoder_start_token_id": PAD, "pad_token_id": PAD, "eos_token_id": EOS}
HALF = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
BART = {f"{half}_{name}": value for half in ("encoder", "decoder") for name, value in HALF.items()}
BART |= {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "max_position_embeddings": 64,
    "decoder_start_token_id": EOS,
    **SPECIAL,
}
GEMMA2 = decoder(sliding_window=4, query_pre_attn_scalar=8)

# name: (configuration class, its arguments)
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", encoder()),
    "bert-decoder": ("BertConfig", encoder(is_decoder=True)),
    "roberta": ("RobertaConfig", encoder()),
    "xlm-roberta": ("XLMRobertaConfig", encoder()),
    "electra": ("ElectraConfig", encoder(embedding_size=32)),
    "distilbert": (
        "DistilBertConfig",
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 64,
            "max_position_embeddings": 64,
            "pad_token_id": PAD,
        },
    ),
    "albert": ("AlbertConfig", encoder(embedding_size=32)),
    "modernbert": ("ModernBertConfig", encoder(local_attention=8, **MODERN)),
    "modernbert-mean": ("ModernBertConfig", encoder(local_attention=8, classifier_pooling="mean", **MODERN)),
    "clip-text": ("CLIPTextConfig", encoder()),
    "qwen2": ("Qwen2Config", decoder()),
    "qwen2-bidirectional": ("Qwen2Config", decoder(is_causal=False)),
    "qwen2-mixed-window": ("Qwen2Config", decoder(use_sliding_window=True, sliding_window=6, max_window_layers=1)),
    "qwen3": ("Qwen3Config", decoder()),
    "qwen3-bidirectional": ("Qwen3Config", decoder(is_causal=False)),
    "llama": ("LlamaConfig", decoder()),
    "llama-bidirectional": ("LlamaConfig", decoder(is_causal=False)),
    "llama-ignored-flag": ("LlamaConfig", decoder(use_bidirectional_attention=True)),
    "mistral": ("MistralConfig", decoder(sliding_window=4)),
    "mistral-long-window": ("MistralConfig", decoder(sliding_window=4096)),
    "mistral-bidirectional": ("MistralConfig", decoder(sliding_window=4, is_causal=False)),
    "gemma": ("GemmaConfig", decoder()),
    "gemma-contradiction": ("GemmaConfig", decoder(use_bidirectional_attention=True)),
    "gemma2": ("Gemma2Config", decoder(sliding_window=6, query_pre_attn_scalar=8)),
    "gemma3": ("Gemma3TextConfig", GEMMA3),
    "gemma3-bidirectional": ("Gemma3TextConfig", GEMMA3 | {"use_bidirectional_attention": True}),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, **SPECIAL},
    ),
    "opt": (
        "OPTConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "ffn_dim": 64,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
            **SPECIAL,
        },
    ),
    "gpt-oss": ("GptOssConfig", decoder(sliding_window=6, num_local_experts=2, num_experts_per_tok=1, **LAYERS)),
    "mixtral": ("MixtralConfig", decoder(**EXPERTS)),
    "aria-experts": ("AriaTextConfig", decoder(moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1)),
    "llama4-chunked": (
        "Llama4TextConfig",
        decoder(
            attention_chunk_size=8,
            num_local_experts=2,
            intermediate_size_mlp=64,
            num_hidden_layers=4,
            interleave_moe_layer_step=8,
        ),
    ),
    "lfm2": ("Lfm2Config", decoder(layer_types=["conv", "full_attention"], block_multiple_of=8)),
    # State-space models and gated delta rules, alone and beside attention.
    "mamba": (
        "MambaConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, **SPECIAL},
    ),
    "mamba2": (
        "Mamba2Config",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 8,
            "expand": 2,
            **SPECIAL,
        },
    ),
    "bamba": ("BambaConfig", decoder(attn_layer_indices=[1], **MAMBA2)),
    "jamba": (
        "JambaConfig",
        decoder(
            attn_layer_offset=1,
            attn_layer_period=2,
            num_experts=2,
            num_experts_per_tok=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=8,
            mamba_dt_rank=4,
            use_mamba_kernels=False,
        ),
    ),
    "qwen3-next": (
        "Qwen3NextConfig",
        decoder(
            layer_types=["linear_attention", "full_attention"],
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            decoder_sparse_step=1,
        ),
    ),
    # Encoder-decoders.
    "t5": ("T5Config", T5),
    "bart": ("BartConfig", BART),
    "mbart": ("MBartConfig", BART),
    "marian": ("MarianConfig", BART),
    "pegasus": ("PegasusConfig", BART),
    # Its own attention, rows along the first dimension, and a mask made of the decoder's padding.
    "fsmt": (
        "FSMTConfig",
        BART | {"langs": ["en", "de"], "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY},
    ),
    "t5gemma": ("T5GemmaConfig", {"encoder": GEMMA2, "decoder": GEMMA2, "vocab_size": VOCABULARY, **SPECIAL}),
    "minimax": (
        "MiniMaxConfig",
        decoder(
            layer_types=["linear_attention", "full_attention"],
            block_size=4,
            num_local_experts=4,
            num_experts_per_tok=2,
        ),
    ),
    "recurrent-gemma": (
        "RecurrentGemmaConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 64,
            "lru_width": 32,
            "attention_window_size": 6,
            **SPECIAL,
        },
    ),
    "rwkv": (
        "RwkvConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "attention_hidden_size": 32,
            "context_length": 64,
            **SPECIAL,
        },
    ),
    "xlstm": (
        "xLSTMConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_blocks": 2, "num_heads": 4, "chunk_size": 8, **SPECIAL},
    ),
    # These bypass transformers' attention interface; the last one convolves over the tokens besides.
    # These compute attention in code of their own; the last one convolves over the tokens besides.
    "mpnet": ("MPNetConfig", encoder()),
    "bloom": ("BloomConfig", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "deberta": ("DebertaConfig", encoder(max_relative_positions=8, **DISENTANGLED)),
    "deberta-v2": (
        "DebertaV2Config",
        encoder(position_buckets=8, share_att_key=True, norm_rel_ebd="layer_norm", **DISENTANGLED),
    ),
    "mpt": ("MptConfig", {"vocab_size": VOCABULARY, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
    "falcon": ("FalconConfig", FALCON | {"alibi": False, "multi_query": True}),
    "falcon-alibi": ("FalconConfig", FALCON | {"alibi": True, "multi_query": False}),
    "gpt-neo": (
        "GPTNeoConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 64,
            **SPECIAL,
        },
    ),
    "openai-gpt": (
        "OpenAIGPTConfig",
        {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, **SPECIAL},
    ),
    "xlm": (
        "XLMConfig",
        {
            "vocab_size": VOCABULARY,
            "emb_dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": 64,
            "pad_index": PAD,
        },
    ),
    "convbert": ("ConvBertConfig", encoder(embedding_size=32, conv_kernel_size=3)),
    # Head dims that differ: 16 for queries and keys (8 of them rotated), 12 for values.
    "deepseek-v3": (
        "DeepseekV3Config",
        encoder(
            num_key_value_heads=4,
            moe_intermediate_size=16,
            n_routed_experts=4,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            kv_lora_rank=16,
            q_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=12,
        ),
    ),
    # These read arrays in place of token ids.
    "vit": ("ViTConfig", PATCHES),
    "dinov2": ("Dinov2Config", PATCHES),
    "deit": ("DeiTConfig", PATCHES),
    "beit": ("BeitConfig", PATCHES),
    "clip-vision": ("CLIPVisionConfig", PATCHES | {"projection_dim": 16}),
    "siglip-vision": ("SiglipVisionConfig", PATCHES),
    "siglip-text": ("SiglipTextConfig", encoder()),
    "clip": ("CLIPConfig", {"text_config": encoder(), "vision_config": PATCHES, "projection_dim": 16}),
    "siglip": ("SiglipConfig", {"text_config": encoder(), "vision_config": PATCHES}),
    "wav2vec2": ("Wav2Vec2Config", WAVES),
    "wav2vec2-layer-norm": ("Wav2Vec2Config", WAVES | {"feat_extract_norm": "layer", "do_stable_layer_norm": True}),
    "hubert": ("HubertConfig", WAVES),
    "whisper": (
        "WhisperConfig",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "max_target_positions": 32,
            "classifier_proj_size": 16,
            "decoder_start_token_id": EOS,
            **SPECIAL,
        },
    ),
    # No attention at all: a Fourier transform over the sequence, padding and all.
    "fnet": ("FNetConfig", encoder(tpu_short_seq_length=64)),
}


def config_of(name: str, **overrides: Any) -> Any:
    """A fresh configuration; transformers shares the object with the model built from it."""
    import transformers

    kind, arguments = CONFIGS[name]
    return getattr(transformers, kind)(**(arguments | overrides))


def build(name: str, head: str = "AutoModel", seed: int = 0, **overrides: Any) -> Any:
    """An eager model in eval mode and float32; `head` is an Auto class of transformers, or any class of its."""
    import torch
    import transformers

    torch.manual_seed(seed)
    kind = getattr(transformers, head)
    config = config_of(name, **overrides)
    model = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    return randomise(model, seed).eval()


def randomise(model: Any, seed: int = 0) -> Any:
    """Draw every parameter anew; see the module's docstring."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.15 * noise if parameter.dim() > 1 else parameter + 0.1 * noise)
    return model


def checkpoint(model: Any, name: str = "tiny", **fields: Any) -> Any:
    """The model as the frontend's loader would hand it over."""
    from headrace.frontend.load.checkpoint import Checkpoint

    config = next((c for m in model.modules() if hasattr(c := getattr(m, "config", None), "to_diff_dict")), None)
    plain: dict[str, Any] = {"tokenizer": None, "sentence": None, "missing": ()}
    return Checkpoint(name=name, module=model, config=config, **(plain | fields))


def token_ids(length: int, batch: int = 1, seed: int = 0) -> Any:
    """Random token ids [batch, length], none of them special."""
    import torch

    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def fed(program: Any, ids: Any, mask: Any = None, target: Any = None, target_mask: Any = None) -> dict[str, Any]:
    """The program's inputs for token ids [batch, length]; the mask, on whichever side, decides the positions.

    `target` is what a decoder is given, unpadded where it has no mask.
    """
    import torch

    mask = torch.ones_like(ids) if mask is None else mask
    positions = (mask.cumsum(1) - 1).clamp(min=0) + program.facts.positions.offset
    given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "token_type_ids": ids * 0}
    if target is not None:
        real = torch.ones_like(target) if target_mask is None else target_mask
        given |= {"decoder_input_ids": target, "decoder_attention_mask": real}
    return {name: given[name] for name in program.signature.input_names}


def outputs_of(program: Any, ids: Any, mask: Any = None) -> dict[str, Any]:
    """What the graph returns for token ids, by the name of the output."""
    from headrace import graphs

    outputs, _ = graphs.run(program.graph, fed(program, ids, mask))
    return {output.name: value for output, value in zip(program.signature.outputs, outputs, strict=True)}


def rows_of(program: Any, ids: Any, mask: Any = None) -> Any:
    """The hidden rows of the graph [batch, length, width]."""
    return outputs_of(program, ids, mask)["hidden"]


def arrays(program: Any, count: int = 1, rows: int = 7, seed: int = 0) -> list[Any]:
    """That many random requests, without a batch axis, for a program that reads arrays."""
    from headrace.sample import draw

    return [draw(program.signature.arrays[0], 1, rows, seed=1000 * seed + number)[0].numpy() for number in range(count)]
