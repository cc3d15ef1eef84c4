"""What a folder says of generation, in transformers' GenerationConfig, as facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from headrace.errors import LoadError
from headrace.ir import Beams, BeamStop, Decoding

# What transformers' `generate` narrows to where its folder draws tokens and says nothing of it.
TOP_K = 50
STOPS = {True: BeamStop.FIRST, False: BeamStop.UNLIKELY, "never": BeamStop.NEVER}
READ = frozenset(
    """
    begin_suppress_tokens bad_words_ids bos_token_id decoder_start_token_id do_sample early_stopping
    encoder_no_repeat_ngram_size eos_token_id forced_bos_token_id forced_decoder_ids forced_eos_token_id
    length_penalty max_length max_new_tokens min_length min_new_tokens min_p no_repeat_ngram_size num_beams
    renormalize_logits repetition_penalty sequence_bias stop_strings suppress_tokens temperature top_k top_p
    """.split()
)
# What changes no text that is served here: how fast transformers runs, what it returns, what pads, NaN (refused here).
HARMLESS = frozenset(
    """
    assistant_confidence_threshold assistant_early_exit assistant_lookbehind cache_config cache_implementation
    compile_config disable_compile is_assistant low_memory max_cache_len max_matching_ngram_size num_assistant_tokens
    num_assistant_tokens_schedule output_attentions output_hidden_states output_logits output_scores pad_token_id
    prefill_chunk_size prompt_lookup_num_tokens remove_invalid_values return_dict_in_generate speculation_type
    target_lookbehind transformers_version use_cache use_mtp
    """.split()
)
# What is not served, with the values at which it changes nothing.
MOOT: dict[str, tuple[Any, ...]] = {
    "assistant_ensemble_weight": (),
    "constraints": (),
    "continuous_batching_config": (),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_repetition_penalty": (1,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "guidance_scale": (1,),
    "max_time": (),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "token_healing": (False,),
    "watermarking_config": (),
}
MOOT_SAMPLING: dict[str, tuple[Any, ...]] = {
    "epsilon_cutoff": (0, 1),
    "eta_cutoff": (0, 1),
    "top_h": (1,),
    "typical_p": (1,),
}


def held_config(module: nn.Module) -> dict[str, Any]:
    """The generation config of a module, or of one within it; of a folder, transformers has read it into the module."""
    made = _held(module)
    return {} if made is None else dict(made.to_dict())


def config_text(module: nn.Module) -> str | None:
    """The same as its file's text, None where there is none."""
    made = _held(module)
    return None if made is None else str(made.to_json_string())


def _held(module: nn.Module) -> Any:
    found = (getattr(one, "generation_config", None) for one in module.modules())
    return next((one for one in found if hasattr(one, "to_dict")), None)


def read_decoding(config: Mapping[str, Any], vocabulary: int, *, pair: bool) -> Decoding:
    """The facts of a generation config.

    Args:
        config: its entries; None is as good as none.
        vocabulary: how many tokens the head has a logit for. What others are to do changes nothing and is left out.
        pair: whether the model is an encoder-decoder, whose decoder begins with a token of its own.

    Raises:
        LoadError: an entry of a form that it cannot have.
    """
    given = {name: value for name, value in config.items() if value is not None and not name.startswith("_")}
    try:
        return _read(given, vocabulary, pair)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LoadError(
            f"The model's generation config cannot be read: {error.__class__.__name__}: {error}. Mend "
            "generation_config.json."
        ) from error


def _read(given: dict[str, Any], vocabulary: int, pair: bool) -> Decoding:
    def ids(name: str) -> tuple[int, ...]:
        return tuple(one for one in _ids(given.get(name)) if 0 <= one < vocabulary)

    ends, draws = ids("eos_token_id"), bool(given.get("do_sample", False))
    return Decoding(
        start=_start(given, ids) if pair else (),
        ends=ends,
        first=next(iter(ids("forced_bos_token_id")), None),
        last=ids("forced_eos_token_id"),
        suppressed=ids("suppress_tokens"),
        suppressed_first=ids("begin_suppress_tokens"),
        bad_words=_bad_words(given.get("bad_words_ids") or (), ends, vocabulary),
        biases=_biases(given.get("sequence_bias") or (), vocabulary),
        no_repeat=max(0, int(given.get("no_repeat_ngram_size", 0))),
        encoder_no_repeat=max(0, int(given.get("encoder_no_repeat_ngram_size", 0))) if pair else 0,
        max_length=_int(given.get("max_length")),
        max_new_tokens=_int(given.get("max_new_tokens")),
        min_length=int(given.get("min_length", 0)),
        min_new_tokens=_int(given.get("min_new_tokens")),
        temperature=float(given.get("temperature", 1.0)) if draws else 0.0,
        top_k=int(given.get("top_k", TOP_K if draws else 0)),
        top_p=float(given.get("top_p", 1.0)),
        min_p=float(given.get("min_p", 0.0)),
        repetition_penalty=float(given.get("repetition_penalty", 1.0)),
        stop=_strings(given.get("stop_strings", ())),
        beams=_beams(given),
        unserved=_unserved(given, MOOT) + _unforced(given, pair),
        unserved_sampling=_unserved(given, MOOT_SAMPLING),
        unread=tuple(sorted(given.keys() - READ - HARMLESS - MOOT.keys() - MOOT_SAMPLING.keys())),
    )


def _start(given: Mapping[str, Any], ids: Callable[[str], tuple[int, ...]]) -> tuple[int, ...]:
    """The decoder's first token, its own or else the text's, and those that speech models are told to go on with."""
    first = ids("decoder_start_token_id") or ids("bos_token_id")
    forced = given.get("forced_decoder_ids") or ()
    return first + tuple(int(token) for _, token in forced if _in_order(forced))


def _in_order(forced: Any) -> bool:
    """Whether tokens are forced at every place from the second on."""
    places, tokens = zip(*forced, strict=True)
    return list(places) == list(range(1, len(forced) + 1)) and None not in tokens


def _unforced(given: Mapping[str, Any], pair: bool) -> tuple[str, ...]:
    forced = given.get("forced_decoder_ids") or ()
    return () if not forced or (pair and _in_order(forced)) else (f"forced_decoder_ids={forced}",)


def _unserved(given: Mapping[str, Any], moot: Mapping[str, tuple[Any, ...]]) -> tuple[str, ...]:
    found = ((name, given[name]) for name in sorted(given.keys() & moot.keys()))
    return tuple(f"{name}={value}" for name, value in found if value not in moot[name] and value not in ([], {}))


def _beams(given: Mapping[str, Any]) -> Beams | None:
    count = int(given.get("num_beams", 1))
    if count == 1:
        return None
    stop = STOPS[given.get("early_stopping", False)]
    penalty = float(given.get("length_penalty", 1.0))
    return Beams(count, penalty, stop, renormalize=bool(given.get("renormalize_logits", False)))


def _bad_words(words: Any, ends: tuple[int, ...], vocabulary: int) -> tuple[tuple[int, ...], ...]:
    """Sequences that never come. An end token alone is none of them, as transformers has it."""
    found = (tuple(map(int, word)) for word in words)
    return tuple(word for word in found if word and max(word) < vocabulary and not (len(word) == 1 and word[0] in ends))


def _biases(biases: Any, vocabulary: int) -> tuple[tuple[tuple[int, ...], float], ...]:
    pairs = biases.items() if isinstance(biases, Mapping) else biases
    found = ((tuple(map(int, tokens)), float(bias)) for tokens, bias in pairs)
    return tuple((tokens, bias) for tokens, bias in found if tokens and max(tokens) < vocabulary)


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(map(int, value)) if isinstance(value, (list, tuple)) else (int(value),)


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _strings(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))
