"""What is accepted of generation's options, and what the folder's config makes of those that are left open."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from transformers import GenerationConfig

from headrace.errors import HeadraceWarning, InputError, InputTooLongError, LoadError
from headrace.frontend.load.decoding import read_decoding
from headrace.ir import Beams, BeamStop, Decoding
from headrace.ir.serialize import decode, encode
from headrace.runtime.generate.options import GenerateOptions, defaults_of, find_lengths, read_options


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_new_tokens", 0, "max_new_tokens is 0; an int of 1 and above, or None is accepted"),
        ("max_new_tokens", 2.5, "max_new_tokens is 2.5; an int of 1"),
        ("max_new_tokens", True, "max_new_tokens is True; an int of 1"),
        ("min_new_tokens", -1, "min_new_tokens is -1; an int of 0"),
        ("temperature", -0.1, "temperature is -0.1; 0 (the likeliest token) or a finite number"),
        ("temperature", float("nan"), "temperature is nan; 0 (the likeliest token)"),
        ("temperature", 1e-9, "temperature is 1e-09; 0 (the likeliest token) or 1e-06 and above"),
        ("temperature", "hot", "temperature is 'hot'; 0"),
        ("top_k", -1, "top_k is -1; 0 (all tokens) or an int"),
        ("top_p", 0, "top_p is 0; a number above 0, up to 1"),
        ("top_p", 1.2, "top_p is 1.2; a number above 0"),
        ("min_p", 1.2, "min_p is 1.2; a number from 0 to 1"),
        ("repetition_penalty", 0, "repetition_penalty is 0; a finite number above 0"),
        ("presence_penalty", 3, "presence_penalty is 3; a number from -2 to 2"),
        ("frequency_penalty", -3, "frequency_penalty is -3; a number from -2 to 2"),
        ("n", 0, "n is 0; an int of 1 and above"),
        ("beams", 0, "beams is 0; an int of 1 and above, or None"),
        ("seed", 1 << 63, "seed is 9223372036854775808; an int of 64 bits"),
        ("stop", "", "stop is ('',); one string or several, none of them empty, are accepted"),
        ("stop", [b"x"], "stop is (b'x',); one string"),
        ("stop", 3, "stop is 3; one string"),
        ("stop_token_ids", [-1], "stop_token_ids is (-1,); token ids"),
        ("stop_token_ids", 3, "stop_token_ids is 3; token ids"),
        ("logprobs", 21, "logprobs is 21; an int from 0 to 20, or None"),
        ("logprobs", True, "logprobs is True; an int from 0 to 20"),
        ("logit_bias", {3: 101}, "logit_bias is ((3, 101),); a mapping of token ids to numbers from -100 to 100"),
        ("logit_bias", {"3": 1}, "logit_bias is (('3', 1),); a mapping"),
        ("logit_bias", [1, 2], "logit_bias is [1, 2]; a mapping"),
        ("ignore_eos", 1, "ignore_eos is 1; True or False is accepted"),
        ("skip_special_tokens", "no", "skip_special_tokens is 'no'; True or False"),
        ("choice", ["a", ""], "choice is ('a', ''); one string or several, none of them empty"),
        ("json_schema", "{", "json_schema is '{'; a JSON schema is accepted, as a mapping or as its text"),
        ("json_schema", 3, "json_schema is 3; a JSON schema"),
    ],
)
def test_an_option_is_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        GenerateOptions(**{name: value})
    assert str(refusal.value).startswith(said), refusal.value


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens is 5; at most max_new_tokens, 4, is accepted"),
        ({"n": 2}, "n is 2; 1 is accepted with temperature=0, at which all answers are the same"),
        ({"choice": "a", "min_new_tokens": 3}, "min_new_tokens is 3; 0 is accepted with choice or json_schema, which"),
        ({"choice": "a", "ignore_eos": True}, "ignore_eos is True; False is accepted with choice or json_schema"),
        ({"choice": ["a"], "json_schema": {}}, "choice is ('a',); choice or json_schema is accepted, not both"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: Any, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        GenerateOptions(**given)
    assert str(refusal.value).startswith(said)


def test_every_wrong_option_is_named_at_once() -> None:
    with pytest.raises(InputError, match=r"top_k is -1.* top_p is 7.* n is 0"):
        GenerateOptions(top_k=-1, top_p=7, n=0)


def test_options_come_in_many_forms() -> None:
    made = GenerateOptions(
        stop="\n",
        stop_token_ids=np.array([4, 5]),
        logit_bias={np.int64(7): np.float32(2)},
        json_schema={"type": "object"},
        top_k=np.int64(3),
        temperature=np.float32(0.5),
    )
    assert (made.stop, made.stop_token_ids, made.logit_bias) == (("\n",), (4, 5), ((7, 2.0),))
    assert (made.json_schema, made.top_k, made.temperature) == ('{"type": "object"}', 3, 0.5)
    assert hash(made) == hash(GenerateOptions(**vars(made)))


def test_an_unknown_option_is_refused_with_its_neighbour() -> None:
    with pytest.raises(InputError, match=r"no option 'max_tokens', but 'max_new_tokens'; max_new_tokens, min_new"):
        read_options(Decoding(), max_tokens=4)


def read(vocabulary: int = 100, pair: bool = False, **entries: Any) -> Decoding:
    """The facts of a config as transformers itself holds it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_decoding(GenerationConfig(**entries).to_dict(), vocabulary, pair=pair)


def test_a_config_that_says_nothing_changes_nothing() -> None:
    assert read() == Decoding()
    assert defaults_of(Decoding()) == GenerateOptions()


def test_a_folder_is_followed() -> None:
    found = read(
        eos_token_id=[1, 2, 999], do_sample=True, temperature=0.6, top_p=0.9, repetition_penalty=1.1, min_p=0.05,
        max_new_tokens=12, min_new_tokens=2, stop_strings="###", suppress_tokens=[4, 200], begin_suppress_tokens=[5],
        bad_words_ids=[[1], [7, 8], [9]], no_repeat_ngram_size=3, sequence_bias=[[[3, 4], -1.5]],
        forced_eos_token_id=2,
    )  # fmt: skip
    assert found == Decoding(
        ends=(1, 2), last=(2,), suppressed=(4,), suppressed_first=(5,), bad_words=((7, 8), (9,)),
        biases=(((3, 4), -1.5),), no_repeat=3, max_new_tokens=12, min_new_tokens=2, temperature=0.6, top_k=50,
        top_p=0.9, min_p=0.05, repetition_penalty=1.1, stop=("###",),
    )  # fmt: skip
    asked = read_options(found, temperature=None, top_k=3)
    assert asked == GenerateOptions(
        max_new_tokens=12, min_new_tokens=2, temperature=0.6, top_k=3, top_p=0.9, min_p=0.05, repetition_penalty=1.1,
        stop="###",
    )  # fmt: skip


def test_do_sample_false_is_greedy_whatever_the_temperature() -> None:
    found = read(do_sample=False, temperature=0.7, top_k=20, top_p=0.8)
    assert (found.temperature, found.top_k, found.top_p) == (0.0, 20, 0.8)
    assert read(temperature=0.7).temperature == 0
    assert read_options(found, temperature=1.0).top_k == 20


def test_an_encoder_decoder_begins_with_its_own_token() -> None:
    assert read(pair=True, decoder_start_token_id=7, bos_token_id=3).start == (7,)
    assert read(pair=True, bos_token_id=3).start == (3,)
    assert read(decoder_start_token_id=7, bos_token_id=3).start == ()
    assert read(pair=True, decoder_start_token_id=7, forced_bos_token_id=9).first == 9
    assert read(pair=True, decoder_start_token_id=7, forced_decoder_ids=[[1, 11], [2, 12]]).start == (7, 11, 12)
    left = read(pair=True, decoder_start_token_id=7, forced_decoder_ids=[[1, None], [2, 12]])
    assert (left.start, left.unserved) == ((7,), ("forced_decoder_ids=[[1, None], [2, 12]]",))


def test_beams_are_facts() -> None:
    found = read(num_beams=4, early_stopping="never", length_penalty=0.8, renormalize_logits=True)
    assert found.beams == Beams(4, 0.8, BeamStop.NEVER, renormalize=True)
    assert read(num_beams=2, early_stopping=True).beams == Beams(2, 1.0, BeamStop.FIRST)
    assert read(num_beams=2).beams == Beams(2, 1.0, BeamStop.UNLIKELY)
    assert read(num_beams=1, length_penalty=2.0).beams is None


@pytest.mark.parametrize(
    "entry",
    [
        {"guidance_scale": 1.5},
        {"watermarking_config": {"bias": 2.0}},
        {"penalty_alpha": 0.6},
        {"encoder_repetition_penalty": 1.2},
        {"exponential_decay_length_penalty": (3, 1.1)},
        {"token_healing": True},
        {"max_time": 3.0},
    ],
)
def test_what_is_not_served_is_refused_by_name(entry: dict[str, Any]) -> None:
    name, value = next(iter(entry.items()))
    found = read_decoding(entry, 100, pair=False)
    with pytest.raises(InputError) as refusal:
        read_options(found)
    assert f"asks for {name}={value}, which is not served. Take it out of that file" in str(refusal.value)


def test_what_changes_drawn_texts_alone_warns_where_tokens_are_drawn() -> None:
    found = read(typical_p=0.9, epsilon_cutoff=3e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_options(found)
    with pytest.warns(HeadraceWarning, match=r"asks for epsilon_cutoff=0.0003, typical_p=0.9, which is not served"):
        read_options(found, temperature=1.0)


def test_entries_of_others_are_named() -> None:
    found = read(chat_format="chatml", max_window_size=24000)
    with pytest.warns(HeadraceWarning, match=r"holds chat_format, max_window_size, which Headrace does not read"):
        read_options(found)


def test_every_entry_of_transformers_is_read_refused_or_known_to_be_harmless() -> None:
    """A name that a later version adds is named to the user, and here."""
    ours = set(read_decoding(dict.fromkeys(GenerationConfig().to_dict(), "x") | TYPED, 100, pair=True).unread)
    assert not ours


TYPED: dict[str, Any] = {
    **dict.fromkeys(
        "begin_suppress_tokens suppress_tokens eos_token_id bos_token_id decoder_start_token_id forced_bos_token_id "
        "forced_eos_token_id encoder_no_repeat_ngram_size length_penalty max_length max_new_tokens min_length "
        "min_new_tokens min_p no_repeat_ngram_size num_beams repetition_penalty temperature top_k top_p".split(), 1
    ),
    "bad_words_ids": [], "early_stopping": True, "sequence_bias": [],
}  # fmt: skip


def test_facts_survive_the_manifest() -> None:
    found = read(
        pair=True, decoder_start_token_id=1, eos_token_id=2, num_beams=3, early_stopping="never", bad_words_ids=[[4]],
        sequence_bias=[[[3], 2.0]], max_length=20, guidance_scale=2.0, stop_strings=["a", "b"],
    )  # fmt: skip
    assert decode(Decoding, encode(found)) == found


def test_a_config_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(LoadError, match=r"generation config cannot be read: ValueError.*Mend generation_config.json"):
        read_decoding({"eos_token_id": "stop"}, 100, pair=False)
    with pytest.raises(InputError, match=r"generation_config.json cannot be followed. top_p is 3.0; .* Mend that file"):
        read_options(read_decoding({"top_p": 3}, 100, pair=False))


@pytest.mark.parametrize("greedy", [{}, {"temperature": 0.0}])
def test_what_a_greedy_call_does_not_use_warns(greedy: dict[str, Any]) -> None:
    with pytest.warns(HeadraceWarning, match="top_k and top_p change nothing"):
        read_options(Decoding(), top_k=4, top_p=0.5, **greedy)


@pytest.mark.parametrize(
    ("decoding", "given", "held", "room", "expected"),
    [
        (Decoding(), {}, 10, None, (0, 256)),
        (Decoding(), {}, 10, 50, (0, 40)),
        (Decoding(max_length=30), {}, 10, 50, (0, 20)),
        (Decoding(max_length=30), {"max_new_tokens": 60}, 10, None, (0, 60)),
        (Decoding(max_new_tokens=7, max_length=30), {}, 10, None, (0, 7)),
        (Decoding(min_length=15), {}, 10, None, (5, 256)),
        (Decoding(min_length=15), {"min_new_tokens": 0}, 10, None, (0, 256)),
        (Decoding(min_length=15), {"max_new_tokens": 2}, 10, None, (2, 2)),
        (Decoding(min_new_tokens=9), {"max_new_tokens": 2}, 10, None, (2, 2)),
        (Decoding(min_length=5), {}, 10, None, (0, 256)),
        (Decoding(min_new_tokens=9, min_length=20), {"choice": "a"}, 10, None, (0, 256)),
    ],
)
def test_lengths(decoding: Decoding, given: Any, held: int, room: int | None, expected: tuple[int, int]) -> None:
    assert find_lengths(read_options(decoding, **given), decoding, held, room) == expected


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(InputTooLongError, match=r"has 50 tokens.*the model reads at most 50\. Shorten it\.$"):
        find_lengths(GenerateOptions(), Decoding(), 50, 50)
    with pytest.raises(InputTooLongError, match=r"folder's max_length is 30\. Shorten it, or pass max_new_tokens\.$"):
        find_lengths(GenerateOptions(), Decoding(max_length=30), 40, None)
