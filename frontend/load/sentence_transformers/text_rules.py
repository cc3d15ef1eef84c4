"""What a sentence-transformers pipeline says of text, and of how its transformer is made, key by key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import LoadError
from headrace.frontend.load.keys import require_known
from headrace.frontend.load.sentence_transformers.modules.chain import LOGITS, ROWS, SCORES
from headrace.frontend.load.sentence_transformers.pipeline import CLIP, MLM, SETTINGS, TABLES, Pipeline
from headrace.ir import ChatRules, TextRules

PLAIN, LABELLED = "feature-extraction", "sequence-classification"
GENERATING, FILLING = "text-generation", "fill-mask"
# What a transformer for each task returns, and the name under which the next module finds it.
RETURNS = {
    PLAIN: ("last_hidden_state", ROWS),
    LABELLED: ("logits", SCORES),
    GENERATING: ("logits", LOGITS),
    FILLING: ("logits", ROWS),
}
APPLIED = (
    *("transformer_task", "modality_config", "module_output_name", "processing_kwargs"),
    *("max_seq_length", "do_lower_case"),
    *("config_kwargs", "config_args", "processor_kwargs", "tokenizer_args", "model_kwargs", "model_args"),
)
# Of a model that compares texts token by token.
INTERACTING = ("query_length", "document_length", "query_expansion")
# Unpadding is another way to the same vectors.
IDLE = ("unpad_inputs", "backend")
# Where the caller, not the file, says which files are loaded and whether their code runs.
FETCHED = ("subfolder", "token", "cache_dir", "revision", "local_files_only", "trust_remote_code")
# Of the model's own arguments: Headrace chooses dtype and attention, and reads rows before any pooler.
MODEL_IDLE = (
    *("dtype", "torch_dtype", "attn_implementation", "device_map", "low_cpu_mem_usage", "use_safetensors"),
    *("add_pooling_layer", *FETCHED),
)
# Of a call of the tokenizer: padding changes no answer, and the last only a text generator's.
CALL_APPLIED = ("max_length", "truncation")
CALL_IDLE = ("padding", "pad_to_multiple_of", "padding_side", "return_tensors", "verbose", "logits_to_keep")
# What `apply_chat_template` takes and a template does not.
CALLING = ("tokenize", "return_dict", "tokenizer_kwargs", "return_assistant_tokens_mask", "sanitize_control_tokens")


def read_text_rules(pipeline: Pipeline) -> TextRules:
    """The rules by which the pipeline's texts are tokenised.

    Raises:
        LoadError: a key that is not served, or a value that it does not take.
    """
    said, where = _transformer(pipeline)
    chat = _has_chat(pipeline)
    limit, truncates, rendering = _processing(said.get("processing_kwargs") or {}, where, chat is not None)
    key = "processing_kwargs"
    if limit is None and "model_max_length" not in tokenizer_options(pipeline):
        key = "max_seq_length"
        limit = _length(said.get(key), where, key)
    pooling = pipeline.pooling.config if pipeline.pooling else {}
    return TextRules(
        max_length=limit,
        truncates=truncates,
        prompts=_prompts(pipeline),
        default_prompt=pipeline.settings.get("default_prompt_name"),
        lower_case=bool(said.get("do_lower_case", False)),
        pools_prompt=bool(pooling.get("include_prompt", True)),
        why=f"{Path(where).name}'s {key}" if limit is not None else "sentence-transformers truncates",
        chat=None if chat is None else _chat_rules(chat, rendering, where),
    )


def transformer_task(pipeline: Pipeline) -> str:
    """What the transformer ends in: rows, or a head."""
    usual = FILLING if pipeline.transformer.kind == MLM else PLAIN
    return str(_transformer(pipeline)[0].get("transformer_task", usual))


def config_options(pipeline: Pipeline) -> dict[str, Any]:
    """What the pipeline changes of its transformer's config.json."""
    return _options(pipeline, "config_args", "config_kwargs")


def tokenizer_options(pipeline: Pipeline) -> dict[str, Any]:
    """What the pipeline changes of its tokenizer's files."""
    return _options(pipeline, "tokenizer_args", "processor_kwargs")


def _transformer(pipeline: Pipeline) -> tuple[dict[str, Any], str]:
    step = pipeline.transformer
    if step.kind in TABLES:
        return {}, step.where  # there is no transformer
    said = require_known(step.config, step.where, (*APPLIED, *(INTERACTING if pipeline.interacts else ())), IDLE)
    for name in ("model_args", "model_kwargs"):
        require_known(said.get(name) or {}, f"{step.where}'s {name}", (), MODEL_IDLE)
    return said, step.where


def _options(pipeline: Pipeline, *names: str) -> dict[str, Any]:
    said = _transformer(pipeline)[0]
    given = {key: value for name in names for key, value in (said.get(name) or {}).items()}
    return {key: value for key, value in given.items() if key not in FETCHED}


def _prompts(pipeline: Pipeline) -> tuple[tuple[str, str], ...]:
    where = f"{pipeline.folder}/{SETTINGS}"
    prompts = pipeline.settings.get("prompts") or {}
    if not isinstance(prompts, Mapping) or any(not isinstance(text, str | None) for text in prompts.values()):
        raise LoadError(f"{where}'s prompts are {prompts!r}; a text by each name is accepted.")
    return tuple(sorted((str(name), text or "") for name, text in prompts.items()))


def _has_chat(pipeline: Pipeline) -> dict[str, Any] | None:
    """The entry of modality_config that sends texts through the chat template; None where they go as they are."""
    said, where = _transformer(pipeline)
    task = transformer_task(pipeline)
    if task not in RETURNS or pipeline.transformer.kind == CLIP:
        return None  # refused by what reads the modules, which knows what follows; or of which no text is a message
    returned, named = RETURNS[task]
    entries = said.get("modality_config") or {}
    if (met := said.get("module_output_name") or named) != named:
        raise LoadError(f"{where} names its output {met} (module_output_name); {named} is served.")
    for modality, entry in entries.items():
        way = require_known(entry, f"{where}'s modality_config, {modality}", ("method", "method_output_name", "format"))
        taken = f"{way.get('method_output_name')} of {way.get('method')}"
        # What takes a text together with an image is never asked.
        if "+" not in modality and taken != f"{returned} of forward":
            raise LoadError(
                f"{where}'s modality_config takes {taken} for {modality}, which is not served; {returned} of forward "
                "is."
            )
    if "message" in entries and (others := sorted(set(entries) - {"text", "message"})):
        raise LoadError(f"{where}'s modality_config has message beside {', '.join(others)}; beside text it is served.")
    message: dict[str, Any] | None = entries.get("message")
    return message


def _chat_rules(message: Mapping[str, Any], rendering: dict[str, Any], where: str) -> ChatRules:
    form = message.get("format")
    if form not in ("structured", "flat"):
        raise LoadError(f"{where}'s modality_config gives message the format {form!r}; structured and flat are served.")
    restores = bool(rendering.pop("restore_suffix", True))
    if calling := sorted(set(rendering) & set(CALLING)):
        raise LoadError(f"{where}'s processing_kwargs, chat_template says {', '.join(calling)}, which is not served.")
    return ChatRules(form == "structured", json.dumps(rendering, sort_keys=True), restores)


def _processing(given: Any, where: str, chats: bool) -> tuple[int | None, bool, dict[str, Any]]:
    """The length that texts are cut to, whether they are cut at all, and how the template is rendered.

    Which of the places wins is sentence-transformers' choice: the tokenizer's own call takes `common` over `text`.
    """
    where = f"{where}'s processing_kwargs"
    given = require_known(given, where, ("common", "text", "chat_template"), ("audio", "image", "video"))
    common, text, template = (dict(given.get(name) or {}) for name in ("common", "text", "chat_template"))
    for name, part in (("common", common), ("text", text)):
        require_known(part, f"{where}, {name}", CALL_APPLIED, CALL_IDLE)
    sizes = {key: template.pop(key) for key in (*CALL_APPLIED, *CALL_IDLE) if key in template}
    call = {**common, **text, **sizes} if chats else {**text, **common}
    cuts = call.get("truncation", True)
    if cuts not in (True, False, "longest_first", "do_not_truncate"):
        raise LoadError(f"{where} gives truncation as {cuts!r}; longest_first and do_not_truncate are served.")
    return _length(call.get("max_length"), where, "max_length"), cuts in (True, "longest_first"), template


def _length(value: Any, where: str, key: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise LoadError(f"{where} says {key}={value!r}; an int of 1 and above is accepted.")
    return value
