"""A tiny configuration of every text architecture that the installed transformers knows.

The denominator is not chosen: every model type of the six text auto classes is tried. A configuration is shrunk by
what its attributes are called; a few architectures need sizes that agree with one another, which `AGREEING` gives.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY, LENGTH = 96, 160
LARGEST = 5_000_000  # parameters; a model that stays larger was not made small
HEADS = {
    "AutoModel": modeling_auto.MODEL_MAPPING_NAMES,
    "AutoModelForMaskedLM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "AutoModelForCausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForSequenceClassification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForTokenClassification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForSeq2SeqLM": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
}
# Attribute names by what they size. The first group that holds a name says its value.
SIZES: tuple[tuple[int, frozenset[str]], ...] = (
    (VOCABULARY, frozenset({"vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size", "src_vocab_size"})),
    (LENGTH, frozenset({"max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_source_positions",
                        "max_target_positions", "context_length"})),
    (32, frozenset({"hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim", "embedding_size",
                    "word_embed_proj_dim", "model_dim", "d_embed", "attention_hidden_size", "lru_width"})),
    (2, frozenset({"num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
                   "num_decoder_layers", "num_encoder_layers"})),
    (4, frozenset({"num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
                   "decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads",
                   "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "mamba_dt_rank",
                   "linear_num_value_heads"})),
    (2, frozenset({"num_key_value_heads", "num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token",
                   "linear_num_key_heads", "multi_query_group_num"})),
    (8, frozenset({"head_dim", "d_kv", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "mamba_d_state",
                   "state_size", "mamba_d_head", "mamba_headdim", "mamba_chunk_size", "chunk_size",
                   "linear_key_head_dim", "linear_value_head_dim", "attention_chunk_size", "kv_channels"})),
    (16, frozenset({"moe_intermediate_size", "kv_lora_rank", "q_lora_rank", "qk_head_dim", "expert_ffn_hidden_size",
                    "shared_expert_intermediate_size", "position_buckets", "hidden_size_per_layer_input"})),
    (64, frozenset({"intermediate_size", "ffn_dim", "n_inner", "d_ff", "hidden_dim", "d_inner", "encoder_ffn_dim",
                    "decoder_ffn_dim", "intermediate_size_mlp", "shared_intermediate_size", "ffn_hidden_size",
                    "dense_intermediate_size"})),
    (6, frozenset({"sliding_window", "local_attention", "sliding_window_size", "attention_window"})),
)  # fmt: skip
PER_LAYER = frozenset({"mlp_layer_types", "indexer_types"})  # a word for each layer, beside what its attention is
SPECIAL = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
# Arguments that make an input something else than text.
OTHER_INPUTS = frozenset({"pixel_values", "input_features", "input_values", "image", "images", "visual_feats", "audio"})
OTHER_PARTS = ("vision", "audio", "codec", "acoustic", "speech", "hifigan", "depth", "video", "waveform", "flow")

LATENT: dict[str, Any] = {"num_key_value_heads": 4}  # latent attention has a key head for every query head
THREE_AXES: dict[str, Any] = {"mrope_section": [2, 1, 1], "rope_type": "default", "rope_theta": 10000.0}
STATE: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_expand": 2}
GEMMA_HALF: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                              "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "sliding_window": 6,
                              "query_pre_attn_scalar": 8, "max_position_embeddings": 160}  # fmt: skip
# Sizes that must agree with one another, and switches without which a model takes no plain text; `...` leaves out.
ONE_GROUP: dict[str, Any] = {"n_group": 1, "topk_group": 1}  # of experts, which are few
AGREEING: dict[str, dict[str, Any]] = {
    "bailing_hybrid": ONE_GROUP,
    "bamba": STATE | {"attn_layer_indices": [1], "layer_types": ..., "num_hidden_layers": 2},
    "beam": ONE_GROUP,
    "bigbird_pegasus": {"attention_type": "original_full"},
    "big_bird": {"attention_type": "original_full"},
    "codegen": {"rotary_dim": 4},
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"]},
    "deepseek_v3": ONE_GROUP,
    "deepseek_v32": ONE_GROUP,
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True,
                   "norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0},
    "dory": {"num_key_value_heads": 4},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4,
              "head_dim": 8},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 5, "vocab_size": 96, "pad_token_id": 1},
    "esmc": LATENT,
    "falcon_h1": STATE | {"mamba_d_ssm": 32, "mamba_n_heads": 4, "num_hidden_layers": 2, "layer_types": ...},
    "falcon_mamba": {"num_hidden_layers": 2},
    "flint": {"mlp_only_layers": [0]},
    "funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1},
    "gemma3n_text": {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4,
                     "num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
                     "intermediate_size": 64},
    "glm4v_moe_text": {"rope_parameters": THREE_AXES | {"mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}},
    "glm4v_text": {"rope_parameters": THREE_AXES},
    "glm_image_text": {"rope_parameters": THREE_AXES},
    "glm_ocr_text": {"rope_parameters": THREE_AXES},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 6, "num_layers": 2},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": STATE | {"layer_types": ["mamba", "attention"], "num_hidden_layers": 2},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "hunyuan_vl_text": {"head_dim": 8, "num_key_value_heads": 2},
    "hy_v4_vl_text": {"rope_parameters": THREE_AXES},
    "jamba": {"num_hidden_layers": 2, "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_period": 2,
              "expert_layer_offset": 1, "use_mamba_kernels": False},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2, "num_dense_layers": 1},
    "lilt": {"channel_shrink_ratio": 2, "hidden_size": 48},
    "luke": {"entity_vocab_size": 8, "entity_emb_size": 16},
    "mamba": {"num_hidden_layers": 2},
    "mamba2": {"num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "n_groups": 1, "expand": 2},
    "ministral": {"head_dim": 8},
    "mistral4": {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "head_dim": ..., "qk_head_dim": ...},
    "mpt": {"max_seq_len": 160},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "qwen2_5_vl_text": {"rope_parameters": THREE_AXES},
    "qwen2_vl_text": {"rope_parameters": THREE_AXES},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 6,
                        "block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [10, 16], "attn_layers": ["local", "local"],
                 "attention_head_size": 8, "is_decoder": False, "local_attn_chunk_length": 8, "feed_forward_size": 64},
    "roc_bert": {"pronunciation_vocab_size": 96, "pronunciation_embed_dim": 8, "shape_vocab_size": 96,
                 "shape_embed_dim": 8},
    "smollm3": {"no_rope_layers": [1, 0]},
    "switch_transformers": {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    "xlm": {"emb_dim": 32},
    "xlstm": {"num_hidden_layers": 2, "head_dim": ..., "chunk_size": 16},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "zamba": {"num_hidden_layers": 6, "attn_layer_offset": 1, "attn_layer_period": 3, "n_mamba_heads": 2,
              "layer_types": ..., "attention_head_dim": 16, "attention_hidden_size": 64},
    "zamba2": {"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"], "n_mamba_heads": 8,
               "mamba_ngroups": 1, "mamba_expand": 2, "num_mem_blocks": 1, "use_mem_rope": True, "adapter_rank": 8,
               "attention_head_dim": 16, "attention_hidden_size": 64, "layer_types": ..., "num_key_value_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
             "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 64, "moe_num_experts": 4}},
    "axk1": {"n_group": 1, "topk_group": 1},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "t5": {"decoder_start_token_id": 1},
    "glm5_next_text": {"num_key_value_heads": 4, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8},
    "t5gemma": {"encoder": GEMMA_HALF, "decoder": GEMMA_HALF | {"is_decoder": True, "cross_attention_hidden_size": 32}},
}  # fmt: skip


def model_class(head: str, model_type: str) -> type[nn.Module]:
    """The class that an auto class builds for a model type."""
    named = HEADS[head][model_type]
    found: type[nn.Module] = getattr(transformers, named if isinstance(named, str) else named[0])
    return found


def text_rows() -> Iterator[tuple[str, str]]:
    """Every (model type, auto class) of the six whose model reads token ids and nothing else."""
    for name in sorted({name for mapping in HEADS.values() for name in mapping if name in CONFIG_MAPPING}):
        for head, mapping in HEADS.items():
            if name in mapping and _is_text(name, head):
                yield name, head


def _is_text(model_type: str, head: str) -> bool:
    try:
        kind = model_class(head, model_type)
        names = inspect.signature(kind.forward).parameters
    except (AttributeError, ImportError):  # needs a library that is not here
        return False
    demanded = [p.name for p in list(names.values())[1:] if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    parts = getattr(CONFIG_MAPPING[model_type], "sub_configs", {})
    return (
        "input_ids" in names
        and not OTHER_INPUTS & set(names)
        and set(demanded) <= {"input_ids"}
        and not any(word in part for word in OTHER_PARTS for part in parts)
    )


def tiny_config(model_type: str) -> PretrainedConfig:
    """The configuration with every size made small, and each kind of layer that its default has once."""
    kind = CONFIG_MAPPING[model_type]
    given = _shrunk(kind()) | AGREEING.get(model_type, {})
    return kind(**{name: value for name, value in given.items() if value is not ...})


def _shrunk(default: PretrainedConfig) -> dict[str, Any]:
    values = default.to_dict()
    # A switch set to None or 0 stays off.
    given: dict[str, Any] = {name: size for size, names in SIZES for name in names if values.get(name)}
    if "kv_lora_rank" in given and "num_key_value_heads" in given:
        given |= LATENT
    given |= {name: value for name, value in SPECIAL.items() if name in values}
    if values.get("first_k_dense_replace"):  # of two layers, one with experts
        given |= {"first_k_dense_replace": 1}
    layers = values.get("layer_types")
    if layers:
        kept = list(dict.fromkeys(layers))
        kept = kept if len(kept) > 1 else kept * 2
        given |= {"layer_types": kept, "num_hidden_layers": len(kept)}
    for name in PER_LAYER & values.keys():
        kept, count = list(dict.fromkeys(values[name] or ())), given.get("num_hidden_layers", 2)
        given |= {name: (kept * count)[:count]} if kept else {}
    return given


def tiny_model(model_type: str, head: str) -> nn.Module:
    """A model with random weights from the tiny configuration.

    Raises:
        ValueError: it is not small.
    """
    kind = getattr(transformers, head)
    with torch.device("meta"):  # parts that the configuration does not reach may be of their full size
        count = sum(parameter.numel() for parameter in kind.from_config(tiny_config(model_type)).parameters())
    if count > LARGEST:
        raise ValueError(f"{count} parameters: the configuration did not make it small")
    torch.manual_seed(0)
    built: nn.Module = kind.from_config(tiny_config(model_type)).eval()
    return built


def require_runs(model: nn.Module) -> None:
    """Run the model once on text, or on the arrays that it reads; raises what it raises."""
    names = inspect.signature(model.forward).parameters
    if "input_ids" not in names:
        return  # what else it reads is the frontend's to say
    ids = torch.arange(22).reshape(2, 11) % (VOCABULARY - 3) + 3
    ids[:, -1] = SPECIAL["eos_token_id"]  # which some heads look for
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids[:, :5]}
    with torch.no_grad():
        try:
            model(**{name: value for name, value in given.items() if name in names and name != "decoder_input_ids"})
        except ValueError:  # an encoder-decoder that does not make the decoder's ids of the text
            model(**{name: value for name, value in given.items() if name in names})
