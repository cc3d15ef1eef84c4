"""The C++ of this folder, as what compiles a graph is given it: a file of the library of the graph's code."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.backends.inductor.host.dense import LINEAR_DENSE
from headrace.backends.inductor.host.packed import LINEAR_PACKED
from headrace.backends.inductor.host.paged import ATTENTION_PAGED_HOST
from headrace.backends.inductor.host.varlen import ATTENTION_VARLEN_HOST
from headrace.compat.torch import shims_option

HERE = Path(__file__).parent
# In the order in which they need one another.
FILES = ("tensors.h", "attention.h", "linear.h", "dense.h", "varlen.h")
# Of each operator, its files and the function that compiled code calls, by the names that it has for arguments.
CALLS = {
    ATTENTION_PAGED_HOST: (
        ("attention.h",),
        """aoti_torch_cpu_attention_paged_host(
            AtenTensorHandle q, AtenTensorHandle* k, AtenTensorHandle* v, AtenTensorHandle k_cache,
            AtenTensorHandle* v_cache, AtenTensorHandle slots, AtenTensorHandle blocks, AtenTensorHandle cu_seqlens,
            AtenTensorHandle context, AtenTensorHandle* sinks, double scale, int64_t chunked, int64_t left,
            double softcap, int64_t v_width, AtenTensorHandle* made) {
            *made = headrace::attention_paged(
                q, k, v, k_cache, v_cache, slots, blocks, cu_seqlens, context, sinks, scale, chunked, left, softcap,
                v_width);
            return AOTI_TORCH_SUCCESS;
        }""",
    ),
    LINEAR_PACKED: (
        ("linear.h",),
        """aoti_torch_cpu_linear_packed(
            AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle* scale, int64_t width,
            AtenTensorHandle* made) {
            *made = headrace::linear_packed(x, weight, scale, width);
            return AOTI_TORCH_SUCCESS;
        }""",
    ),
    LINEAR_DENSE: (
        ("linear.h", "dense.h"),
        """aoti_torch_cpu_linear_dense(
            AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle* steps, AtenTensorHandle* bias,
            AtenTensorHandle* residual, AtenTensorHandle* scale, AtenTensorHandle* shift, int64_t width,
            int64_t activation, int64_t normed, double eps, AtenTensorHandle* made) {
            *made = headrace::linear_dense(
                x, weight, steps, bias, residual, scale, shift, width, activation, normed, eps);
            return AOTI_TORCH_SUCCESS;
        }""",
    ),
    ATTENTION_VARLEN_HOST: (
        ("linear.h", "varlen.h"),
        """aoti_torch_cpu_attention_varlen_host(
            AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v, AtenTensorHandle cu_seqlens,
            AtenTensorHandle* sinks, AtenTensorHandle* bias, double scale, int64_t relation, int64_t left,
            int64_t right, double softcap, int64_t added, AtenTensorHandle* made) {
            *made = headrace::attention_varlen(
                q, k, v, cu_seqlens, sinks, bias, scale, relation, left, right, softcap, added);
            return AOTI_TORCH_SUCCESS;
        }""",
    ),
}


def shims(targets: Iterable[Any]) -> tuple[dict[str, Any], str]:
    """What a graph that calls those operators needs: none and nothing where none of them is of this folder.

    Returns:
        The compiler's options, and the C++ of the functions that its code calls then.
    """
    called = [operator for operator in CALLS if operator in set(targets)]
    if not called:
        return {}, ""
    needed = {"tensors.h", *(name for operator in called for name in CALLS[operator][0])}
    files = [(HERE / name).read_text() for name in FILES if name in needed]
    functions = {operator: CALLS[operator][1] for operator in called}
    defined = "\n".join(f"AOTITorchError {function}" for function in functions.values())
    declared = {operator: function.partition("{")[0] for operator, function in functions.items()}
    return shims_option(declared), "\n".join([*files, 'extern "C" {', defined, "}"])
