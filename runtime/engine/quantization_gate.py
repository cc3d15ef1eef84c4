"""What quantising costs: a program's answers beside those of the program that is not quantised, and the gate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import feed
from headrace.backends.interface import Backend, CacheKeeper, Quantizer
from headrace.errors import InputError, TargetError, VerifyError
from headrace.ir import TASK_RULES, CacheDtype, Needs, Program, Quantized, QuantizedCaches, Task
from headrace.runtime.text.encoded import Encoded

# Of each scheme the target that runs it.
SCHEMES = {"fp8": "cuda", "int8": "cpu"}
# Of answers to the unquantised program's own, at least: what exports in int8 are held to.
GATE = 0.97
# Lengths of the sample sequences, as far as the program takes them.
LENGTHS = (3, 12, 31, 64, 7, 128, 200, 90, 1, 17, 48, 256)


def require_scheme(scheme: str | None, backend: Backend, dtype: str | None = None) -> None:
    """Refuse what the target does not run, before anything is loaded.

    Args:
        dtype: of the program; None where it is not known yet.

    Raises:
        InputError: there is no such scheme.
        TargetError: the target does not run it.
    """
    if scheme is None:
        return
    if not isinstance(scheme, str) or scheme not in SCHEMES:
        raise InputError(f"quantize is {scheme!r}; choose from {', '.join(SCHEMES)}, or leave it out.")
    if not isinstance(backend, Quantizer) or scheme not in backend.schemes:
        raise TargetError(
            f'The target {backend.name} does not run quantize="{scheme}"; {SCHEMES[scheme]} does. Leave quantize out. '
            'A model exported to ONNX has its weights in 8 bits with dtype="int8".'
        )
    if dtype is not None:
        backend.require_scheme(scheme, dtype)


def require_cache_dtype(dtype: str | None, backend: Backend) -> CacheDtype | None:
    """In what keys and values are kept, None for the program's dtype; refused before anything is loaded.

    Raises:
        InputError: there is no such dtype.
        TargetError: the target does not run it.
    """
    if dtype is None:
        return None
    if not isinstance(dtype, str) or dtype not in list(CacheDtype):
        raise InputError(f"kv_cache_dtype is {dtype!r}; choose from {', '.join(CacheDtype)}, or leave it out.")
    if not isinstance(backend, CacheKeeper) or dtype not in backend.cache_dtypes:
        raise TargetError(
            f'The target {backend.target} does not run kv_cache_dtype="{dtype}"; reference, cuda and rocm do, but '
            'not with parallel="tensor". Leave kv_cache_dtype out.'
        )
    return CacheDtype(dtype)


def require_steps(program: Program, dtype: CacheDtype, tasks: Sequence[str]) -> None:
    """Refuse to keep in fewer bits what no task keeps, of tasks whose texts run whole.

    Raises:
        InputError: none of them is answered in several steps.
    """
    if not any(TASK_RULES[Task(task)].needs is Needs.DECODING for task in tasks):
        raise InputError(
            f'kv_cache_dtype="{dtype}" is in what keys and values are kept between steps, and '
            f"{', '.join(tasks) or 'no task'} of {program.source.name} takes one. Leave it out, or pass "
            'task="generate" where the model supports that.'
        )


def require_cache_quality(program: Program) -> None:
    """Refuse a program whose answers its caches turned too far.

    Raises:
        VerifyError: says how far, and what is accepted.
    """
    found = program.form.quantized_caches
    if found is not None and not found.mean >= GATE:
        raise VerifyError(
            f"{program.source.name} with keys and values in {found.dtype} answers otherwise than in {program.dtype}: "
            f"{cache_words(found)}; a mean cosine of {GATE:g} at least is accepted. Leave "
            f'kv_cache_dtype="{found.dtype}" out, or pass force=True to keep it.'
        )


def cache_words(found: QuantizedCaches) -> str:
    """What keys and values in fewer bits cost."""
    same = "" if found.same is None else f", the most likely next token is the same at {found.same}"
    return (
        f"at {found.tokens} places of sample texts, cosine to the answers without it {found.mean:.5f} in the mean and "
        f"{found.worst:.5f} at worst{same}"
    )


def samples(program: Program) -> list[Encoded]:
    """Sequences of pseudorandom tokens of the vocabulary, of several lengths within the program's limits.

    Raises:
        InputError: the program reads arrays, for which there are none.
    """
    if arrays := program.signature.arrays:
        raise InputError(
            f"The quality of a quantised model is measured on token ids, and this one reads {arrays[0].name}. "
            "Leave quantize out."
        )
    random, longest = np.random.default_rng(0), program.facts.limits.length or max(LENGTHS)
    return [Encoded(feed.random_ids(program.signature, random, min(length, longest))) for length in LENGTHS]


def measure_quality(found: Quantized, got: Sequence[NDArray[Any]], wanted: Sequence[NDArray[Any]]) -> Quantized:
    """The facts with the cosines of answers to those wanted, one a sequence.

    An answer of a single number has no direction: there, those of all sequences are one vector.
    """
    if wanted[0].size == 1 and wanted[0].ndim == 1:
        got, wanted = [np.concatenate(got)], [np.concatenate(wanted)]
    cosines = [_cosine(one, other) for one, other in zip(got, wanted, strict=True)]
    return replace(found, sequences=len(LENGTHS), worst=min(cosines), median=statistics.median(cosines))


def require_quality(found: Quantized, program: Program) -> None:
    """Refuse a program whose answers turned too far.

    Raises:
        VerifyError: says how far, and what is accepted.
    """
    if found.worst is None or not found.worst >= GATE:
        raise VerifyError(
            f"{program.source.name} in {found.scheme} answers otherwise than in {program.dtype}: {words(found)}; at "
            f'least {GATE:g} is accepted. Leave quantize="{found.scheme}" out, or pass force=True to keep it.'
        )


def words(found: Quantized) -> str:
    """What is quantised, and what it costs."""
    layers = f"{found.scheme} in {found.layers} of {found.among} linear layers"
    if found.worst is None or found.median is None:
        return f"{layers}, what it costs was not measured"
    cosines = f"{found.worst:.5f} at worst and {found.median:.5f} in the median of {found.sequences} random sequences"
    return f"{layers}, cosine to the answers without it {cosines}"


def _cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    a, b = np.asarray(one, np.float64).ravel(), np.asarray(other, np.float64).ravel()
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b / length) if length > 0 else float(np.array_equal(a, b))
