"""Private corners of torch, under names of ours. What differs between versions is told apart here and nowhere else."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch import _inductor as inductor
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _is_preservable_cia_op
from torch._export.verifier import Verifier as ExportVerifier
from torch._higher_order_ops.while_loop import while_loop_op as while_loop
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    in_kernel_invocation_manager,
)
from torch.export import ExportedProgram
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import _config as shapes
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import (
    ConstraintViolationError,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    free_symbols,
    free_unbacked_symbols,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

__all__ = [
    "ALL_REDUCE",
    "WAIT",
    "ConstraintViolationError",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "ExportVerifier",
    "GuardOnDataDependentSymNode",
    "OpOverload",
    "Standing",
    "TorchDispatchMode",
    "argument_names",
    "asked_of_sizes",
    "brief_traces",
    "compile_code",
    "compiler_settings",
    "enable_python_dispatcher",
    "free_symbols",
    "free_unbacked_symbols",
    "guarded",
    "index_below",
    "is_composite",
    "is_kept_whole",
    "mark_dynamic",
    "oblivious_sizes",
    "operator_name",
    "own_buffers",
    "pytree",
    "returns_views",
    "scaled_mm",
    "schema_arguments",
    "shapes_at_once",
    "shims_option",
    "size_bounds",
    "size_symbols",
    "specialized_floats",
    "stand_ins_on",
    "while_loop",
    "without_code",
    "without_fake_cache",
    "without_modes",
    "without_stacks",
    "writes",
    "written_arguments",
]
COMPOSITE = "CompositeImplicitAutograd"
COMPOSITE_KEY = torch._C.DispatchKey.CompositeImplicitAutograd
# The input that a guard of torch.export's asks something of.
GUARDED = re.compile(r"L\['(\w+)'\]")
# The product of float8 rows [M, K] and a float8 weight [K, N], with a scale for each row and column.
scaled_mm = torch._scaled_mm
# A sum over the devices of a process group, by the group's name, and the wait for it; None where torch has neither.
ALL_REDUCE, WAIT = (
    (torch.ops._c10d_functional.all_reduce.default, torch.ops._c10d_functional.wait_tensor.default)
    if torch.distributed.is_available()
    else (None, None)
)
# Of Inductor's options. Headers compiled once for all cost 300 MB and as much time as five models gain by them.
BRIEF = {"aot_inductor.precompile_headers": False}
# Where the compiler need not be tried with each instruction set that the processor has: every one that compiles torch's
# headers knows those of these machines but for AMX, which torch tries in any case.
X86 = ("x86_64", "AMD64")
# Up to 2.12 the plan of memory counts what a loop computes among what surrounds the loop, and fails.
LOOPS_PLANNED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
# Products of groups of rows whose sizes count what the tokens chose: torch's, and transformers' where that has none.
GROUPED = frozenset({"_grouped_mm", "grouped_mm_fallback"})


def stand_ins_on(device: torch.device, value: Any) -> Any:
    """What a node's meta says of its value, on another device, of the same sizes."""

    def on(fake: FakeTensor) -> FakeTensor:
        with in_kernel_invocation_manager(fake.fake_mode):
            held = torch.ops.aten.detach.default(fake)
        return FakeTensor(fake.fake_mode, held, device)

    return pytree.tree_map_only(FakeTensor, on, value)


def operator_name(target: Any, default: str | None = None) -> str | None:
    """The bare name of an operator, e.g. `linear`; `default` for what is none."""
    return getattr(target, "_opname", default)


def argument_names(target: OpOverload) -> tuple[str, ...]:
    """The names of an operator's arguments, in the order of its schema."""
    return tuple(argument.name for argument in target._schema.arguments)


def own_buffers(module: torch.nn.Module) -> dict[str, Tensor | None]:
    """The table of a module's buffers itself: what is put into it is put into the module."""
    return module._buffers


def writes(target: OpOverload) -> bool:
    """Whether the operator writes into one of its arguments."""
    return bool(target._schema.is_mutable)


def aliases(target: OpOverload) -> bool:
    """Whether what the operator returns may lie in the memory of an argument."""
    return any(one.alias_info is not None for one in target._schema.returns)


def functional_of(target: OpOverload) -> OpOverload | None:
    """Of an operator that writes into its first argument alone and returns it, the one that returns a new tensor."""
    name, overload = target._schema.name.removeprefix("aten::"), target._overloadname
    if written_arguments(target).count(True) != 1 or not name.endswith("_") or name.endswith("__"):
        return None
    found = getattr(getattr(torch.ops.aten, name[:-1], None), overload, None)
    if not isinstance(found, OpOverload) or is_composite(found) or aliases(found):
        return None
    same = argument_names(found) == argument_names(target) and written_arguments(target)[0]
    return found if same else None


def written_arguments(target: OpOverload) -> list[bool]:
    """Of each argument of an operator, in order, whether it writes into it."""
    return [bool(one.alias_info and one.alias_info.is_write) for one in target._schema.arguments]


def returns_views(target: OpOverload) -> bool:
    """Whether a result shows the memory of an argument."""
    return any(result.alias_info for result in target._schema.returns)


def is_composite(target: OpOverload) -> bool:
    """Whether the operator is made of others, for autograd too."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(target._name, COMPOSITE))


def is_kept_whole(target: OpOverload) -> bool:
    """Whether `run_decompositions({})` leaves an operator that is made of others as it is."""
    return bool(_is_preservable_cia_op(target))


def without_modes() -> AbstractContextManager[Any]:
    """Run outside whatever traces at the moment: what is computed here enters no graph."""
    return _disable_current_modes()


@contextmanager
def without_stacks() -> Iterator[None]:
    """Let traces note no stack of Python's for each of their nodes: a twentieth of a trace, and read by nobody here."""
    before = getattr(torch.fx.config, "do_not_emit_stack_traces", None)
    if before is None:  # a version that does not ask
        yield
        return
    torch.fx.config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        torch.fx.config.do_not_emit_stack_traces = before


def without_metadata() -> AbstractContextManager[Any]:
    """Let traces note no second record of each value's shape and strides: a tenth of a trace, and read by nobody."""
    return patch.object(proxy_tensor, "_extract_tensor_metadata", lambda _: None)


def without_fake_cache() -> AbstractContextManager[Any]:
    """Let traces work each operator's result out anew, where nearly every one has shapes of its own."""
    made: AbstractContextManager[Any] = torch._dynamo.config.patch(fake_tensor_cache_enabled=False)
    return made


def without_code() -> AbstractContextManager[Any]:
    """Let the graphs that traces make on their way write their code when they are called, which they never are."""
    return _use_lazy_graph_module(True)


@contextmanager
def brief_traces() -> Iterator[None]:
    """Let traces do what is read of them alone: `shapes_at_once`, and no code or second record on their way."""
    with shapes_at_once(), without_code(), without_metadata():
        yield


@contextmanager
def shapes_at_once() -> Iterator[None]:
    """Let traces work out what a linear layer and a layer norm return from their arguments' shapes.

    Torch runs the operators that they are made of, with symbolic sizes, which is a third of a trace. Whoever records
    those operators, and whoever computes, is given them as ever.
    """
    before = {operator: dict(operator.py_kernels) for operator in RESULTS}
    for operator, result in RESULTS.items():
        operator.py_kernels[COMPOSITE_KEY] = partial(_result, operator, result)
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, kernels in before.items():
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()


def _result(operator: OpOverload, result: Callable[..., Tensor | None], x: Tensor, *args: Any, **named: Any) -> Any:
    if type(x) is FakeTensor and get_proxy_mode() is None and (made := result(x, *args, **named)) is not None:
        return made
    return operator._op_dk(COMPOSITE_KEY, x, *args, **named)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    fixed = isinstance(weight, FakeTensor) and weight.dim() == 2 and not weight._has_symbolic_sizes_strides
    if not fixed or x.dim() < 2 or not _same_sizes(x.shape[-1:], weight.shape[1:]):
        return None
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _layer_norm(x: Tensor, shape: Sequence[int], *_: Any, **_named: Any) -> Tensor | None:
    fits = _same_sizes(x.shape[-len(shape) :], shape)
    return torch.empty_like(x, memory_format=torch.contiguous_format) if fits else None


def _same_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether they are the same numbers; nothing is asked of free sizes, which would fix them."""
    return all(type(size) is int for size in (*one, *other)) and list(one) == list(other)


RESULTS: dict[OpOverload, Callable[..., Tensor | None]] = {
    torch.ops.aten.linear.default: _linear,
    torch.ops.aten.layer_norm.default: _layer_norm,
}


class Standing(Tensor):
    """A tensor that holds nothing itself: its subclass's `__torch_dispatch__` says what each operator makes of it."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor, dtype: torch.dtype) -> Standing:
        """Of the shape and on the device of what it stands for, which its subclass keeps."""
        made: Standing = Tensor._make_wrapper_subclass(cls, held.shape, dtype=dtype, device=held.device)
        return made


def oblivious_sizes(oblivious: bool = True) -> AbstractContextManager[Any]:
    """Let sizes of zero and one be sizes as any other: nothing is decided by them alone."""
    return shapes.patch(backed_size_oblivious=oblivious)  # type: ignore[attr-defined, no-any-return]


@contextmanager
def asked_of_sizes(note: Callable[[Any, Any], object]) -> Iterator[None]:
    """Tell of each expression of symbolic sizes whose value a trace asks for, and of the value, by whom it is asked."""
    before: Any = ShapeEnv.evaluate_expr

    def evaluate(shapes: ShapeEnv, asked: Any, *args: Any, **named: Any) -> Any:
        value = before(shapes, asked, *args, **named)
        if size_symbols(asked):
            note(asked, value)
        return value

    ShapeEnv.evaluate_expr = evaluate  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        ShapeEnv.evaluate_expr = before  # type: ignore[method-assign]


def size_symbols(asked: Any) -> set[Any]:
    """The symbols of an expression that stand for sizes of inputs; not those for what tensors hold."""
    return {one for one in getattr(asked, "free_symbols", ()) if str(one).startswith("s")}


def guarded(exported: ExportedProgram, given: Iterable[str]) -> ExportedProgram:
    """The program, without the guards of a call that ask something of other inputs than those given.

    What a trace learnt of sizes is spelt by the inputs' names, also of those that a copy has no more; torch spells it
    anew for each copy.
    """
    names = set(given)
    exported._guards_code = [guard for guard in exported._guards_code if names.issuperset(GUARDED.findall(guard))]
    return exported


def compile_code(
    module: fx.GraphModule,
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    source: str,
    keep: Callable[[str, Callable[[], bytes]], bytes],
) -> Any:
    """Compile a module ahead of time.

    Args:
        source: C++ whose functions its code calls; it is compiled beside, and becomes part of the same library.
        keep: gives what that C++ was compiled to by the same command before, else calls what compiles it.

    Returns:
        The files of the code, and the weights by name where the options leave them outside.
    """
    chosen = {**BRIEF, **options}
    if not LOOPS_PLANNED and any(node.target is while_loop for node in module.graph.nodes):
        chosen["allow_buffer_reuse"] = False
    if inductor.config.cpp.vec_isa_ok is None and platform.machine() in X86:
        chosen["cpp.vec_isa_ok"] = True
    from headrace.compat.torch_builds import brief_builds  # imports the compiler, which who only loads code never needs

    with brief_builds(source, keep), without_stacks(), without_code(), shapes_at_once():
        return inductor.aot_compile(module, args, options=chosen)


def shims_option(declared: Mapping[Any, str]) -> dict[str, Any]:
    """The option by which the code of a model calls functions of ours where its graph calls our operators.

    Args:
        declared: of each operator its function, `aoti_torch_cpu_NAME(...)`, which `compile_code` is given in C++.
    """
    return {
        "aot_inductor.custom_ops_to_c_shims": {
            operator: [f"AOTITorchError {function}"] for operator, function in declared.items()
        }
    }


def compiler_settings() -> str:
    """All settings of the compiler that its code may depend on."""
    return str(sorted(inductor.config.save_config_portable().items(), key=str))


def size_bounds(size: Any) -> str:
    """Between what a free size lies; empty for a number."""
    if not isinstance(size, torch.SymInt):
        return ""
    known = size.node.shape_env.var_to_range
    return str([(str(symbol), str(known.get(symbol))) for symbol in sorted(size.node.expr.free_symbols, key=str)])


def mark_dynamic(value: Tensor, place: int, bounds: tuple[int, int] | None) -> None:
    """Let a dimension vary in what is compiled: within the bounds, or as far as the guards allow."""
    if bounds is None:
        torch._dynamo.maybe_mark_dynamic(value, place)
    else:
        torch._dynamo.mark_dynamic(value, place, min=bounds[0], max=bounds[1])


def specialized_floats() -> AbstractContextManager[Any]:
    """Compile with the numbers of functions as constants, where torch would make an input of each."""
    patched: AbstractContextManager[Any] = torch._dynamo.config.patch(specialize_float=True)
    return patched


def index_below(number: Tensor, count: int) -> Any:
    """A tensor's one number as an index into so many, which tracers then know it to be."""
    index = number.item()
    torch._check(index >= 0)  # type: ignore[no-untyped-call]
    torch._check(index < count)  # type: ignore[no-untyped-call]
    return index


def schema_arguments(target: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """An operator's arguments by the names of its schema, those left out by their defaults."""
    schema = target._schema.arguments
    given = {one.name: one.default_value for one in schema if one.has_default_value()}
    return given | dict(zip((one.name for one in schema), args, strict=False)) | dict(named)
