"""What analysis says of tiny models, whole: a change of any fact shows as a difference of text."""

import pytest

MODELS = [
    ("bert", "AutoModel", {}),
    ("bert", "AutoModelForMaskedLM", {}),
    ("bert-decoder", "AutoModel", {}),
    ("roberta", "AutoModelForSequenceClassification", {"num_labels": 3}),
    ("modernbert", "AutoModelForTokenClassification", {"num_labels": 5}),
    ("llama", "AutoModelForSequenceClassification", {"num_labels": 1}),
    ("qwen2-mixed-window", "AutoModelForCausalLM", {}),
    ("qwen3", "AutoModelForTokenClassification", {"num_labels": 3}),
    ("mistral-long-window", "AutoModel", {}),
    ("gemma2", "AutoModel", {}),
    ("gemma3-bidirectional", "AutoModel", {}),
    ("gpt-oss", "AutoModel", {}),
    ("opt", "AutoModel", {}),
    ("fnet", "AutoModel", {}),
    ("bart", "AutoModel", {}),
    ("t5", "AutoModelForSeq2SeqLM", {}),
]


@pytest.mark.parametrize(("name", "head", "changes"), MODELS, ids=lambda value: str(value) if value else "")
def test_analysed(analysed, golden, name, head, changes):
    golden(f"analysed/{name}-{head.removeprefix('Auto')}", analysed(name, head, **changes).as_text())
