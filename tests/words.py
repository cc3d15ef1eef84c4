"""Word-level tokenizers for the tiny models: w5 to w95 are their words, the first five ids are special."""

from __future__ import annotations

from typing import Any

from tests.tiny import VOCABULARY

SPECIAL = {"[CLS]": 0, "[PAD]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": 4}
WORDS = {f"w{i}": i for i in range(5, VOCABULARY)}


def bert_like(**options: Any) -> Any:
    """[CLS] a [SEP] b [SEP], the second text of type 1."""
    from tokenizers import processors

    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
    ids = [("[CLS]", SPECIAL["[CLS]"]), ("[SEP]", SPECIAL["[SEP]"])]
    made = _fast(processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids), **options)
    if "model_input_names" not in options:
        made.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return made


def gpt_like(**options: Any) -> Any:
    """Nothing is added to a text."""
    return _fast(None, **options)


def _fast(processor: Any, **options: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(SPECIAL | WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if processor is not None:
        tokenizer.post_processor = processor
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        **options,
    )
