"""Tiny folders of BGE-M3's form, and what FlagEmbedding's BGEM3FlagModel computes of a text, by its own steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.tiny import build
from tests.words import WORDS

LONGEST, WIDTH, MANY = 60, 32, 24
# Of a sentence-transformers folder beside it, as BAAI/bge-m3 has them.
MODULES: dict[str, Any] = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "config_sentence_transformers.json": {"__version__": {"sentence_transformers": "2.2.2"}},
    "sentence_bert_config.json": {"max_seq_length": LONGEST, "do_lower_case": False},
    "1_Pooling/config.json": {
        "word_embedding_dimension": WIDTH,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
    },
}


class Answer(NamedTuple):
    """A vector, the weight of each token id that has one, and a vector for each token but the first."""

    dense: Any
    lexical: dict[int, float]
    vectors: Any


def xlm_roberta_like() -> Any:
    """A token a word, with XLM-R's special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4}
    tokenizer = Tokenizer(models.WordLevel(special | WORDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", cls_token="<s>", eos_token="</s>", sep_token="</s>",
        pad_token="<pad>", unk_token="<unk>", mask_token="<mask>", model_max_length=LONGEST,
    )  # fmt: skip


def write_folder(folder: Path, modules: bool) -> Path:
    """A folder as FlagEmbedding writes one, with sentence-transformers' files beside it or without."""
    build("xlm-roberta").save_pretrained(folder)
    xlm_roberta_like().save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    for name, width in (("colbert_linear.pt", MANY), ("sparse_linear.pt", 1)):
        held = {"weight": 0.3 * torch.randn(width, WIDTH, generator=generator), "bias": torch.full((width,), 0.05)}
        torch.save(held, folder / name)
    if modules:
        (folder / "1_Pooling").mkdir()
        for name, content in MODULES.items():
            (folder / name).write_text(json.dumps(content))
    return folder


class FlagEmbedding:
    """Answers each text alone, as its model of that folder does."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.folder = folder
        self.model, self.tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
        self.layers = {name: torch.load(folder / f"{name}_linear.pt") for name in ("colbert", "sparse")}

    def save_pretrained(self, folder: str) -> None:
        """A copy of the folder, the tokenizer as it is now."""
        shutil.copytree(self.folder, folder)
        self.tokenizer.save_pretrained(folder)

    @torch.no_grad()
    def encode(self, text: str) -> Answer:
        tokenizer, unit = self.tokenizer, torch.nn.functional.normalize
        given = tokenizer(text, return_tensors="pt", truncation=True, max_length=LONGEST)
        rows = self.model(**given).last_hidden_state[0]
        weights = torch.relu(self._linear("sparse", rows))[:, 0]
        unused = {tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
        lexical: dict[int, float] = {}
        for index, weight in zip(given["input_ids"][0].tolist(), weights.tolist(), strict=True):
            if index not in unused and weight > lexical.get(index, 0):
                lexical[index] = weight
        vectors = unit(self._linear("colbert", rows[1:]), dim=-1)
        return Answer(unit(rows[0], dim=-1).numpy(), lexical, vectors.numpy())

    def _linear(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return rows @ self.layers[name]["weight"].T + self.layers[name]["bias"]
