"""What is measured: models of real shapes, requests and texts of drawn lengths, and the arithmetic that they take."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

DTYPE = torch.bfloat16


@dataclass
class Shape:
    """A model's sizes, how its vectors are pooled, and whether its attention is causal."""

    config: str
    pooling: str = "mean"
    sizes: dict[str, Any] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """As `config.json` of a checkpoint names it, which vLLM goes by."""
        return self.config.removesuffix("Config") + ("ForCausalLM" if self.pooling == "last" else "Model")


SHAPES = {
    "bert-base": Shape("BertConfig"),
    "xlmr-large": Shape(
        "XLMRobertaConfig",
        sizes={
            "vocab_size": 250002, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
            "intermediate_size": 4096, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1,
        },
    ),
    "modernbert-base": Shape("ModernBertConfig"),
    "qwen3-0.6b": Shape(
        "Qwen3Config",
        "last",
        {
            "vocab_size": 151669, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        },
    ),
}  # fmt: skip


def draw() -> list[int]:
    """Lengths as texts have them."""
    generator = torch.Generator().manual_seed(7)
    return torch.exp(torch.randn(4096, generator=generator) * 0.8 + 4.5).round().clamp(8, 512).long().tolist()


def prose(lengths: list[int]) -> list[str]:
    """Texts of about those lengths in tokens, from the documentation that every Python brings."""
    from pydoc_data.topics import topics

    words = [word for text in topics.values() for word in text.split()] * 8
    begins = np.cumsum([0, *lengths]) * 3 // 5
    return [" ".join(words[begin:end]) for begin, end in itertools.pairwise(begins)]


def matmul_rate() -> float:
    """FLOP/s of a large product on random data: the peak that shares are of."""
    from triton.testing import do_bench

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=DTYPE) for _ in range(2))
    return 2 * 8192**3 / (do_bench(lambda: a @ b, warmup=50, rep=200, return_mode="median") / 1e3)


def flops(config: Any, lengths: list[int], causal: bool) -> float:
    """Of the products of a packed run."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    size = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    keys = (getattr(config, "num_key_value_heads", None) or config.num_attention_heads) * size
    queries, gated = config.num_attention_heads * size, hasattr(config, "rope_parameters")
    products = hidden * (2 * queries + 2 * keys) + (3 if gated else 2) * hidden * config.intermediate_size
    squares = float((np.array(lengths, np.float64) ** 2).sum())
    return 2 * layers * products * sum(lengths) + 4 * layers * queries * squares * (0.5 if causal else 1)


def tokens_of(tokenizer: Any, texts: list[str]) -> int:
    """Real tokens in texts."""
    return sum(map(len, tokenizer(texts, truncation=True, max_length=512)["input_ids"]))
