"""Exported graphs: running one eagerly and rewriting one. Only here are torch.export's private corners touched."""

from __future__ import annotations

import copy
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._export.verifier import Verifier
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

Edit = Callable[[fx.Graph], None]
HALVES = (torch.bfloat16, torch.float16)
SHORTER = {torch.float32: HALVES, torch.float64: (torch.float32, *HALVES)}
SIZE = torch.ops.aten.sym_size.int
# What a node's metadata says of the model's code that it comes from.
PLACE = ("nn_module_stack", "stack_trace", "source_fn_stack", "torch_fn")


def inputs_of(exported: ExportedProgram) -> tuple[str, ...]:
    """The names of the inputs that a caller gives, in order."""
    return tuple(exported.graph_signature.user_inputs)


def save(exported: ExportedProgram, path: Path) -> None:
    """Write a program, weights included.

    Raises:
        OSError: the disk has no room for the weights. torch finds out while it writes, and ends the process.
    """
    needed = sum(
        tensor.nbytes
        for tensor in (*exported.state_dict.values(), *exported.constants.values())
        if isinstance(tensor, Tensor)
    )
    if shutil.disk_usage(path.parent).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    torch.export.save(exported, path)


def bound_of(exported: ExportedProgram) -> int | None:
    """The longest sequence that the graph may be given, None without a bound: the second dimension of its inputs."""
    given = set(inputs_of(exported))
    size = next(n.meta["val"].shape[1] for n in exported.graph.nodes if n.name in given)
    upper = exported.range_constraints[size.node.expr].upper if isinstance(size, torch.SymInt) else size
    return int(upper) if getattr(upper, "is_finite", True) and upper < sys.maxsize - 1 else None


def outputs_of(exported: ExportedProgram) -> tuple[fx.Node, ...]:
    """The nodes that the graph returns, in order."""
    returned: Any = exported.graph.output_node().args[0]
    return tuple(returned)


def weights_of(exported: ExportedProgram) -> dict[str, Tensor]:
    """The parameters by the name of their placeholder."""
    specs = exported.graph_signature.input_specs
    return {s.arg.name: exported.state_dict[str(s.target)] for s in specs if s.kind is InputKind.PARAMETER}


def bindings(
    exported: ExportedProgram, inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None = None
) -> list[Any]:
    """The graph's arguments in placeholder order: weights and constants from the program, the rest from the caller.

    Args:
        weights: in place of the program's own, by name.
    """
    held: dict[str, Any] = {**exported.constants, **exported.state_dict, **(weights or {})}
    return [
        inputs[spec.arg.name] if spec.kind is InputKind.USER_INPUT else held[str(spec.target)]
        for spec in exported.graph_signature.input_specs
    ]


class _Tapped(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, taps: frozenset[str], widened: torch.dtype | None) -> None:
        super().__init__(module)
        self.taps, self.seen, self.widened = taps, dict[str, Any](), widened

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.name in self.taps:
            self.seen[n.name] = result
        return result

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> Any:
        given = super().fetch_args_kwargs_from_env(n)
        # A table of rows is as large as it gets, and is only read: its rows are widened where they are used.
        wide = self.widened
        if wide is None or n.op != "call_function" or n.target is torch.ops.aten.embedding.default:
            return given
        return pytree.tree_map(lambda value: _widened(value, wide), given)


def _widened(value: Any, wide: torch.dtype) -> Any:
    """A float of less width: a tensor, at its use so that no second copy of the weights stays, or a dtype's name."""
    if isinstance(value, Tensor):
        return value.to(wide) if value.dtype in SHORTER[wide] else value
    return wide if isinstance(value, torch.dtype) and value in SHORTER[wide] else value


@torch.no_grad()
def run(
    exported: ExportedProgram,
    inputs: Mapping[str, Tensor],
    taps: Iterable[str] = (),
    *,
    widened: torch.dtype | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Run the graph node by node, each operator by its eager implementation.

    Args:
        widened: float32 or float64, to compute in it what the graph computes in less: what the graph does is then told
            from how it rounds, and a model's own upcasts lose nothing either.
        weights: in place of the program's own, by name.

    Returns:
        The outputs in order, and the values of the nodes named in `taps`.
    """
    tapped, bound = frozenset(taps), bindings(exported, inputs, weights)
    if not tapped and widened is None:  # the graph's own code does the same without an interpreter's work a node
        return tuple(exported.graph_module(*bound)), {}
    interpreter = _Tapped(exported.graph_module, tapped, widened)
    outputs = interpreter.run(*bound)
    return tuple(outputs), interpreter.seen


@torch.no_grad()
def evaluate(exported: ExportedProgram, nodes: Iterable[fx.Node], inputs: Mapping[str, Tensor]) -> dict[fx.Node, Any]:
    """The values of some nodes, by running only what they are computed from; each is let go after its last use."""
    wanted, needed = set(nodes), ancestors(nodes)
    interpreter = fx.Interpreter(exported.graph_module)
    interpreter.args_iter = iter(bindings(exported, inputs))
    order = [node for node in exported.graph.nodes if node in needed or node.op == "placeholder"]
    last = {arg: node for node in order for arg in node.all_input_nodes}
    for node in order:
        interpreter.env[node] = interpreter.run_node(node)
        for arg in node.all_input_nodes:
            if last[arg] is node and arg not in wanted:
                interpreter.env.pop(arg, None)
    return {node: interpreter.env[node] for node in wanted}


def ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes and everything that they are computed from."""
    found, todo = set[fx.Node](), list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found


def rewrite(exported: ExportedProgram, edit: Edit, functional: bool = False) -> ExportedProgram:
    """A copy of the program whose graph `edit` has changed; nodes that it left without use are gone.

    Args:
        functional: the copy counts as one without writes in place, which torch.export's own graphs may hold.
    """
    module = copy.deepcopy(exported.graph_module)
    edit(module.graph)
    return _rebuilt(exported, module, keep=None, verifiers=[Verifier] if functional else None)


def keep_outputs(
    exported: ExportedProgram, keep: tuple[int, ...], optional: frozenset[str] = frozenset()
) -> ExportedProgram:
    """A copy that returns only the outputs at those places, without the nodes and weights that only others read.

    Args:
        optional: inputs that are dropped too where no kept output reads one of them.
    """
    module = copy.deepcopy(exported.graph_module)
    output = module.graph.output_node()
    returned: Any = output.args[0]
    output.args = (tuple(returned[i] for i in keep),)
    _measure_elsewhere(module.graph, optional)
    _drop_assertions(module.graph)
    return _rebuilt(exported, module, keep, optional)


def replace_output(exported: ExportedProgram, make: Callable[[fx.Graph], fx.Node]) -> ExportedProgram:
    """A copy that returns one value, which `make` computes at the end of the graph, and holds what that reads."""
    module = copy.deepcopy(exported.graph_module)
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        output.args = ((make(module.graph),),)
    _drop_assertions(module.graph)
    return _rebuilt(exported, module, keep=(0,))


def call(graph: fx.Graph, target: Any, args: tuple[Any, ...], like: fx.Node | None = None) -> fx.Node:
    """A new node at the graph's insertion point, its value's shape and strides worked out.

    Args:
        like: the node whose place in the model's code it takes.
    """
    node: fx.Node = graph.create_node("call_function", target, args, name=getattr(target, "_opname", None))
    node.meta |= {key: like.meta[key] for key in PLACE if key in like.meta} if like is not None else {}
    values = pytree.tree_map_only(fx.Node, lambda arg: arg.meta["val"], args)
    # Composite operators in C++ refuse symbolic sizes; their decompositions in Python do not.
    with _fake_mode(graph), enable_python_dispatcher(), torch.no_grad():
        node.meta["val"] = target(*values)
    return node


def _fake_mode(graph: fx.Graph) -> Any:
    return next(node.meta["val"].fake_mode for node in graph.nodes if hasattr(node.meta.get("val"), "fake_mode"))


def with_weights(exported: ExportedProgram, weights: Mapping[str, Tensor]) -> ExportedProgram:
    """A copy that holds more weights, each a placeholder of its name that nothing reads yet."""
    module, signature = copy.deepcopy(exported.graph_module), copy.deepcopy(exported.graph_signature)
    first = next(iter(module.graph.nodes))
    fake_mode = _fake_mode(module.graph)
    with module.graph.inserting_before(first):
        for name, weight in weights.items():
            module.graph.placeholder(name).meta["val"] = fake_mode.from_tensor(weight, static_shapes=True)
    specs = [InputSpec(InputKind.PARAMETER, TensorArgument(name), name) for name in weights]
    signature.input_specs = [*specs, *signature.input_specs]
    held = {name: torch.nn.Parameter(weight, requires_grad=False) for name, weight in weights.items()}
    module.recompile()
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=signature,
        state_dict={**held, **exported.state_dict},
        range_constraints=exported.range_constraints,
        module_call_graph=exported.module_call_graph,
        example_inputs=exported.example_inputs,
        constants=exported.constants,
        verifiers=exported.verifiers,
    )


def _measure_elsewhere(graph: fx.Graph, optional: frozenset[str]) -> None:
    """Read sizes that several inputs share off one that stays: a batch has one size, whoever is asked."""
    given = [node for node in graph.nodes if node.op == "placeholder" and isinstance(node.meta.get("val"), Tensor)]
    staying = {
        str(size): (node, dim)
        for node in given
        for dim, size in enumerate(node.meta["val"].shape)
        if node.name not in optional and isinstance(size, torch.SymInt)
    }
    for node in [user for one in given if one.name in optional for user in one.users if user.target is SIZE]:
        if (found := staying.get(str(node.meta["val"]))) is not None:
            node.args = found


def counts_data(node: fx.Node) -> bool:
    """Whether the node's value, or its shape, counts what the inputs hold: no size of an input says it."""
    return bool(free_unbacked_symbols(node.meta.get("val")))


def drop_data_assertions(graph: fx.Graph) -> None:
    """Erase what is asserted of such counts, and what nothing but an assertion read."""
    for node in reversed(list(graph.nodes)):
        effect = node.op == "call_function" and node.is_impure() and not node.users
        if effect and any(counts_data(given) for given in node.all_input_nodes):
            graph.erase_node(node)


def _drop_assertions(graph: fx.Graph) -> None:
    """Erase what asserts something of values that no output is computed from: it would keep them alive."""
    needed, todo = set[fx.Node](), [graph.output_node()]
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo += node.all_input_nodes
    for node in list(graph.nodes):
        asserts = node.op == "call_function" and node.is_impure() and not node.users
        if asserts and not needed.issuperset(node.all_input_nodes):
            graph.erase_node(node)


def _rebuilt(
    exported: ExportedProgram,
    module: fx.GraphModule,
    keep: tuple[int, ...] | None,
    optional: frozenset[str] = frozenset(),
    verifiers: list[type[Verifier]] | None = None,
) -> ExportedProgram:
    module.graph.eliminate_dead_code()
    read = any(node.users for node in module.graph.nodes if node.op == "placeholder" and node.name in optional)
    unused = _drop_unused(module.graph, set(inputs_of(exported)) - (set() if read else optional))
    module.graph.lint()
    module.recompile()
    signature = copy.deepcopy(exported.graph_signature)
    signature.input_specs = [spec for spec in signature.input_specs if spec.arg.name not in unused]
    results: Any = module.graph.output_node().args[0]
    specs = signature.output_specs if keep is None else [signature.output_specs[i] for i in keep]
    for spec, node in zip(specs, results, strict=True):
        spec.arg.name = node.name
    signature.output_specs = list(specs)
    first, *others = exported.module_call_graph
    assert first.signature is not None
    out_spec = pytree.tree_flatten(tuple(range(len(specs))))[1]
    # Inputs are given by name: their part of the specification is the keywords of a call.
    names = [name for name in inputs_of(exported) if name not in unused]
    in_spec = pytree.tree_flatten(((), dict.fromkeys(names, 0)))[1]
    whole = replace(
        first.signature,
        inputs=[given for given in first.signature.inputs if given.name in names],
        outputs=[spec.arg for spec in specs],
        in_spec=in_spec,
        out_spec=out_spec,
        forward_arg_names=names,
    )
    used = {str(spec.target) for spec in signature.input_specs if spec.target is not None}
    made = ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=signature,
        state_dict={name: value for name, value in exported.state_dict.items() if name in used},
        range_constraints=exported.range_constraints,
        module_call_graph=[replace(first, signature=whole), *others],
        example_inputs=_without(exported.example_inputs, unused),
        constants={name: value for name, value in exported.constants.items() if name in used},
        verifiers=verifiers or exported.verifiers,
    )
    # What the trace learnt of sizes is spelt by the inputs' names, which a call checks.
    made._guards_code = [guard for guard in made._guards_code if not any(f"'{name}'" in guard for name in unused)]
    return made


def _without(example: Any, unused: frozenset[str]) -> Any:
    if example is None:
        return None
    args, named = example
    return args, {name: value for name, value in named.items() if name not in unused}


def _drop_unused(graph: fx.Graph, given: set[str]) -> frozenset[str]:
    """Erase the weights and inputs that nothing reads, but for those `given` in any case."""
    unused = [n for n in graph.nodes if n.op == "placeholder" and not n.users and n.name not in given]
    for node in unused:
        graph.erase_node(node)
    return frozenset(node.name for node in unused)


def sparing(exported: ExportedProgram) -> ExportedProgram:
    """A copy that skips a decomposition which would find nothing to decompose: it would trace the whole graph anew.

    For callers outside, which decompose what they are given in any case, and change the graph in place.
    """
    made = rewrite(exported, lambda graph: None)
    # Sizes that count data and that an earlier caller saw made anew: this one would be asked where it returns them.
    _fake_mode(made.graph).shape_env.pending_fresh_unbacked_symbols.clear()
    decompose = made.run_decompositions

    def decompose_if_any(decomp_table: Mapping[Any, Any] | None = None) -> ExportedProgram:
        present = {node.target for node in made.graph.nodes}
        idle = decomp_table is not None and present.isdisjoint(decomp_table)
        return made if idle else decompose(dict(decomp_table) if decomp_table is not None else None)

    made.run_decompositions = decompose_if_any
    return made


def flat_module(exported: ExportedProgram) -> fx.GraphModule:
    """The graph as a module that holds its weights, takes its inputs by position and checks none of them."""
    module = exported.module(check_guards=False)
    module.graph.set_codegen(fx.graph.CodeGen())
    flat = fx.GraphModule(module, module.graph)
    for node in list(flat.graph.nodes):
        if node.op == "call_module" and "guard" in str(node.target):
            flat.graph.erase_node(node)
    return flat
