"""Copies of an exported program with another graph: edited, cut down to some outputs, or holding more weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram, ModuleCallEntry
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

from headrace.compat.torch import ExportVerifier, guarded, pytree
from headrace.graphs.signature import inputs_of
from headrace.graphs.surgery import drop_assertions, drop_unused, fake_mode, measure_elsewhere

Edit = Callable[[fx.Graph], None]


def rewrite(exported: ExportedProgram, edit: Edit, functional: bool = False) -> ExportedProgram:
    """A copy of the program whose graph `edit` has changed; nodes that it left without use are gone.

    Args:
        functional: the copy counts as one without writes in place, which torch.export's own graphs may hold.
    """
    graph = copy.deepcopy(exported.graph)
    edit(graph)
    return _rebuilt(exported, graph, keep=None, verifiers=[ExportVerifier] if functional else None)


def keep_outputs(
    exported: ExportedProgram, keep: tuple[int, ...], optional: frozenset[str] = frozenset()
) -> ExportedProgram:
    """A copy that returns only the outputs at those places, without the nodes and weights that only others read.

    Args:
        optional: inputs that are dropped too where no kept output reads one of them.
    """
    graph = copy.deepcopy(exported.graph)
    output = graph.output_node()
    returned: Any = output.args[0]
    output.args = (tuple(returned[i] for i in keep),)
    measure_elsewhere(graph, optional)
    drop_assertions(graph)
    return _rebuilt(exported, graph, keep, optional)


def drop_mutations(exported: ExportedProgram) -> ExportedProgram:
    """A copy that returns what the model does and no new values of its buffers, weights or inputs."""
    specs = exported.graph_signature.output_specs
    keep = tuple(place for place, spec in enumerate(specs) if spec.kind is OutputKind.USER_OUTPUT)
    return exported if len(keep) == len(specs) else keep_outputs(exported, keep)


def replace_output(exported: ExportedProgram, make: Callable[[fx.Graph], fx.Node]) -> ExportedProgram:
    """A copy that returns one value, which `make` computes at the end of the graph, and holds what that reads."""
    graph = copy.deepcopy(exported.graph)
    output = graph.output_node()
    with graph.inserting_before(output):
        output.args = ((make(graph),),)
    drop_assertions(graph)
    return _rebuilt(exported, graph, keep=(0,))


def with_weights(exported: ExportedProgram, weights: Mapping[str, Tensor]) -> ExportedProgram:
    """A copy that holds more weights, each a placeholder of its name that nothing reads yet.

    A parameter among them stays the object that it is.
    """
    graph, signature = copy.deepcopy(exported.graph), copy.deepcopy(exported.graph_signature)
    first = next(iter(graph.nodes))
    mode = fake_mode(graph)
    with graph.inserting_before(first):
        for name, weight in weights.items():
            graph.placeholder(name).meta["val"] = mode.from_tensor(weight, static_shapes=True)
    specs = [InputSpec(InputKind.PARAMETER, TensorArgument(name), name) for name in weights]
    signature.input_specs = [*specs, *signature.input_specs]
    held = {
        name: weight if isinstance(weight, torch.nn.Parameter) else torch.nn.Parameter(weight, requires_grad=False)
        for name, weight in weights.items()
    }
    made = ExportedProgram(
        root=exported.graph_module,
        graph=graph,
        graph_signature=signature,
        state_dict={**held, **exported.state_dict},
        range_constraints=exported.range_constraints,
        module_call_graph=exported.module_call_graph,
        example_inputs=exported.example_inputs,
        constants=exported.constants,
        verifiers=exported.verifiers,
    )
    return guarded(made, inputs_of(made))


def with_inputs(exported: ExportedProgram, forms: Mapping[str, tuple[str, int, torch.dtype]]) -> ExportedProgram:
    """A copy that takes more inputs, or some in another dtype; nothing reads a new one yet.

    Args:
        forms: of each by its name an input that is there, how many of whose dimensions it has, and its dtype.
    """
    graph, signature = copy.deepcopy(exported.graph), copy.deepcopy(exported.graph_signature)
    given = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    last = list(given.values())[-1]
    args, named = exported.example_inputs or ((), dict[str, Any]())
    mode, examples = fake_mode(graph), dict(named)
    for name, (like, dims, dtype) in forms.items():
        if name not in given:
            with graph.inserting_after(last):
                given[name] = last = graph.placeholder(name)
            signature.input_specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(name), None))
        value = given[like].meta["val"]
        with mode:
            given[name].meta["val"] = value.new_empty(value.shape[:dims], dtype=dtype)
        if like in named:
            examples[name] = named[like].new_zeros(named[like].shape[:dims], dtype=dtype)
    first, *others = exported.module_call_graph
    assert first.signature is not None
    names = [spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    whole = replace(
        first.signature, inputs=[TensorArgument(name) for name in names], forward_arg_names=names,
        in_spec=pytree.tree_flatten(((), dict.fromkeys(names, 0)))[1],
    )  # fmt: skip
    made = ExportedProgram(
        root=exported.graph_module,
        graph=graph,
        graph_signature=signature,
        state_dict=exported.state_dict,
        range_constraints=exported.range_constraints,
        module_call_graph=[replace(first, signature=whole), *others],
        example_inputs=(args, examples) if exported.example_inputs else None,
        constants=exported.constants,
        verifiers=exported.verifiers,
    )
    return guarded(made, inputs_of(made))


def sparing(exported: ExportedProgram) -> ExportedProgram:
    """A copy that skips a decomposition which would find nothing to decompose: it would trace the whole graph anew.

    For callers outside, which decompose what they are given in any case, and change the graph in place.
    """
    made = rewrite(exported, lambda graph: None)
    # Sizes that count data and that an earlier caller saw made anew: this one would be asked where it returns them.
    fake_mode(made.graph).shape_env.pending_fresh_unbacked_symbols.clear()
    decompose = made.run_decompositions

    def decompose_if_any(decomp_table: Mapping[Any, Any] | None = None) -> ExportedProgram:
        present = {node.target for node in made.graph.nodes}
        idle = decomp_table is not None and present.isdisjoint(decomp_table)
        if idle:
            return made
        decomposed = decompose(dict(decomp_table) if decomp_table is not None else None)
        return guarded(decomposed, inputs_of(decomposed))

    made.run_decompositions = decompose_if_any
    return made


def _rebuilt(
    exported: ExportedProgram,
    graph: fx.Graph,
    keep: tuple[int, ...] | None,
    optional: frozenset[str] = frozenset(),
    verifiers: list[type[ExportVerifier]] | None = None,
) -> ExportedProgram:
    graph.eliminate_dead_code()
    read = any(node.users for node in graph.nodes if node.op == "placeholder" and node.name in optional)
    unused = drop_unused(graph, set(inputs_of(exported)) - (set() if read else optional))
    signature = copy.deepcopy(exported.graph_signature)
    signature.input_specs = [spec for spec in signature.input_specs if spec.arg.name not in unused]
    results: Any = graph.output_node().args[0]
    specs = signature.output_specs if keep is None else [signature.output_specs[i] for i in keep]
    for spec, node in zip(specs, results, strict=True):
        spec.arg.name = node.name
    signature.output_specs = list(specs)
    used = {str(spec.target) for spec in signature.input_specs if spec.target is not None}
    made = ExportedProgram(
        root=exported.graph_module,
        graph=graph,
        graph_signature=signature,
        state_dict={name: value for name, value in exported.state_dict.items() if name in used},
        range_constraints=exported.range_constraints,
        module_call_graph=_call_graph(exported, unused, specs),
        example_inputs=_without(exported.example_inputs, unused),
        constants={name: value for name, value in exported.constants.items() if name in used},
        verifiers=verifiers or exported.verifiers,
    )
    return guarded(made, inputs_of(made))


def _call_graph(exported: ExportedProgram, unused: frozenset[str], outputs: list[OutputSpec]) -> list[ModuleCallEntry]:
    """How the whole is called: by the names of the inputs that are left, returning so many outputs."""
    first, *others = exported.module_call_graph
    assert first.signature is not None
    # Inputs are given by name: their part of the specification is the keywords of a call.
    names = [name for name in inputs_of(exported) if name not in unused]
    whole = replace(
        first.signature,
        inputs=[given for given in first.signature.inputs if given.name in names],
        outputs=[spec.arg for spec in outputs],
        in_spec=pytree.tree_flatten(((), dict.fromkeys(names, 0)))[1],
        out_spec=pytree.tree_flatten(tuple(range(len(outputs))))[1],
        forward_arg_names=names,
    )
    return [replace(first, signature=whole), *others]


def _without(example: Any, unused: frozenset[str]) -> Any:
    if example is None:
        return None
    args, named = example
    return args, {name: value for name, value in named.items() if name not in unused}
