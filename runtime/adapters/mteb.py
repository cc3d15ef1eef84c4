"""What MTEB asks of an encoder (its EncoderProtocol): batches in place of texts, and a task in place of a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from headrace.errors import InputError
from headrace.runtime.model import CompiledModel


class Asked(NamedTuple):
    """What a batch is for."""

    task: Any
    kind: Any


def asked(options: dict[str, Any]) -> Asked | None:
    """What MTEB passes besides, taken out of the options; None where it is not MTEB that asks."""
    if "task_metadata" not in options:
        return None
    for name in ("hf_split", "hf_subset"):
        options.pop(name, None)
    return Asked(options.pop("task_metadata"), options.pop("prompt_type", None))


def texts(batches: Iterable[Mapping[str, Any]]) -> list[str]:
    """The texts of all batches.

    Raises:
        InputError: a batch without texts.
    """

    def of(batch: Mapping[str, Any]) -> list[str]:
        if "text" not in batch:
            raise InputError(f"A batch of MTEB has {', '.join(batch)}; here texts are accepted.")
        found: list[str] = batch["text"]
        return found

    return list(chain.from_iterable(map(of, batches)))


def prompt(prompts: Mapping[str, str | None], wanted: Asked) -> str | None:
    """The prompt by MTEB's own rule: of the task and the side, of the task, of its type, of the side."""
    from mteb.models.abs_encoder import get_prompt_name

    there = {name: text for name, text in prompts.items() if text}
    name = get_prompt_name(there, wanted.task, wanted.kind) if there else None
    return there.get(name or "")


def meta(model: CompiledModel) -> Any:
    """What MTEB files a model's results under.

    Raises:
        AttributeError: MTEB is not installed, so that nobody asks.
    """
    try:
        from mteb.models import ModelMeta
    except ImportError as error:
        raise AttributeError("mteb_model_meta needs mteb") from error
    from pathlib import PurePath

    source = model.program.source
    name = f"headrace/{PurePath(source.name).name or 'model'}"
    return ModelMeta.create_empty(overwrites={"name": name, "revision": source.config_hash or "none"})
