"""Tokenizers of the families that models bring, trained on four lines, and facts of a program that reads them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from headrace.ir import (
    Head,
    Limits,
    Output,
    OutputKind,
    Positions,
    PositionSource,
    Program,
    Source,
    Stage,
)
from headrace.runtime.text.encoded import Encoded
from tests.synthetic import token_inputs

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CORPUS = [
    "the quick brown fox jumps over the lazy dog, and doesn't stop.",
    "Pack my box with five dozen liquor jugs! 12345 67890 aaaa abab",
    "naïve café 東京都 こんにちは 世界 🎉🎊 Привет мир\nline two\tafter a tab",
    "def f(x):\n    return x + 1  # a comment\n\n\nprint(f(2))",
]


def program(**facts: Any) -> Program:
    """A program of facts alone."""
    plain: dict[str, Any] = {
        "exported": None,
        "source": Source("test", "", (), 0),
        "stage": Stage.TYPED,
        "dtype": "float32",
        "inputs": token_inputs("input_ids", "attention_mask", "position_ids", "token_type_ids"),
        "outputs": (Output("hidden", OutputKind.HIDDEN, 8),),
        "head": Head.NONE,
        "vocabulary": 1_000_000,
        "positions": Positions(PositionSource.INPUT),
        "limits": Limits(None, "nothing in the model bounds the length"),
    }
    return Program.of(**(plain | facts))


def limited(length: int | None, **facts: Any) -> Program:
    return program(limits=Limits(length, f"a position table of {length} rows"), **facts)


def wrapped(backend: Tokenizer, **settings: Any) -> Any:
    import transformers

    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(backend.to_str()), **settings)


@functools.cache  # training twice does not give the same ids
def trained(kind: str) -> Tokenizer:
    if kind == "wordpiece":
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL))
        backend.decoder = decoders.WordPiece()
    elif kind == "byte_level":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
        backend.decoder = decoders.ByteLevel()
    elif kind == "unigram":
        backend = Tokenizer(models.Unigram())
        backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="[UNK]")
        backend.train_from_iterator(CORPUS, trainer)
        backend.decoder = decoders.Metaspace()
    else:
        backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        special = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=special))
    return backend


def templated(backend: Tokenizer, single: str, pair: str, **special: int) -> Tokenizer:
    tokens = [(f"[{name}]", number) for name, number in special.items()] if "CLS" in special else [("<s>", 1)]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
    return backend


def wordpiece(**settings: Any) -> Any:
    """BERT's: a normaliser that drops and spaces out characters, words, [CLS] and [SEP], token types."""
    backend = templated(trained("wordpiece"), "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", CLS=2, SEP=3)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return wrapped(backend, unk_token="[UNK]", pad_token="[PAD]", **({"model_input_names": names} | settings))


def byte_level(**settings: Any) -> Any:
    """GPT's: every byte is a token or part of one, and the tokenizer adds none of its own."""
    return wrapped(trained("byte_level"), **settings)


def newline_eating(**settings: Any) -> Any:
    """Llama 3's: punctuation takes the line ends after it into its own token."""
    made = byte_level(**settings)
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, text])
    return made


def unigram(**settings: Any) -> Any:
    """XLM-R's: the best path through each word; a sign for the space before it."""
    backend = templated(trained("unigram"), "[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]", CLS=2, SEP=3)
    return wrapped(backend, unk_token="[UNK]", **settings)


def unsplit(**settings: Any) -> Any:
    """Llama 2's: trained on words, but its merges run over the whole text."""
    made = wrapped(templated(trained("unsplit"), "<s> $A", "<s> $A <s> $B"), unk_token="<unk>", **settings)
    backend = made.backend_tokenizer
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = None
    return made


def slow(**settings: Any) -> Any:
    """One that runs in Python: a token a byte."""
    import transformers

    return transformers.ByT5Tokenizer(**settings)


KINDS: dict[str, Callable[..., Any]] = {
    made.__name__: made for made in (wordpiece, byte_level, newline_eating, unigram, unsplit, slow)
}


class Counting:
    """A tokenizer that counts the characters that it is given to read."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.read = 0

    def __call__(self, *columns: list[str], **settings: Any) -> Any:
        self.read += sum(len(text) for column in columns for text in column)
        return self._tokenizer(*columns, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def ids(encoded: list[Encoded]) -> list[list[int]]:
    return [one.ids.tolist() for one in encoded]


def words(count: int, seed: int = 0) -> str:
    """Random words with their punctuation, white space of all kinds between them."""
    generator = np.random.default_rng(seed)
    vocabulary = " ".join(CORPUS).split()
    spaces = [" "] * 12 + ["  ", "\n", "\n\n\n", "\t", " \u3000 ", "\u00a0", "     ", ".\n\n"]
    picked = generator.choice(np.array(vocabulary, object), count)
    between = generator.choice(np.array(spaces, object), count)
    return "".join(word + space for word, space in zip(picked, between, strict=True))
